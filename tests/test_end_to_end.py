"""Complete commands in separate processes, as users run them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from corpora import ROOT
from safetensors.torch import load_file
from small import model_flags

SMALL = [
    *model_flags(d_model=32, num_heads=4),
    *("--vocab_size", "600", "--max_steps", "4", "--max_tokens", "512", "--logging_steps", "1", "--save_steps", "4"),
    *("--source_lang", "en", "--target_lang", "de"),
]

pytestmark = pytest.mark.slow


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)


def flags(text: Path, output: Path) -> list[str]:
    return [*SMALL, "--train_file", str(text), "--validation_file", str(text), "--output_dir", str(output)]


def module(name: str) -> list[str]:
    return [sys.executable, "-m", name]


@pytest.fixture(scope="module")
def text(multi30k) -> Path:
    """The prefix of the validation text."""
    return multi30k / "val"


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory) -> Path:
    """The folder of a run of the command on real text."""
    folder = tmp_path_factory.mktemp("trained") / "command"
    run(*module("hf_vanilla_transformer"), "train", *flags(text, folder))
    return folder


def test_accelerate_launch_trains_the_same_weights_as_the_command(trained, text, tmp_path):
    launch = ("accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1")
    run(*module(launch[0]), *launch[1:], "scripts/train.py", *flags(text, tmp_path))
    command, launched = (load_file(folder / "model.safetensors") for folder in (trained, tmp_path))
    assert command.keys() == launched.keys()
    assert all(torch.equal(command[name], launched[name]) for name in command)
    histories = [
        json.loads((folder / "trainer_state.json").read_text())["log_history"] for folder in (trained, tmp_path)
    ]
    assert [entry.get("loss") for entry in histories[0]] == [entry.get("loss") for entry in histories[1]]
    assert histories[0][0]["loss"] > histories[0][3]["loss"]


def test_a_model_trained_on_real_text_can_be_evaluated(trained, text):
    evaluated = run(*module("hf_vanilla_transformer"), "evaluate", str(trained), "--test_file", str(text))
    assert json.loads(evaluated.stdout)["sentences"] == 1014
