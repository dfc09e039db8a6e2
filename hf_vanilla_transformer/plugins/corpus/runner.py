"""Run the tasks of a corpus job: in processes of this machine, on a Ray cluster, or as an element of a job array.

A job is a list of independent, deterministic tasks. Each writes its files atomically, so that any process may run a
task again after an interruption.
"""

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeVar

from ...data.cores import available_cores
from ...data.formats import DataError, matches
from ...data.workers import end_with_parent
from ...errors import UserError
from ...files import UNFINISHED, JsonObject, check_folder, import_extra, read_json, write_whole

Task = TypeVar("Task")
Result = TypeVar("Result")
RAY_WINDOW = 10_000  # maximum number of tasks that are submitted to Ray at a time
RUN_AGAIN = "run the same command again to resume"
SHARED_DISK_DELAY = 60.0  # seconds after which a network file system shows what another node has written


@dataclass(frozen=True)
class Runner:
    """Where tasks run.

    Args:
        workers: number of processes on this machine; by default one per GPU, or one per `threads` cores.
        threads: threads per worker, of torch and of the other runtimes.
        use_gpus: whether each worker gets a GPU of its own, if there are any.
        ray: address of a Ray cluster that runs the tasks instead of this machine.
        share: (i, n) to run only every n-th task, from index i on, as one of n elements of a job array.
    """

    workers: int | None = None
    threads: int = 1
    use_gpus: bool = False
    ray: str | None = None
    share: tuple[int, int] = (0, 1)

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


class JobFolder(NamedTuple):
    """The folder of a job, whose manifest has its settings and, once every task is done, its totals.

    Args:
        path: absolute path of the folder: new, empty, or of this job.
        manifest: name of the manifest.
        work: name of the subfolder in which tasks note what they have done.
        read: returns the manifest of a folder, checked.
    """

    path: Path
    manifest: str
    work: str
    read: Callable[[Path], JsonObject]

    def resume(
        self,
        settings: JsonObject,
        recorded: Callable[[JsonObject], JsonObject] = itemgetter("settings"),
    ) -> JsonObject | None:
        """Return the manifest of an earlier call for this job, or None if there was none.

        Args:
            settings: everything that determines the output, in types of JSON.
            recorded: returns the settings of an earlier manifest.

        Raises:
            ValueError: if the folder contains anything else, or is a file; for the same job with different settings,
                the message names these.
        """
        if not (self.path / self.manifest).is_file():
            check_folder(self.path)
            own = (self.work, self.manifest)
            if self.path.is_dir() and not all(entry.name.startswith(own) for entry in self.path.iterdir()):
                raise UserError(f"{self.path} is in use: choose a new or empty folder.")
            return None
        manifest = self.read(self.path)
        earlier = recorded(manifest)
        changed = [name for name, value in settings.items() if earlier.get(name) != value]
        if changed:
            raise UserError(
                f'{self.path} contains the output of different text or settings ({", ".join(changed)}; "version" '
                "identifies the code); choose another folder."
            )
        return manifest

    def start(self, settings: JsonObject, **content: object) -> JsonObject:
        """Write the manifest of a new job, with `content`, and return it."""
        (self.path / self.work).mkdir(parents=True, exist_ok=True)
        manifest = {"settings": settings, "whole": False, **content}
        write_json(self.path / self.manifest, manifest)
        return manifest

    def finish(self, manifest: JsonObject, totals: JsonObject) -> JsonObject:
        """Write and return the manifest with the totals of a job whose tasks are all done."""
        manifest = {**manifest, "whole": True, **totals}
        write_json(self.path / self.manifest, manifest)
        self.remove_leftovers()
        return manifest

    def remove_leftovers(self) -> None:
        """Remove what interrupted tasks have left."""
        for left in self.path.rglob(f"*{UNFINISHED}"):
            # another process may be removing them
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def is_complete(file: Path, note: Path, expected: JsonObject) -> bool:
    """Return whether a task has written its file, whose size is recorded under "bytes" in a note written after it.

    Args:
        expected: what a note must have in addition, in the words of `formats.matches`; a damaged one is written again.
    """
    if not (note.is_file() and file.is_file()):
        return False
    with suppress(ValueError):
        return read_note(note, {"bytes": int, **expected})["bytes"] == file.stat().st_size
    return False


def read_note(note: Path, expected: JsonObject) -> JsonObject:
    """Return what a task has noted about its files.

    Args:
        expected: what a note must have, in the words of `formats.matches`.

    Raises:
        DataError: if it does not.
    """
    content = read_json(note)
    if not matches(content, expected):
        raise damaged(note)
    return content


def damaged(note: Path) -> DataError:
    """Return the error for a note that cannot be true."""
    return DataError(f"{note} is damaged; start the job again in a new folder.")


def write_json(file: Path, content: JsonObject) -> None:
    """Write a JSON file atomically, even if several processes write it at once."""
    write_whole(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n", shared=True)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait up to `seconds` for a condition, and return whether it holds."""
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.5)
    return holds
