"""Failures around a real training process: one clear error line, and everything saved before is kept."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from training_runs import children

from hf_vanilla_transformer.training.checkpoints import find_fault


def error_line(output: str) -> str:
    """Return the only error line of the output, and check that there is no traceback."""
    lines = [line for line in output.splitlines() if line.startswith("vanilla-transformer: ")]
    assert len(lines) == 1, output[-3000:]
    assert "Traceback" not in output, output[-3000:]
    return lines[0]


def checkpoints_are_intact(folder: Path) -> bool:
    found = [path for path in folder.glob("checkpoint-[0-9]*")]
    return bool(found) and all(find_fault(path) is None for path in found)


def test_a_second_run_in_the_same_folder_is_refused_and_the_first_continues(run):
    long = ("run", "--max_steps", "100000", "--save_steps", "200")
    first, second = run(*long), run(*long)
    first.start()
    first.wait_for("checkpoint-200")
    assert "Another run is using" in error_line(second.finish(status=1))
    assert first.statuses == [None]
    first.wait_for_next_checkpoint(save_steps=200)
    first.end(signal.SIGTERM)  # while it trains, it deletes old checkpoints
    assert first.statuses == [0]
    assert checkpoints_are_intact(first.folder)


def test_a_full_disk_is_reported_and_earlier_checkpoints_are_kept(run, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        full = run(folder=disk / "run")
        line = error_line(full.finish(status=1))
        assert "Cannot write" in line
        assert "Earlier checkpoints are intact" in line
        assert checkpoints_are_intact(disk / "run")
        subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
        assert "Resuming from" in full.finish()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_killed_data_worker_is_reported_and_the_run_can_resume(run):
    workers = run("run", "--dataloader_num_workers", "2", "--max_steps", "4000", "--save_steps", "50")
    workers.start()
    workers.wait_for("checkpoint-50")
    os.kill(children(workers.pids[0])[-1], signal.SIGKILL)
    output = workers.end()
    assert workers.statuses == [1]
    assert "A data-loading process died" in error_line(output)
    assert checkpoints_are_intact(workers.folder)
    workers.start()
    workers.wait_for_next_checkpoint(save_steps=50)


def test_a_killed_rank_ends_the_others_and_the_run_resumes_bit_identically(run, undisturbed):
    ranks = run(processes=2, torchrun=True)
    ranks.start()
    ranks.wait_for("checkpoint-14")
    os.kill(children(ranks.pids[0])[-1], signal.SIGKILL)
    ranks.end()
    assert ranks.statuses[0] != 0
    assert checkpoints_are_intact(ranks.folder)
    assert "Resuming from" in ranks.finish()
    expected = undisturbed(processes=2)
    assert all(torch.equal(weight, expected[name]) for name, weight in ranks.weights().items())


def test_non_finite_losses_end_the_run_and_name_the_batch(run):
    diverging = run("run", "--learning_rate", "1e30", "--save_steps", "1", "--warmup_steps", "1")
    output = diverging.finish(status=1)
    line = error_line(output)
    assert "3 in a row" in line
    assert "loss nan on a batch of" in line
    assert output.count("was skipped") == 3
    assert checkpoints_are_intact(diverging.folder)


def test_a_killed_run_does_not_block_its_folder(run):
    killed = run()
    killed.kill_after("checkpoint-7")
    assert (killed.folder / "run.lock").exists()
    assert "Another run" not in killed.finish()
    assert not (killed.folder / "run.lock").exists()


# that a truncated shard is named while streaming is tested in tests/data/test_shards.py
@pytest.mark.parametrize(
    ("way", "damage"), [("streamed", "vanished"), ("mapped", "vanished"), ("mapped", "truncated")]
)
def test_a_shard_lost_during_a_run_is_named_and_checkpoints_are_kept(run, prepared, tmp_path, way, damage):
    shards = tmp_path / "shards"
    shutil.copytree(prepared, shards)
    # large batches: the stream reads the shards again after 50,000 pairs
    flags = ["--train_file", str(shards), "--max_steps", "100000", "--save_steps", "10", "--max_tokens", "4096"]
    lost = run("run", *flags, *(["--streaming"] if way == "streamed" else []))
    lost.start()
    lost.wait_for("checkpoint-10")
    for shard in shards.glob("*.arrow"):
        if damage == "truncated":
            os.truncate(shard, 100)
        else:
            shard.unlink()

    if way == "streamed":
        assert "shard-0000" in error_line(lost.end())
    elif damage == "truncated":
        lost.end()
        assert lost.statuses == [-signal.SIGBUS]  # raised by reading mapped memory beyond the end of the file
    else:
        lost.end(signal.SIGKILL)  # a mapped file stays readable after its deletion, so the run continues
    assert checkpoints_are_intact(lost.folder)
    problem = "is damaged" if damage == "truncated" else "is missing"
    assert problem in error_line(lost.finish(status=1))
