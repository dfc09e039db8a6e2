"""Worker processes that end with their parent; those that supply batches outlive SIGTERM for a while."""

import os
import signal
import threading
from multiprocessing import parent_process

SECONDS_AFTER_SIGTERM = 30.0  # by default, Slurm and Kubernetes wait as long before they kill a job


def end_with_parent() -> None:
    """End this process when its parent ends, even if the parent is killed, and even if that was before this call.

    Without this, a worker of a pool would wait for tasks indefinitely. A worker of a `DataLoader` also checks for its
    parent, but then still waits until its results have been read, and it notices nothing if the parent ended before
    the worker's loop began. A forked worker also waits for the end of those that its parent forked later.
    """

    def wait() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def prepare_data_worker(worker: int) -> None:
    """Make worker number `worker` of a `DataLoader` end with its parent, and some time after SIGTERM from anyone else.

    Clusters send the signal to all processes of a job, and the one that trains needs batches until its update ends.
    A worker that is not forked may end at once, because it started threads as it imported NumPy.
    """
    # missing on macOS and Windows
    if hasattr(signal, "sigwaitinfo"):
        # before any thread starts, because threads inherit it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_after_sigterm, daemon=True).start()
    end_with_parent()


def _exit_after_sigterm() -> None:
    parent = parent_process()
    assert parent is not None
    # not `os.getppid`, which is the server of forks where there is one
    if signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
        signal.sigtimedwait({signal.SIGTERM}, SECONDS_AFTER_SIGTERM)
    # 0, because torch raises an error in the parent for any other status
    os._exit(0)
