"""`vanilla-transformer tune`: search for better hyperparameters."""

from collections.abc import Sequence
from functools import partial

from ...commands.console import say


def run(argv: Sequence[str]) -> None:
    """Run a search, and print its table to stdout."""
    from ...training.recipes import parse_arguments
    from .experiment import TuneArguments, run_experiment
    from .hyperparameter_search import hyperparameter_search

    description = "Search for better hyperparameters with Optuna."
    recipe, tuning = parse_arguments(argv, "vanilla-transformer tune", description, TuneArguments)
    run_experiment(partial(hyperparameter_search, tuning=tuning), recipe, say)
