"""Runs that are interrupted, or whose newest checkpoint is damaged, end with the weights of an undisturbed run."""

import re
import signal

import pytest
import torch


def bit_identical(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


MIXED = ("--train_weights", "1", "2", "0.5", "--bpe_dropout", "0.1", "--dataloader_num_workers", "2")
# one plain process is killed in the tests of damaged checkpoints below, and one of two processes in test_faults.py
KINDS = {
    "accumulation, bfloat16": (("--gradient_accumulation_steps", "3", "--bf16"), 1),
    "three sources, BPE dropout, two workers": (MIXED, 1),
    "three sources, BPE dropout, two workers, two processes": (MIXED, 2),
    "streamed": (("--streaming",), 1),
    "streamed, two processes": (("--streaming",), 2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_resumes_and_ends_with_bit_identical_weights(run, undisturbed, text, prepared, kind):
    extra, processes = KINDS[kind]
    if "--streaming" in extra:
        extra = (*extra, "--train_file", str(prepared))
    if "--train_weights" in extra:
        extra = (*extra, "--train_file", str(text), str(text), str(prepared))
    disturbed = run("run", *extra, processes=processes)
    disturbed.kill_after("checkpoint-14")
    disturbed.kill_after("checkpoint-35")
    output = disturbed.finish()
    step = int(re.search(r"Resuming from .*checkpoint-(\d+)", output)[1])
    assert step >= 35  # it did not start from scratch
    assert f"'step': {step}" not in output
    assert bit_identical(disturbed.weights(), undisturbed(*extra, processes=processes))


def test_sigterm_to_two_processes_saves_once_and_exits_with_0(run, undisturbed):
    stopped = run(processes=2)
    stopped.start()
    stopped.wait_for("checkpoint-14")
    output = stopped.end(signal.SIGTERM)
    assert stopped.statuses == [0, 0], output
    assert output.count("Stopped by SIGTERM after") == 1
    stopped.finish()
    assert bit_identical(stopped.weights(), undisturbed(processes=2))


def test_sigterm_to_all_processes_saves_and_exits_with_0_and_the_run_resumes_from_there(run, undisturbed):
    workers = ("--dataloader_num_workers", "2")  # which Slurm signals as well
    stopped = run("run", *workers)
    stopped.start()
    stopped.wait_for("checkpoint-14")
    output = stopped.end(signal.SIGTERM)
    assert stopped.statuses == [0], output
    step = int(re.search(r"Stopped by SIGTERM after (\d+) updates; run the same command", output)[1])
    assert step < 80
    assert (stopped.folder / f"checkpoint-{step}").is_dir()
    assert not (stopped.folder / "model.safetensors").exists()
    assert f"Resuming from {stopped.folder / f'checkpoint-{step}'}" in stopped.finish()
    assert bit_identical(stopped.weights(), undisturbed(*workers))


@pytest.mark.parametrize("damage", ["flipped byte", "truncated weights", "missing optimizer"])
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_used(run, undisturbed, damage):
    damaged = run()
    damaged.kill_after("checkpoint-21")
    newest, previous = sorted(damaged.folder.glob("checkpoint-[0-9]*"), key=lambda p: -int(p.name[11:]))[:2]
    name = "optimizer.pt" if damage == "missing optimizer" else "model.safetensors"
    content = bytearray((newest / name).read_bytes())
    if damage == "flipped byte":
        content[len(content) // 2] ^= 1
        (newest / name).write_bytes(content)
    elif damage == "truncated weights":
        (newest / name).write_bytes(content[: len(content) // 2])
    else:
        (newest / name).unlink()
    output = damaged.finish()
    assert f"Skipping {newest}: {name} is {'missing' if damage == 'missing optimizer' else 'corrupt'}" in output
    assert f"Resuming from {previous}" in output
    assert bit_identical(damaged.weights(), undisturbed())
