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
from guide_pages import GUIDE, blocks
from small import model_flags, write_phrases

from hf_vanilla_transformer.data.phrases import splits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
IGNORED = shutil.ignore_patterns(".*", "out", "runs", "build", "*.egg-info", "__pycache__")
TRAIN = ["train", *model_flags(), "--vocab_size", "300", "--max_steps", "2", "--max_tokens", "256"]


def install(python: Path, project: Path) -> None:
    """Build a wheel from a project, and install it without its dependencies."""
    wheels = project.with_name(f"{project.name}-wheels")
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels]
    subprocess.run([*pip_wheel, project], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *wheels.glob("*.whl")], check=True)


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """Return the interpreter of an environment in which the wheel is installed."""
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, place / "project", ignore=IGNORED)
    venv.create(place / "venv", with_pip=True)
    interpreter = place / "venv" / "bin" / "python"
    install(interpreter, place / "project")
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


def write_example(folder: Path) -> None:
    """Write the project of the guide's page about plugins, whose code begins with the names of its files."""
    folder.mkdir()
    code = blocks(GUIDE / "plugins.md")
    (declaration,) = (block for language, block in code if language == "toml")
    runtime, verb = (block for language, block in code if language == "python")
    contents = {"pyproject.toml": declaration, "half_precision.py": runtime, "weights_size.py": verb}
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")


def test_the_plugin_of_the_guide_adds_a_runtime_and_a_verb(python, tmp_path):
    write_phrases(tmp_path / "text", splits()["train"][:50])
    command = ("-m", "hf_vanilla_transformer")
    run(python, tmp_path, *command, *TRAIN, "--train_file", "text", "--output_dir", "model")
    assert "size" not in run(python, tmp_path, *command, "--help").split()
    write_example(tmp_path / "example")
    install(python, tmp_path / "example")
    assert "print how much space the weights of a model take" in run(python, tmp_path, *command, "--help")
    run(python, tmp_path, *command, "export", "model", "half", "--format", "half")
    text = "The man sees a book.\n"
    expected = run(python, tmp_path, *command, "translate", "model", text=text)
    assert run(python, tmp_path, *command, "translate", "half", "--backend", "half", text=text) == expected
    sizes = [run(python, tmp_path, *command, "size", name) for name in ("model", "half")]
    whole, half = (float(size.removesuffix(" MB\n")) for size in sizes)
    assert half == pytest.approx(whole / 2, rel=0.1)
