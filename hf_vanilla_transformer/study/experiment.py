"""Train models from scratch on the same text with different settings, for `vanilla-transformer tune`."""

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from transformers import set_seed

from ..data.batching import Seq2SeqCollator
from ..data.tokenizer import follow_tokenizer
from ..flags import check_values, option
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..training.arguments import DataArguments, ModelArguments, VanillaTransformerTrainingArguments, short_warmup
from ..training.settings import resolve_config, run_settings
from ..training.text import prepared_folder, tokenize_text
from ..training.trainer import VanillaTransformerTrainer

if TYPE_CHECKING:
    from optuna import Trial

METHODS = ("bayesian", "random", "range")
DROPOUTS = (0.0, 0.5)  # search range


@dataclass
class TuneArguments:
    """Settings of `tune` itself; all other flags are those of `train` and define the starting point of the search."""

    TITLE: ClassVar[str] = "tuning"

    method: str = option(
        "'bayesian' or 'random' for a search, 'range' for a learning-rate range test.", "bayesian", choices=METHODS
    )
    trials: int = option("Number of trials of a search, including finished trials of a resumed study.", 20)
    minutes: float | None = option("Start no new trial after this many minutes.", None)

    def __post_init__(self):
        check_values(self)
        if self.trials < 1:
            raise ValueError(f"trials must be at least 1, got {self.trials}.")


class TuningTrainer(VanillaTransformerTrainer):
    """A trainer that writes no checkpoints and raises KeyboardInterrupt on SIGTERM, so `tune` ends as on Ctrl-C."""

    def train(self, *args, **kwargs):
        result = super().train(*args, **kwargs)
        if self.safeguards.stopped:
            raise KeyboardInterrupt
        return result

    def _save_checkpoint(self, model, trial):
        # `tune` keeps settings, not weights; `Trainer` would save each trial under a folder of its own
        pass


_Trainer = TypeVar("_Trainer", bound=TuningTrainer)


class Experiment:
    """A text, read and tokenised once, for training models from scratch with different settings.

    Raises:
        ValueError: if there is no validation text.
    """

    def __init__(
        self,
        model: ModelArguments,
        data: DataArguments,
        args: VanillaTransformerTrainingArguments,
        report: Callable[[str], None],
    ):
        self.args = args
        self.report = report
        # set by the arguments' __post_init__
        assert args.metric_for_best_model is not None
        self.measure = args.metric_for_best_model.removeprefix("eval_")
        self.config, data = resolve_config(model, data)
        self.settings = run_settings(self.config, model, data, args)

        tokenizer_path = prepared_folder(data) or model.tokenizer_name
        # A learned vocabulary is saved in the output folder, which may hold a model with its own vocabulary.
        with tempfile.TemporaryDirectory() as scratch:
            scratch_args = copy.copy(args)
            scratch_args.output_dir = scratch
            self.text = tokenize_text(model, data, scratch_args, self.config, tokenizer_path, report)
        self.settings |= self.text.contents
        if self.text.validation is None:
            raise ValueError("tune compares settings on a validation text: pass --validation_file.")
        follow_tokenizer(self.config, self.text.tokenizer)
        if args.warmup_steps > args.max_steps:
            report(short_warmup(args))
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

    def trainer(self, trainer_class: type[_Trainer]) -> _Trainer:
        """Return a trainer that builds a new model for each training run."""
        # `follow_tokenizer` has set both
        assert self.config.pad_token_id is not None
        assert self.config.decoder_start_token_id is not None
        return trainer_class(
            None,
            self.args,
            Seq2SeqCollator(self.config.pad_token_id, self.config.decoder_start_token_id),
            model_init=self.model,
            train_dataset=self.text.train,
            eval_dataset=self.text.validation,
            processing_class=self.text.tokenizer,
        )
