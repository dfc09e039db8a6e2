"""A wheel built from the project, in a fresh environment that sees this one's dependencies but not its package."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from corpora import ROOT
from small import model_flags, write_phrases

from hf_vanilla_transformer.data.phrases import splits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
IGNORED = shutil.ignore_patterns(".*", "out", "runs", "build", "*.egg-info", "__pycache__")
TRAIN = ["train", *model_flags(), "--vocab_size", "300", "--max_steps", "2", "--max_tokens", "256"]


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """Return the interpreter of an environment in which the wheel is installed."""
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, place / "project", ignore=IGNORED)
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place]
    subprocess.run([*pip_wheel, place / "project"], check=True)
    (wheel,) = place.glob("*.whl")
    venv.create(place / "venv", with_pip=True)
    interpreter = place / "venv" / "bin" / "python"
    subprocess.run([interpreter, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True)
    (site,) = (place / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(
        sysconfig.get_paths()["purelib"]
    )  # links to editable packages do not follow
    return interpreter


def run(python: Path, folder: Path, *words: str, text: str = "") -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
    done = subprocess.run([python, *words], cwd=folder, env=environment, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_wheel_trains_and_translates_in_a_fresh_environment(python, tmp_path):
    phrases = splits()["train"][:50]
    write_phrases(tmp_path / "text", phrases)
    command = ("-m", "hf_vanilla_transformer")
    run(python, tmp_path, *command, *TRAIN, "--train_file", "text", "--output_dir", "model")
    assert (
        "vanilla_transformer" in (tmp_path / "model" / "README.md").read_text()
    )  # the card's template is in the wheel
    translations = run(python, tmp_path, *command, "translate", "model", text=f"{phrases[0].en}\n{phrases[1].en}\n")
    assert len(translations.splitlines()) == 2
    presets = "from hf_vanilla_transformer import paper_config; print(paper_config('C4').d_model)"
    assert run(python, tmp_path, "-c", presets) == "256\n"
    page = (
        "from hf_vanilla_transformer.plugins.serving.page import page_response; print(page_response().body.decode())"
    )
    assert "<title>Translate</title>" in run(python, tmp_path, "-c", page)
    place = run(python, tmp_path, "-c", "import hf_vanilla_transformer; print(hf_vanilla_transformer.__file__)")
    assert Path(place).is_relative_to(python.parents[1])
