"""`vanilla-transformer tune`: a learning-rate range test, or a search for better settings (extra `tune`)."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from ..training.arguments import NOAM, DataArguments, ModelArguments, VanillaTransformerTrainingArguments
from ..training.safeguards import explain_failures, one_run
from . import plots
from .experiment import Experiment, TuneArguments
from .hyperparameter_search import hyperparameter_search
from .range_test import range_test


def tune(
    tuning: TuneArguments,
    model: ModelArguments,
    data: DataArguments,
    args: VanillaTransformerTrainingArguments,
    report: Callable[[str], Any],
) -> None:
    """Run `tuning.method` in `args.output_dir`: tables go to stdout, pictures and figures into the folder.

    Raises:
        ImportError: if optuna or matplotlib is missing.
        ValueError: for settings that cannot be tuned, saying why.
    """
    _check(model, data, args)
    assert args.output_dir is not None
    folder = Path(args.output_dir)
    plots.figure_class()  # reports a missing package before hours of training
    with one_run(folder), explain_failures():
        experiment = Experiment(model, data, args, report)
        with redirect_stdout(sys.stderr):  # where the Trainer's log goes
            if tuning.method == "range":
                table = range_test(experiment, folder)
            else:
                table = hyperparameter_search(experiment, folder, tuning)
    print(table)


def _check(model: ModelArguments, data: DataArguments, args: VanillaTransformerTrainingArguments) -> None:
    if args.world_size > 1:
        raise ValueError("tune runs in one process.")
    if model.model_name_or_path:
        raise ValueError("tune trains from nothing: leave out --model_name_or_path.")
    if args.lr_scheduler_type != NOAM:
        raise ValueError("tune supports only the noam schedule: leave out --lr_scheduler_type.")
    if args.resume_from_checkpoint:
        raise ValueError("tune trains from nothing: leave out --resume_from_checkpoint.")
    if data.streaming:
        raise ValueError("tune tries batches of several sizes: leave out --streaming.")
    if args.max_steps < 1:
        raise ValueError("tune compares trainings of equal length: give their updates as --max_steps.")
