"""An output folder that is a file is refused by every verb that has one."""

import shutil
from dataclasses import fields
from typing import get_type_hints

import pytest

from hf_vanilla_transformer.cli import TRAINER_VERBS, VERBS, main

LANGUAGES = ["--source_lang", "en", "--target_lang", "de"]
COMMANDS = {
    "average": ["run", "--last", "1"],
    "export": ["model", "--format", "onnx"],
    "import": ["test", *LANGUAGES],
    "prepare": ["test", *LANGUAGES],
    "train": ["--train_file", "test", "--preset", "tiny", "--max_steps", "1", "--use_cpu", *LANGUAGES],
    "translate": ["model", "--input_files", "test.en"],
    "tune": ["--train_file", "test", "--preset", "tiny", "--max_steps", "9", "--use_cpu", *LANGUAGES],
}


def test_the_verbs_below_are_those_with_an_output_folder():
    arguments = {name: get_type_hints(verb.run)["args"] for name, verb in VERBS.items()}
    writing = {name for name, kind in arguments.items() if "output_dir" in {field.name for field in fields(kind)}}
    assert writing | TRAINER_VERBS.keys() == COMMANDS.keys()


@pytest.mark.parametrize("output", ["taken", "taken/below/it"])
@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_an_output_folder_that_is_a_file_is_named_and_left_as_it_is(verb, output, saved, monkeypatch, capsys):
    monkeypatch.chdir(saved.folder)
    (saved.folder / "taken").write_text("mine")
    shutil.copytree("model", "run/checkpoint-1")
    words = [verb, *COMMANDS[verb]]
    # that of `export` has no flag, and stands after the model
    words[2:2] = [output] if verb == "export" else []
    words += [] if verb == "export" else ["--output_dir", output]
    assert main(words) == 1
    assert "taken is a file, not a folder; choose another output folder." in capsys.readouterr().err.splitlines()[-1]
    assert (saved.folder / "taken").read_text() == "mine"
