"""Worker processes: none outlives its parent, and those that supply batches outlive SIGTERM for a while."""

import os
import signal
import threading
from multiprocessing import parent_process

SECONDS_AFTER_SIGTERM = 30.0  # by default, Slurm and Kubernetes wait as long before they kill a job


def end_with_parent() -> None:
    """End this process when its parent ends, even if that is killed, and even if it is killed before this call.

    Without this, a worker of a pool would wait for tasks indefinitely. A worker of a `DataLoader` also looks for its
    parent, but not while it waits to send a result, and in vain if the parent ended before the worker had started.
    """

    def wait() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def prepare_data_worker(worker: int) -> None:
    """Make worker number `worker` of a `DataLoader` end with its parent, and some time after SIGTERM by anyone else.

    Clusters send the signal to all processes of a job, and the one that trains needs batches until its update ends.
    """
    # missing on macOS and Windows
    if hasattr(signal, "sigwaitinfo"):
        # before the first thread starts, which would not inherit it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_after_sigterm, daemon=True).start()
    end_with_parent()


def _exit_after_sigterm() -> None:
    if signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        signal.sigtimedwait({signal.SIGTERM}, SECONDS_AFTER_SIGTERM)
    # 0, because torch raises an error in the parent for any other status
    os._exit(0)
