"""What can go wrong around a run, done to real processes: one clear line, and nothing that was saved is lost."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from hf_vanilla_transformer.training.checkpoints import fault_of


def last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.startswith("vanilla-transformer: ")]
    assert len(lines) == 1, output[-3000:]
    assert "Traceback" not in output, output[-3000:]
    return lines[0]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def checkpoints_are_whole(folder: Path) -> bool:
    found = [path for path in folder.glob("checkpoint-*") if path.is_dir()]
    return bool(found) and all(fault_of(path) is None for path in found)


def test_a_second_run_in_the_same_folder_is_refused_and_the_first_goes_on(run):
    long = ("run", "--max_steps", "100000", "--save_steps", "200")
    first, second = run(*long), run(*long)
    first.start()
    first.wait_for("checkpoint-200")
    assert "Another run is under way in" in last_line(second.finish(status=1))
    assert first.process.poll() is None
    newest = max(int(path.name[11:]) for path in first.folder.glob("checkpoint-[0-9]*"))
    first.wait_for(f"checkpoint-{newest + 200}")
    assert checkpoints_are_whole(first.folder)


def test_a_full_disk_is_said_and_the_checkpoints_before_it_stay(run, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        full = run(folder=disk / "run")
        line = last_line(full.finish(status=1))
        assert "Cannot write" in line
        assert "The checkpoints before it are whole" in line
        assert checkpoints_are_whole(disk / "run")
        subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
        assert "Resuming from" in full.finish()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_killed_data_worker_is_said_and_the_run_goes_on(run):
    workers = run("run", "--dataloader_num_workers", "2", "--max_steps", "4000", "--save_steps", "50")
    workers.start()
    workers.wait_for("checkpoint-50")
    os.kill(children(workers.process.pid)[-1], signal.SIGKILL)
    output = workers.end()
    assert workers.process.returncode == 1
    assert "A process that reads data was lost" in last_line(output)
    assert checkpoints_are_whole(workers.folder)
    workers.start()
    newest = max(int(path.name[11:]) for path in workers.folder.glob("checkpoint-[0-9]*"))
    workers.wait_for(f"checkpoint-{newest + 50}")


def test_a_killed_rank_ends_the_others_and_the_run_goes_on_with_the_same_bits(run, undisturbed):
    ranks = run(processes=2)
    ranks.start()
    ranks.wait_for("checkpoint-14")
    os.kill(children(ranks.process.pid)[-1], signal.SIGKILL)
    ranks.end()
    assert ranks.process.returncode != 0
    assert checkpoints_are_whole(ranks.folder)
    assert "Resuming from" in ranks.finish()
    expected = undisturbed(processes=2)
    assert all(torch.equal(weight, expected[name]) for name, weight in ranks.weights().items())


def test_losses_that_are_no_numbers_end_the_run_and_name_the_batch(run):
    wild = run("run", "--learning_rate", "1e30", "--save_steps", "1", "--warmup_steps", "1")
    output = wild.finish(status=1)
    line = last_line(output)
    assert "3 in a row" in line
    assert "loss nan on a batch of" in line
    assert output.count("is left out") == 3
    assert checkpoints_are_whole(wild.folder)


def test_a_run_leaves_its_folder_to_the_next_even_when_killed(run):
    killed = run()
    killed.kill_after("checkpoint-7")
    assert (killed.folder / "run.lock").exists()
    start = time.monotonic()
    assert "Another run" not in killed.finish()
    assert time.monotonic() - start < 150
    assert not (killed.folder / "run.lock").exists()


@pytest.mark.parametrize("damage", ["vanished", "truncated"])
@pytest.mark.parametrize("way", ["streamed", "mapped"])
def test_a_shard_lost_under_a_run_is_named_and_nothing_saved_is_lost(run, prepared, tmp_path, way, damage):
    shards = tmp_path / "shards"
    shutil.copytree(prepared, shards)
    flags = ["--train_file", str(shards), "--max_steps", "100000", "--save_steps", "100"]
    lost = run("run", *flags, *(["--streaming"] if way == "streamed" else []))
    lost.start()
    lost.wait_for("checkpoint-100")
    for shard in shards.glob("*.arrow"):
        if damage == "truncated":
            os.truncate(shard, 100)
        else:
            shard.unlink()
    if way == "streamed":
        assert "shard-0000" in last_line(lost.end())
    elif damage == "truncated":
        lost.end()
        assert lost.process.returncode == -signal.SIGBUS  # the system's answer to reading what is mapped and gone
    else:
        lost.end(signal.SIGKILL)  # what is mapped stays readable, and the run goes on
    assert checkpoints_are_whole(lost.folder)
    problem = "is torn" if damage == "truncated" else "is missing"
    assert problem in last_line(lost.finish(status=1))
