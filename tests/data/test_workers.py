"""Worker processes of data loaders: when they end, and when they do not."""

import multiprocessing
import os
import signal
import subprocess
import time

import psutil
import pytest
from torch.utils.data import DataLoader

from hf_vanilla_transformer.data import workers
from hf_vanilla_transformer.data.workers import prepare_data_worker

ROWS = list(range(100))


def start(count: int, init=prepare_data_worker):
    """Return the batches of a loader, one per row, and its worker processes."""
    before = set(multiprocessing.active_children())
    batches = iter(DataLoader(ROWS, batch_size=None, num_workers=count, worker_init_fn=init))
    return batches, set(multiprocessing.active_children()) - before


@pytest.mark.parametrize("seconds", [1000.0, 0.0])
def test_workers_supply_batches_for_some_time_after_sigterm(monkeypatch, seconds):
    monkeypatch.setattr(workers, "SECONDS_AFTER_SIGTERM", seconds)
    batches, processes = start(2)
    read = [next(batches), next(batches)]  # one by each worker, which has begun by now
    # from another process, as a cluster sends it
    subprocess.run(["kill", "-TERM", *(str(process.pid) for process in processes)], check=True)
    if seconds:
        assert [*read, *batches] == ROWS
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def test_workers_end_as_soon_as_their_own_parent_terminates_them(monkeypatch):
    monkeypatch.setattr(workers, "SECONDS_AFTER_SIGTERM", 1000.0)
    batches, (process,) = start(1)
    next(batches)
    process.terminate()
    process.join(60)
    assert process.exitcode == 0


def _start_after_parent_ended(worker: int) -> None:
    parent = multiprocessing.parent_process()
    while os.getppid() == parent.pid:
        time.sleep(0.01)
    prepare_data_worker(worker)


def _start_and_pause(init, pids) -> None:
    batches, processes = start(2, init)
    pids.send([process.pid for process in processes])
    signal.pause()
    next(batches)


@pytest.mark.parametrize("init", [prepare_data_worker, _start_after_parent_ended])
def test_workers_end_with_a_parent_that_is_killed_even_as_they_start(init):
    fork = multiprocessing.get_context("fork")
    found, pids = fork.Pipe()
    parent = fork.Process(target=_start_and_pause, args=(init, pids))
    parent.start()
    processes = [psutil.Process(pid) for pid in found.recv()]
    parent.kill()
    gone, alive = psutil.wait_procs(processes, timeout=120)
    for process in alive:
        process.kill()
    assert len(gone) == 2
    parent.join()
