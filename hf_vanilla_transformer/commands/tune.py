"""`vanilla-transformer tune`: search for better training settings."""

from collections.abc import Sequence

from .console import say

HELP = "search for better training settings"


def run(argv: Sequence[str]) -> None:
    """Run a range test or a search, and print its table on stdout."""
    from ..study.experiment import TuneArguments
    from ..study.tuning import tune
    from ..training.recipes import parse_arguments

    model, data, args, tuning = parse_arguments(argv, "tune", "Search for better training settings.", TuneArguments)
    tune(tuning, model, data, args, say)
