"""`vanilla-transformer tune`: tune learning rate and other hyperparameters."""

from collections.abc import Sequence

from .console import say

HELP = "tune hyperparameters: a search, or a learning-rate range test"
_DESCRIPTION = "Search for better hyperparameters, or find usable learning rates with a range test."


def run(argv: Sequence[str]) -> None:
    """Run a range test or a search, and print its table to stdout."""
    from ..study.experiment import TuneArguments
    from ..study.tuning import tune
    from ..training.recipes import parse_arguments

    model, data, args, tuning = parse_arguments(argv, "tune", _DESCRIPTION, TuneArguments)
    tune(tuning, model, data, args, say)
