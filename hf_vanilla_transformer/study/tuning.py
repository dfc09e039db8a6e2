"""`vanilla-transformer tune`: a learning-rate range test or a hyperparameter search (requires the extra `tune`)."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

from ..files import import_extra
from ..training.arguments import NOAM, DataArguments, ModelArguments, VanillaTransformerTrainingArguments
from ..training.safeguards import explain_failures, one_run
from .experiment import Experiment, TuneArguments
from .hyperparameter_search import hyperparameter_search
from .range_test import range_test


def tune(
    tuning: TuneArguments,
    model: ModelArguments,
    data: DataArguments,
    args: VanillaTransformerTrainingArguments,
    report: Callable[[str], None],
) -> None:
    """Run `tuning.method`: print the table of results to stdout, and write plots and JSON into `args.output_dir`.

    Raises:
        ImportError: if matplotlib, or for a search Optuna, is not installed.
        ValueError: if `tune` does not support the settings.
    """
    faults = {
        "runs in a single process: start it without a distributed launcher": args.world_size > 1,
        "trains from scratch: remove --model_name_or_path": model.model_name_or_path,
        "trains from scratch: remove --resume_from_checkpoint": args.resume_from_checkpoint,
        "supports only the noam schedule: remove --lr_scheduler_type": args.lr_scheduler_type != NOAM,
        # a prepared stream has batches of one size
        "tries several batch sizes, so it cannot stream the text: remove --streaming": data.streaming,
        # trials of equal length can be compared, and the schedule of a trial is known in advance
        "needs a fixed number of updates per training run: pass --max_steps": args.max_steps < 1,
    }
    for fault, present in faults.items():
        if present:
            raise ValueError(f"tune {fault}.")
    assert args.output_dir is not None
    folder = Path(args.output_dir)
    # fail before hours of training if matplotlib is missing
    import_extra("matplotlib.figure", "plots")
    with one_run(folder), explain_failures():
        experiment = Experiment(model, data, args, report)
        with redirect_stdout(sys.stderr):
            # the Trainer prints its log to stdout
            if tuning.method == "range":
                table = range_test(experiment, folder)
            else:
                table = hyperparameter_search(experiment, folder, tuning)
    print(table)
