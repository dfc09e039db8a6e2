"""Several processes: the same training as one, whatever is sharded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file

HERE = Path(__file__).parent
CONFIGURATIONS = sorted((HERE.parents[1] / "scripts" / "accelerate").glob("*.yaml"))


def test_two_processes_are_one_with_two_accumulated_batches(run):
    # within one epoch: at its end accelerate repeats a batch where they do not come out even
    steps = ["--max_steps", "20", "--dropout", "0", "--max_tokens", "128"]
    two = run("two", *steps, processes=2)
    one = run("one", *steps, "--gradient_accumulation_steps", "2")
    two.finish(), one.finish()
    expected = one.weights()
    for name, weight in two.weights().items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-6, msg=name)


def test_every_validation_sentence_counts_once_however_many_processes(run, text):
    scores = []
    for processes in (1, 2):
        validated = run(
            *(f"run{processes}", "--validation_file", str(text), "--max_steps", "1", "--save_steps", "1"),
            *("--learning_rate", "1e-30"),
            processes=processes,
        )
        validated.finish()
        log = json.loads((validated.folder / "trainer_state.json").read_text())["log_history"]
        scores.append(next(entry for entry in log if "eval_loss" in entry))
    assert scores[0]["eval_loss"] == pytest.approx(scores[1]["eval_loss"], rel=1e-6)
    assert scores[0]["eval_bleu"] == pytest.approx(scores[1]["eval_bleu"], rel=1e-9)


def test_fsdp2_wraps_the_model_and_gives_the_same_losses_and_weights():
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        str(HERE / "shard_the_model.py"),
    ]
    output = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert output.returncode == 0, output.stderr[-3000:]
    results = json.loads(next(line for line in output.stdout.splitlines() if line.startswith("{")))
    assert results["sharded_parameters"] == results["parameters"] > 0
    assert results["sharded_losses"] == pytest.approx(results["losses"], abs=1e-5)
    assert results["losses"][-1] < results["losses"][0]
    assert results["largest_difference"] < 1e-5


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: file.stem)
def test_accelerate_reads_the_ready_configurations(file):
    configuration = load_config_from_file(str(file))
    assert configuration.mixed_precision == "bf16"
    assert str(configuration.compute_environment).endswith("LOCAL_MACHINE")


def test_there_are_configurations():
    expected = {"one_gpu", "eight_gpus", "two_nodes", "fsdp", "deepspeed_zero2"}
    assert {file.stem for file in CONFIGURATIONS} == expected
