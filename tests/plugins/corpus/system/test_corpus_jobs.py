"""Corpus jobs whose workers are killed: whatever runs the tasks, the output is that of one undisturbed process."""

import signal
import subprocess
from collections.abc import Iterator

import pytest
from clusters import RayNodes, find_processes, wait_until
from corpus_jobs import KILLS, disturb, tasks_done
from training_runs import descendants, send_signal

pytestmark = pytest.mark.timeout(1800)  # seconds; on two idle cores, each test takes less than a minute


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    """A Ray cluster of two nodes, for one test: after the loss of a node, it is slow for a minute."""
    cluster = RayNodes()
    yield cluster
    cluster.stop()


def pool_workers(parent: int) -> list[int]:
    return [pid for pid in descendants(parent) if pid in find_processes("spawn_main")]


@pytest.mark.parametrize("name", ["translate", "prepare"])
def test_workers_on_this_machine_may_be_killed(name, jobs, expected, tmp_path):
    kills, attempts = KILLS, 0
    folder = tmp_path / "out"
    while not jobs[name].is_whole(folder):
        command = jobs[name].command(folder, "--workers", "2")
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            kills = disturb(process, lambda: pool_workers(process.pid), folder, kills)
            errors = process.stderr.read()
        if process.returncode:
            assert "A worker process was killed" in errors.splitlines()[-1]
            assert "Traceback" not in errors
        attempts += 1
        assert attempts <= KILLS + 1
    assert kills < KILLS
    assert jobs[name].output(folder) == expected(name)


@pytest.mark.parametrize("name", ["translate", "prepare"])
def test_ray_workers_may_be_killed_and_a_node_removed(name, jobs, expected, nodes, tmp_path):
    folder = tmp_path / "out"
    command = jobs[name].command(folder, "--ray", nodes.address)
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:

        def working_after(tasks: int) -> bool:
            return process.poll() is not None or (tasks_done(folder) > tasks and bool(find_processes("ray::call")))

        for tasks in (0, 3):
            wait_until(lambda tasks=tasks: working_after(tasks), 600)
            send_signal(find_processes("ray::call")[:1], signal.SIGKILL)
        wait_until(lambda: working_after(6), 600)
        nodes.remove_node()
        errors = process.stderr.read()
    assert process.returncode == 0, errors[-2000:]
    assert jobs[name].output(folder) == expected(name)


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(("name", "runner"), [("translate", "one"), ("prepare", "two"), ("translate", "ray")])
def test_a_full_disk_is_one_line_under_every_runner(name, runner, jobs, request, small_disk):
    flags = {"one": ("--workers", "1"), "two": ("--workers", "2")}.get(runner)
    flags = flags or ("--ray", request.getfixturevalue("nodes").address)
    command = jobs[name].command(small_disk / "out", *flags)
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert run.returncode == 1, run.stderr[-2000:]
    assert "Traceback" not in run.stderr
    assert "No space left on device" in run.stderr.splitlines()[-1]
