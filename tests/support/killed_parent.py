"""Kill a process, and see whether those that it has forked end, too."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

SECONDS = 120.0  # for what takes about one


def _run_and_pause(function: Callable[..., Any], args: tuple, pids) -> None:
    kept = function(*args)  # deleting what the function returns may end its workers
    pids.send([child.pid for child in multiprocessing.active_children()])
    signal.pause()
    del kept


def workers_that_end(function: Callable[..., Any], *args) -> tuple[int, bool]:
    """Call a function in a new process, and kill that.

    Returns:
        how many processes the function has started, and whether they have ended.
    """
    fork = multiprocessing.get_context("fork")
    found, pids = fork.Pipe(duplex=False)
    parent = fork.Process(target=_run_and_pause, args=(function, args, pids))
    parent.start()
    pids.close()
    workers = []
    try:
        workers = found.recv()
        parent.kill()
        # The workers inherited the pipe, so it reports its end once the last of them is gone, reaped or not
        while found.poll(SECONDS):
            found.recv()
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        return len(workers), False
    except EOFError:
        return len(workers), True
    finally:
        parent.kill()
        parent.join()
