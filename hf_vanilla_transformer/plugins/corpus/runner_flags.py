"""Where the tasks of a corpus job run: the flags, and the runner that they describe."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...commands.console import UsageError
from ...flags import option, positive

if TYPE_CHECKING:
    from .runner import Runner


@dataclass(kw_only=True)
class RunnerFlags:
    """Where the tasks of a corpus job run."""

    workers: int | None = option(
        "processes on this machine (default: one per GPU, or per --threads cores)", None, parse=positive
    )
    threads: int = option("threads per worker", 1, parse=positive)
    ray: str | None = option(
        "run on this Ray cluster instead, such as 10.0.0.1:6379 or auto (extra: cluster)", None, metavar="ADDRESS"
    )
    task: int | None = option("run every N-th task from task I on: element I of a job array", None, metavar="I")
    tasks: int | None = option("number of elements of the job array", None, parse=positive, metavar="N")

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
