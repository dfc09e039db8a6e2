"""`vanilla-transformer train`: train a model on parallel text, or continue training one."""

from collections.abc import Sequence


def run(argv: Sequence[str]) -> None:
    """Train a model and save it to its output folder."""
    from accelerate.state import PartialState

    from ..training.recipes import parse_arguments
    from ..training.run import run_train

    (recipe,) = parse_arguments(argv)
    run_train(recipe)
    # its threads, if there is one, can abort an interpreter that is ending
    PartialState().destroy_process_group()
