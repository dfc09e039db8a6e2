"""Run the tasks of a corpus job: in processes of this machine, on a Ray cluster, or as an element of a job array.

A job is a list of independent, deterministic tasks. Each writes its files atomically, so that any process may run a
task again after an interruption.
"""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from types import ModuleType
from typing import TypeVar

from ...commands.console import UsageError
from ...data.cores import available_cores
from ...data.workers import end_with_parent
from ...files import import_extra
from ...flags import Flags, option, positive

Task = TypeVar("Task")
Result = TypeVar("Result")
RAY_WINDOW = 10_000  # maximum number of tasks that are submitted to Ray at a time
RUN_AGAIN = "run the same command again to resume"
SHARED_DISK_DELAY = 60.0  # seconds after which a network file system shows what another node has written


@dataclass(kw_only=True)
class RunnerFlags(Flags):
    """Where the tasks of a corpus job run.

    Args:
        workers: processes on this machine (default: one per GPU, or per --threads cores)
        threads: threads per worker
        ray: run on this Ray cluster instead, such as 10.0.0.1:6379 or auto (extra: cluster)
        task: run every N-th task from task I on: element I of a job array
        tasks: number of elements of the job array
    """

    workers: int | None = option(None, parse=positive)
    threads: int = option(1, parse=positive)
    ray: str | None = option(None, metavar="ADDRESS")
    task: int | None = option(None, metavar="I")
    tasks: int | None = option(None, parse=positive, metavar="N")


@dataclass(kw_only=True)
class Runner(RunnerFlags):
    """Where tasks run, as the flags say.

    Args:
        use_gpus: whether each worker gets a GPU of its own, if there are any.

    Raises:
        UsageError: if the flags contradict each other.
    """

    use_gpus: bool = False

    def __post_init__(self):
        if self.ray and (self.workers or self.tasks):
            raise UsageError("--ray cannot be combined with --workers, --task or --tasks.")
        if (self.task is None) != (self.tasks is None):
            raise UsageError("--task and --tasks belong together: --task I --tasks N, with I from 0 to N - 1.")
        index, count = self.share
        if not 0 <= index < count:
            raise UsageError(f"--task must be from 0 to {count - 1} with --tasks {count}, got {index}.")

    @property
    def share(self) -> tuple[int, int]:
        """The index and the number of elements of the job array, of which each runs every n-th task."""
        return self.task or 0, self.tasks or 1

    @cached_property
    def gpus(self) -> int:
        """The number of GPUs of this machine that workers use."""
        import torch  # slow to import

        return torch.cuda.device_count() if self.use_gpus else 0

    @property
    def processes(self) -> int:
        """The number of workers on this machine."""
        return self.workers or self.gpus or max(1, available_cores() // self.threads)

    def describe(self) -> str:
        """Return where tasks run, such as "2 workers of 1 thread each"."""
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        if self.ray:
            return f"a Ray cluster, {threads} per task"
        count = self.processes
        devices = f", on {self.gpus} GPU{'s' if self.gpus > 1 else ''}" if self.gpus else ""
        return f"{count} worker{'s of' if count > 1 else ' of'} {threads}{' each' if count > 1 else ''}{devices}"

    def missing(self, tasks: Sequence[Task], is_done: Callable[[Task], bool]) -> list[Task]:
        """Return the tasks of this runner's share that are not done."""
        index, count = self.share
        return [task for task in tasks[index::count] if not is_done(task)]

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], is_done: Callable[[Task], bool]
    ) -> Iterator[Result]:
        """Run the tasks of this runner's share that are not done, and yield their results as they finish.

        Args:
            function: runs a task and returns its result; it is pickled, and so are tasks and results.

        Raises:
            OSError: if a worker process is lost, or the Ray cluster cannot be reached.
            Exception: the first error of a task; tasks that have not started are then cancelled.
        """
        missing = self.missing(tasks, is_done)
        if not missing:
            return iter(())
        if self.ray:
            return self._run_on_ray(function, missing)
        if min(self.processes, len(missing)) == 1:
            # in this process, which spares the start of another one
            return (call(function, self.threads, task) for task in missing)
        return self._run_in_processes(function, missing)

    def _run_in_processes(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        # a forked process cannot use CUDA, nor torch's threads
        context = get_context("spawn")
        started = context.Value("i", 0)
        count = min(self.processes, len(tasks))
        pool = ProcessPoolExecutor(count, context, _start_worker, (started, self.gpus))
        try:
            futures = [pool.submit(call, function, self.threads, task) for task in tasks]
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool:
            raise OSError(
                f"A worker process was killed, possibly out of memory; {RUN_AGAIN}, with fewer --workers if memory is "
                "short. Finished tasks are kept."
            ) from None
        finally:
            # waits for the tasks that are running, whose files are then kept
            pool.shutdown(cancel_futures=True)

    def _run_on_ray(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        ray = import_extra("ray", "cluster")
        assert self.ray is not None
        _check_address(self.ray)
        try:
            ray.init(self.ray, log_to_driver=False, logging_level="ERROR")
        except (RuntimeError, ConnectionError, ray.exceptions.RayError) as error:
            raise OSError(f"Cannot use the Ray cluster at {self.ray}: {_first_line(error)}") from None
        try:
            gpu = self.use_gpus and any(node.get("GPU", 0) >= 1 for node in _nodes(ray))
            # Without max_calls=0, a task with a GPU ends its process, which has loaded the model.
            options = {"num_cpus": self.threads, "num_gpus": int(gpu), "max_retries": -1, "max_calls": 0}
            remote = ray.remote(**options)(call)
            self._check_nodes(_nodes(ray), gpu)
            waiting = list(reversed(tasks))
            # a window, because Ray keeps every submitted task in the memory of this process
            running: list[object] = []
            while waiting or running:
                while waiting and len(running) < RAY_WINDOW:
                    running.append(remote.remote(function, self.threads, waiting.pop()))
                finished, running = ray.wait(running, num_returns=1, timeout=60)
                if not finished:
                    # perhaps a node has gone
                    self._check_nodes(_nodes(ray), gpu)
                yield from ray.get(finished)
        except ray.exceptions.RayTaskError as error:
            # what the task raised, as if it had run here
            raise (error.cause or error) from None
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise OSError(f"The Ray cluster at {self.ray} failed ({_first_line(error)}); {RUN_AGAIN}.") from None
        finally:
            ray.shutdown()

    def _check_nodes(self, nodes: list[dict[str, float]], gpu: bool) -> None:
        """Check that a node can run a task; Ray would wait indefinitely for one that can.

        Raises:
            OSError: if none can.
        """
        if not any(node.get("CPU", 0) >= self.threads and node.get("GPU", 0) >= gpu for node in nodes):
            needed = f"{self.threads} CPU{'s' if self.threads > 1 else ''}{' and a GPU' if gpu else ''}"
            raise OSError(f"No node of the Ray cluster at {self.ray} has {needed}, which every task needs.")


def _nodes(ray: ModuleType) -> list[dict[str, float]]:
    """Return the resources of the nodes that are alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def call(function: Callable[[Task], Result], threads: int, task: Task) -> Result:
    """Run a task with a number of threads, and restore the previous number."""
    # slow to import
    from accelerate.utils import patch_environment

    from ...inference.hardware import use_threads

    # tokenizers would use all cores
    with use_threads(threads), patch_environment(TOKENIZERS_PARALLELISM="true" if threads > 1 else "false"):
        return function(task)


def _start_worker(started: "Synchronized[int]", gpus: int) -> None:
    """Prepare a worker process: choose its GPU, and let it end with its parent."""
    with started.get_lock():
        number = started.value
        started.value += 1
    if gpus:
        # before anything imports CUDA, which reads the variable once
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[number % gpus]
    # on Ctrl-C, the main process prints the message
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent()


def _check_address(address: str) -> None:
    """Check that something answers at an address such as 10.0.0.1:6379, because Ray itself takes minutes to give up.

    Raises:
        OSError: if nothing does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto" or "local"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise OSError(
            f"Nothing answers at the Ray address {address} ({_first_line(error)}); start Ray there, or correct --ray."
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait up to `seconds` for a condition, and return whether it holds."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.5)
    return holds
