"""Where the tasks of a corpus job run: the flags, and the runner that they describe."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...commands.console import UsageError
from ...flags import Flags, option, positive

if TYPE_CHECKING:
    from .runner import Runner


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

    def make_runner(self, use_gpus: bool = False) -> "Runner":
        """Return the runner that the flags describe.

        Args:
            use_gpus: whether tasks use a GPU if there is one.

        Raises:
            UsageError: if the flags contradict each other.
        """
        from .runner import Runner

        if self.ray and (self.workers or self.tasks):
            raise UsageError("--ray cannot be combined with --workers, --task or --tasks.")
        if (self.task is None) != (self.tasks is None):
            raise UsageError("--task and --tasks belong together: --task I --tasks N, with I from 0 to N - 1.")
        task = self.task or 0
        tasks = self.tasks or 1
        if not 0 <= task < tasks:
            raise UsageError(f"--task must be from 0 to {tasks - 1} with --tasks {tasks}, got {task}.")
        return Runner(self.workers, self.threads, use_gpus, self.ray, (task, tasks))
