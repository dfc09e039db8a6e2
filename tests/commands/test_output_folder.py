"""An output folder that is a file is refused by every verb that has one, and a failed verb leaves none."""

import re
import resource
import shutil
import subprocess
from dataclasses import fields
from typing import get_type_hints

import pytest

from hf_vanilla_transformer.cli import find_verbs, main, parses_words

LANGUAGES = ["--source_lang", "en", "--target_lang", "de"]
COMMANDS = {
    "average": ["run", "--last", "1"],
    "convert": ["model", "--to", "marian"],
    "export": ["model", "--format", "ctranslate2"],
    "import": ["test", *LANGUAGES],
    "prepare": ["test", *LANGUAGES],
    "train": ["--train_file", "test", "--preset", "tiny", "--max_steps", "1", "--use_cpu", *LANGUAGES],
    "translate.input_files": ["model", "--input_files", "test.en"],
    "translate.output_dir": ["model", "page.html"],
    "tune": ["--train_file", "test", "--preset", "tiny", "--max_steps", "9", "--use_cpu", *LANGUAGES],
}


def words(verb: str, output: str) -> list[str]:
    """Return the command of a verb with an output folder."""
    if verb in ("convert", "export"):
        # their output folder has no flag
        model, *flags = COMMANDS[verb]
        return [verb, model, output, *flags]
    return [verb.partition(".")[0], *COMMANDS[verb], "--output_dir", output]


def test_the_verbs_below_are_those_with_an_output_folder():
    verbs = find_verbs()
    trainers = {name for name, verb in verbs.items() if parses_words(verb)}
    arguments = {name: get_type_hints(verb.run)["args"] for name, verb in verbs.items() if name not in trainers}
    writing = {name for name, kind in arguments.items() if "output_dir" in {field.name for field in fields(kind)}}
    # the same verb as with --output_dir
    assert (writing | trainers) - {"translate.format"} == COMMANDS.keys()


@pytest.mark.parametrize("output", ["taken", "taken/below/it"])
@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_an_output_folder_that_is_a_file_is_named_and_left_as_it_is(verb, output, saved, monkeypatch, capsys):
    monkeypatch.chdir(saved.folder)
    (saved.folder / "taken").write_text("mine")
    (saved.folder / "page.html").write_text("<p>a dog</p>")
    shutil.copytree("model", "run/checkpoint-1")
    assert main(words(verb, output)) == 1
    assert "taken is a file, not a folder; choose another output folder." in capsys.readouterr().err.splitlines()[-1]
    assert (saved.folder / "taken").read_text() == "mine"


@pytest.mark.parametrize("verb", ["average", "convert", "export", "import", "train"])
def test_a_full_disk_is_one_line_and_the_same_command_succeeds_later(verb, saved, monkeypatch, capsys):
    monkeypatch.chdir(saved.folder)
    shutil.copytree("model", "run/checkpoint-1")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # room for configurations, but neither for weights nor for a tokenizer
    resource.setrlimit(resource.RLIMIT_FSIZE, (10 if verb == "import" else 4_000, limits[1]))
    try:
        assert main(words(verb, "out")) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vanilla-transformer: ")]
    assert len(errors) == 1
    assert re.fullmatch(r"vanilla-transformer: Cannot write (/\S+/)?out: File too large\.", errors[0])
    assert ".unfinished" not in errors[0]
    assert verb == "train" or not (saved.folder / "out").exists()
    assert not list(saved.folder.glob("*.unfinished"))
    assert main(words(verb, "out")) == 0


@pytest.fixture
def read_only(saved):
    """A disk that cannot be written to."""
    (saved.folder / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", saved.folder / "disk"]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield
    subprocess.run(["umount", saved.folder / "disk"], check=True)


# slow, so that they run where file systems can be mounted
@pytest.mark.slow
@pytest.mark.parametrize("output", ["disk", "disk/out"])
@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_a_read_only_disk_is_one_line_without_the_number_of_an_error(
    verb, output, saved, read_only, monkeypatch, capsys
):
    monkeypatch.chdir(saved.folder)
    shutil.copytree("model", "run/checkpoint-1")
    (saved.folder / "page.html").write_text("<p>a dog</p>")
    assert main(words(verb, output)) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vanilla-transformer: ")]
    assert len(errors) == 1
    assert "Read-only file system" in errors[0]
    assert "disk" in errors[0]
    assert "Errno" not in errors[0]


def test_an_average_of_a_run_with_a_damaged_record_leaves_no_folder(saved, monkeypatch, capsys):
    monkeypatch.chdir(saved.folder)
    shutil.copytree("model", "run/checkpoint-1")
    (saved.folder / "run" / "training.json").write_text("{")
    assert main(words("average", "out")) == 1
    assert "training.json is damaged" in capsys.readouterr().err
    assert not (saved.folder / "out").exists()
    (saved.folder / "run" / "training.json").unlink()
    assert main(words("average", "out")) == 0
