"""`vanilla-transformer tune`: search for better hyperparameters."""

from collections.abc import Sequence
from functools import partial

from .console import say


def run(argv: Sequence[str]) -> None:
    """Run a search, and print its table to stdout."""
    from ..study.experiment import TuneArguments, run_experiment
    from ..study.hyperparameter_search import hyperparameter_search
    from ..training.recipes import parse_arguments

    description = "Search for better hyperparameters with Optuna."
    model, data, args, tuning = parse_arguments(argv, "vanilla-transformer tune", description, TuneArguments)
    run_experiment(partial(hyperparameter_search, tuning=tuning), model, data, args, say)
