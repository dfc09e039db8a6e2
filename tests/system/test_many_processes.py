"""Training with several processes, sharded or not, equals training with one."""

import json
import subprocess
import sys

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from corpora import ROOT

CONFIGURATIONS = sorted((ROOT / "scripts" / "accelerate").glob("*.yaml"))


def test_two_processes_equal_one_with_two_accumulated_batches(run):
    # less than one epoch: with an odd number of batches, accelerate would repeat one at the end of the epoch
    steps = ["--max_steps", "20", "--dropout", "0", "--max_tokens", "128"]
    two = run("two", *steps, processes=2)
    one = run("one", *steps, "--gradient_accumulation_steps", "2")
    two.finish()
    one.finish()
    states = [json.loads((each.folder / "trainer_state.json").read_text()) for each in (one, two)]
    plain = [[log["unsmoothed_loss"] for log in state["log_history"] if "loss" in log] for state in states]
    assert len(plain[0]) == 2
    assert plain[0] == pytest.approx(plain[1], rel=1e-5)
    expected = one.weights()
    for name, weight in two.weights().items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-6, msg=name)


def test_validation_counts_every_sentence_once_for_any_number_of_processes(run, text):
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


def test_fsdp2_shards_all_parameters_and_keeps_losses_and_weights():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    output = subprocess.run(
        [*torchrun, str(ROOT / "tests" / "support" / "shard_the_model.py")],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert output.returncode == 0, output.stderr[-3000:]
    results = json.loads(next(line for line in output.stdout.splitlines() if line.startswith("{")))
    assert results["sharded_parameters"] == results["parameters"] > 0
    assert results["sharded_losses"] == pytest.approx(results["losses"], abs=1e-5)
    for kind in ("sharded", "parallel"):
        assert results[f"compiled_{kind}_losses"] == pytest.approx(results["losses"], abs=1e-5), kind
    assert results["losses"][-1] < results["losses"][0]
    assert results["bfloat16_logits"] == "torch.bfloat16"
    assert results["bfloat16_losses"] == pytest.approx(results["losses"], rel=0.02)
    assert results["largest_difference"] < 1e-5
    assert results["largest_difference_of_copy"] < 1e-5
    assert results["translation"] == results["expected_translation"]
    assert not results["draws_random_numbers"]
    assert "modeling_vanilla_transformer.py" in results["saved_files"]
    assert results["saved_config"]["architectures"] == ["VanillaTransformerForConditionalGeneration"]
    assert "modeling_vanilla_transformer." in results["saved_config"]["auto_map"]["AutoModelForSeq2SeqLM"]


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: file.stem)
def test_accelerate_reads_each_configuration(file):
    configuration = load_config_from_file(str(file))
    assert configuration.mixed_precision == "bf16"
    assert str(configuration.compute_environment).endswith("LOCAL_MACHINE")


def test_there_is_a_configuration_for_each_setup():
    expected = {"one_gpu", "eight_gpus", "two_nodes", "fsdp", "deepspeed_zero2"}
    assert {file.stem for file in CONFIGURATIONS} == expected
