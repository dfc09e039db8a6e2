"""Where the tasks of a corpus job run, from the flags."""

import argparse
from typing import TYPE_CHECKING

from .console import UsageError

if TYPE_CHECKING:
    from ..corpus.runner import Runner


def make_runner(args: argparse.Namespace, use_gpus: bool = False) -> "Runner":
    """Return the runner that the flags of `flags.add_runner` describe.

    Args:
        use_gpus: whether tasks use a GPU if there is one.

    Raises:
        UsageError: if the flags contradict each other.
    """
    from ..corpus.runner import Runner

    if (args.task is None) != (args.tasks is None):
        raise UsageError("--task and --tasks belong together: --task I --tasks N, with I from 0 to N - 1.")
    if args.ray and (args.workers or args.tasks):
        raise UsageError("--ray cannot be combined with --workers, --task or --tasks.")
    share = (0, 1) if args.tasks is None else (args.task, args.tasks)
    if not 0 <= share[0] < share[1]:
        raise UsageError(f"--task must be from 0 to {share[1] - 1} with --tasks {share[1]}, got {share[0]}.")
    return Runner(args.workers, args.threads, use_gpus, args.ray, share)
