"""Train models from scratch on the same text with different settings, for `tune` and scripts/study/range_test.py."""

import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transformers import set_seed

from ...data.tokenizer import follow_tokenizer
from ...errors import UserError
from ...files import writing
from ...flags import Flags, option, positive, positive_number
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...training.arguments import NOAM, Recipe, check_reporters
from ...training.progress import print_lines, short_warmup
from ...training.run import one_run
from ...training.text import prepared_folder, tokenize_text
from ...training.trainer import VanillaTransformerTrainer

if TYPE_CHECKING:
    from optuna import Trial

METHODS = ("bayesian", "random")
DROPOUTS = (0.0, 0.5)  # search range


@dataclass
class TuneArguments(Flags):
    """Settings of `tune` itself; all other flags are those of `train` and define the starting point of the search.

    Args:
        method: How the search chooses settings: 'bayesian' or 'random'.
        trials: Number of trials, including the finished ones of a resumed study.
        minutes: Start no new trial after this many minutes.
    """

    TITLE: ClassVar[str] = "tuning"

    method: str = option("bayesian", choices=METHODS)
    trials: int = option(20, parse=positive)
    minutes: float | None = option(None, parse=positive_number)


class TuningTrainer(VanillaTransformerTrainer):
    """A trainer that writes no checkpoints and raises KeyboardInterrupt on SIGTERM, so `tune` ends as on Ctrl-C."""

    def train(self, *args, **kwargs):
        result = super().train(*args, **kwargs)
        if self.guard.stopped:
            raise KeyboardInterrupt
        return result

    def _save_checkpoint(self, model, trial):
        # `tune` keeps settings, not weights; `Trainer` would save each trial under a folder of its own
        pass


class Experiment:
    """A text, read and tokenised once, for training models from scratch with different settings.

    Raises:
        ValueError: if there is no validation text.
    """

    def __init__(self, recipe: Recipe, report: Callable[[str], None]):
        args = recipe.args
        self.args = args
        self.config = recipe.config
        self.report = report
        self.settings = dict(recipe.settings)
        tokenizer_path = prepared_folder(recipe.data) or recipe.model.tokenizer_name
        # A learned vocabulary is saved in the output folder, which may hold a model with its own vocabulary.
        with tempfile.TemporaryDirectory() as scratch:
            self.text = tokenize_text(recipe, scratch, tokenizer_path, report)
        self.settings |= self.text.contents
        if self.text.validation is None:
            raise UserError("Tuning compares settings on a validation text: pass --validation_file.")
        follow_tokenizer(self.config, self.text.tokenizer)
        if advice := short_warmup(args, args.max_steps):
            report(advice)
        # Both need checkpoints, of which `tune` writes none.
        args.save_strategy = "no"
        args.load_best_model_at_end = False
        args.early_stopping_patience = None

    def model(self, trial: "Trial | None" = None) -> VanillaTransformerForConditionalGeneration:
        """Return an untrained model with the same initial weights as in `train` with this seed."""
        if trial is not None:
            # here, because dropout belongs to the model, and a search space may only change training arguments
            self.config.dropout = trial.suggest_float("dropout", *DROPOUTS)
        set_seed(self.args.seed)
        model = VanillaTransformerForConditionalGeneration(self.config)
        # again, so that dropout and batches do not depend on how many numbers the initial weights took
        set_seed(self.args.seed)
        return model

    def trainer(self, trainer_class: type[TuningTrainer]) -> TuningTrainer:
        """Return a trainer that builds a new model for each training run."""
        trainer = trainer_class(
            args=self.args,
            model_init=self.model,
            train_dataset=self.text.train,
            eval_dataset=self.text.validation,
            processing_class=self.text.tokenizer,
        )
        print_lines(trainer)
        return trainer


def run_experiment(study: Callable[[Experiment, Path], str], recipe: Recipe, report: Callable[[str], None]) -> None:
    """Print the table that `study` returns to stdout; it writes its results into the output folder.

    Raises:
        ValueError: if the settings cannot be tuned.
    """
    _check(recipe)
    folder = Path(recipe.folder)
    # trackers print to stdout, which is for the table
    with one_run(folder), redirect_stdout(sys.stderr):
        experiment = Experiment(recipe, report)
        with writing(folder):
            table = study(experiment, folder)
    print(table)


def _check(recipe: Recipe) -> None:
    """Check that the settings can be tuned.

    Raises:
        ValueError: if they cannot, with the reason.
    """
    args = recipe.args
    check_reporters(args)
    if args.world_size > 1:
        raise UserError("Tuning runs in a single process: start it without a distributed launcher.")
    if recipe.model.model_name_or_path:
        raise UserError("Tuning trains from scratch: remove --model_name_or_path.")
    if args.lr_scheduler_type != NOAM:
        raise UserError("Tuning supports only the noam schedule: remove --lr_scheduler_type.")
    if args.resume_from_checkpoint:
        raise UserError("Tuning trains from scratch: remove --resume_from_checkpoint.")
    # a prepared stream has batches of one size
    if recipe.data.streaming:
        raise UserError("Tuning tries several batch sizes, so it cannot stream the text: remove --streaming.")
    # trials of equal length can be compared
    if args.max_steps < 1:
        raise UserError("Tuning needs a fixed number of updates per training run: pass --max_steps.")
