"""Worker processes of data loaders: when they end, and when they do not."""

import multiprocessing
import os
import signal
import subprocess
import time

import pytest
from killed_parent import workers_that_end
from torch.utils.data import DataLoader

from hf_vanilla_transformer.data import workers
from hf_vanilla_transformer.data.workers import prepare_data_worker

ROWS = list(range(100))


def _start(count: int, init=prepare_data_worker, method="fork"):
    """Return the batches of a loader, one per row, and its worker processes."""
    before = set(multiprocessing.active_children())
    loader = DataLoader(ROWS, None, num_workers=count, worker_init_fn=init, multiprocessing_context=method)
    batches = iter(loader)
    return batches, set(multiprocessing.active_children()) - before


@pytest.mark.parametrize("seconds", [1000.0, 0.0])
def test_workers_supply_batches_for_some_time_after_sigterm(monkeypatch, seconds):
    monkeypatch.setattr(workers, "SECONDS_AFTER_SIGTERM", seconds)
    batches, processes = _start(2)
    read = [next(batches), next(batches)]  # one by each worker, which has begun by now
    # from another process, as a cluster sends it
    subprocess.run(["kill", "-TERM", *(str(process.pid) for process in processes)], check=True)
    if seconds:
        assert [*read, *batches] == ROWS
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def _prepare_to_outlive_sigterm(worker: int) -> None:
    workers.SECONDS_AFTER_SIGTERM = 1000.0
    prepare_data_worker(worker)


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_workers_end_as_soon_as_their_own_parent_terminates_them(method):
    batches, (process,) = _start(1, _prepare_to_outlive_sigterm, method)
    next(batches)
    process.terminate()
    process.join(60)
    # Without fork, NumPy may have started threads earlier, which do not block the signal
    assert process.exitcode in ((0,) if method == "fork" else (0, -signal.SIGTERM))


def _start_after_parent_ended(worker: int) -> None:
    parent = multiprocessing.parent_process()
    while os.getppid() == parent.pid:
        time.sleep(0.01)
    prepare_data_worker(worker)


@pytest.mark.parametrize("init", [prepare_data_worker, _start_after_parent_ended])
def test_workers_end_with_a_parent_that_is_killed_even_as_they_start(init):
    assert workers_that_end(_start, 2, init) == (2, True)
