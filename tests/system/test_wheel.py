"""A wheel built from the project, in a fresh environment that sees this one's dependencies but not its package."""

import io
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from card_contents import front_matter
from corpora import ROOT
from guide_pages import GUIDE, blocks
from hub_endpoint import hub_environment, local_hub
from small import SIZES, model_flags, write_phrases

from hf_vanilla_transformer.data.phrases import Phrase, splits

pytestmark = pytest.mark.slow
IGNORED = shutil.ignore_patterns(".*", "out", "runs", "build", "*.egg-info", "__pycache__")
TRAIN = ["train", *model_flags(), "--vocab_size", "300", "--max_steps", "2", "--max_tokens", "256"]


def build(project: Path) -> Path:
    """Build a wheel from a project, and return it."""
    wheels = project.with_name(f"{project.name}-wheels")
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels]
    subprocess.run([*pip_wheel, project], check=True)
    (wheel,) = wheels.glob("*.whl")
    return wheel


def install(python: Path, wheel: Path) -> None:
    """Install a wheel without its dependencies."""
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True)


def environment(folder: Path, wheel: Path | None = None) -> Path:
    """Return the interpreter of a new environment that sees this one's dependencies, with a wheel or without."""
    venv.create(folder, with_pip=wheel is not None)
    interpreter = folder / "bin" / "python"
    if wheel is not None:
        install(interpreter, wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    # links to editable packages do not follow
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return interpreter


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Return a wheel of this project."""
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, place / "project", ignore=IGNORED)
    return build(place / "project")


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """Return the interpreter of an environment in which the wheel is installed."""
    return environment(tmp_path_factory.mktemp("environment") / "venv", wheel)


def run(python: Path, folder: Path, *words: str, text: str = "", **others: str) -> str:
    """Return what a program prints, run with other environment variables."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1", **others}
    done = subprocess.run([python, *words], cwd=folder, env=variables, input=text, capture_output=True, text=True)
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
    install(python, build(tmp_path / "example"))
    assert "print how much space the weights of a model take" in run(python, tmp_path, *command, "--help")
    run(python, tmp_path, *command, "export", "model", "half", "--format", "half")
    text = "The man sees a book.\n"
    expected = run(python, tmp_path, *command, "translate", "model", text=text)
    assert run(python, tmp_path, *command, "translate", "half", "--backend", "half", text=text) == expected
    sizes = [run(python, tmp_path, *command, "size", name) for name in ("model", "half")]
    whole, half = (float(size.removesuffix(" MB\n")) for size in sizes)
    assert half == pytest.approx(whole / 2, rel=0.1)


def parquet(phrases: list[Phrase]) -> bytes:
    """Return phrases as a file of a dataset of the Hub."""
    rows = [{"en": phrase.en, "de": phrase.de} for phrase in phrases]
    file = io.BytesIO()
    pq.write_table(pa.table({"translation": rows}), file)
    return file.getvalue()


def test_a_job_with_the_wheel_trains_on_a_dataset_of_the_hub_and_pushes_the_model(wheel, tmp_path):
    python = environment(tmp_path / "venv")
    settings = {**SIZES, "preset": "tiny", "vocab_size": 300, "max_steps": 2, "max_tokens": 256, "use_cpu": True}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**settings, "source_lang": "en", "target_lang": "de"}))
    job = [ROOT / "scripts" / "hf_job.py", wheel, tmp_path / "recipe.yaml", "--dataset_name", "you/phrases"]
    with local_hub() as server:
        parts = {"train": splits()["train"][:100], "validation": splits()["validation"][:10]}
        files = {f"{part}.parquet": parquet(phrases) for part, phrases in parts.items()}
        server.repositories["datasets"]["you/phrases"] = files
        hub = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", **hub_environment(server)}
        run(python, tmp_path, *map(str, job), "--hub_model_id", "you/model", **hub)
        pushed = server.repositories["models"]["you/model"]
    assert {"model.safetensors", "tokenizer.json", "training.json"} <= set(pushed)
    card = pushed["README.md"].decode()
    assert front_matter(card)["datasets"] == "you/phrases"
    assert "100 sentence pairs" in card
