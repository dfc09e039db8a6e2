"""Train models from nothing on the same text with different settings, for `vanilla-transformer tune`."""

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import set_seed

from ..data.batching import Seq2SeqCollator
from ..data.shards import is_prepared
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..training.arguments import DataArguments, ModelArguments, option
from ..training.settings import resolve_config, run_settings
from ..training.text import tokenize_text
from ..training.trainer import VanillaTransformerTrainer

METHODS = ("bayesian", "random", "range")
DROPOUTS = (0.0, 0.5)  # the range of a search


@dataclass
class TuneArguments:
    """How to search for better settings; all other flags are those of `train` and say where the search starts."""

    _argument_group_name = "tuning"

    method: str = option("'bayesian' or 'random' search, or 'range' for a learning-rate range test.", "bayesian")
    trials: int = option("Trials of a search; those in the study file count.", 20)
    minutes: float | None = option("Begin no trial later than this many minutes after the start.")

    def __post_init__(self):
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}.")
        if self.trials < 1:
            raise ValueError(f"trials must be at least 1, got {self.trials}.")


class TuningTrainer(VanillaTransformerTrainer):
    """Train only to measure: write no checkpoints, and on SIGTERM end `tune` as Ctrl-C does."""

    def train(self, *args, **kwargs):
        result = super().train(*args, **kwargs)
        if self.safeguards.stopped:
            raise KeyboardInterrupt
        return result

    def _save_checkpoint(self, model, trial):
        pass


class Experiment:
    """The text, read and tokenised once, on which models are trained from nothing with different settings.

    Raises:
        ValueError: if there is no validation text.
    """

    def __init__(self, model: ModelArguments, data: DataArguments, args: Any, report: Callable[[str], Any]):
        self.args, self.report = args, report
        self.measure = args.metric_for_best_model.removeprefix("eval_")
        self.config, data = resolve_config(model, data)
        self.settings = run_settings(self.config, model, data, args)
        tokenizer_path = data.train_file if is_prepared(data.train_file) else model.tokenizer_name
        with tempfile.TemporaryDirectory() as scratch:  # the output folder may hold a model with its own vocabulary
            elsewhere = copy.copy(args)
            elsewhere.output_dir = scratch
            self.tokenizer, self.tokens = tokenize_text(model, data, elsewhere, self.config, tokenizer_path, report)
        if "validation" not in self.tokens:
            raise ValueError("Settings are compared on a validation text: give --validation_file.")
        self.config.vocab_size = len(self.tokenizer)
        if args.warmup_steps > args.max_steps:
            report(f"Trainings end within their warm-up of {args.warmup_steps:g} updates: set --warmup_steps.")
        args.save_strategy, args.load_best_model_at_end, args.early_stopping_patience = "no", False, None

    def model(self, trial: Any = None) -> VanillaTransformerForConditionalGeneration:
        """Return an untrained model, with the weights that `train` starts from with this seed."""
        if trial is not None:
            self.config.dropout = trial.suggest_float("dropout", *DROPOUTS)
        set_seed(self.args.seed)
        model = VanillaTransformerForConditionalGeneration(self.config)
        set_seed(self.args.seed)
        return model

    def trainer(self, kind: type[TuningTrainer] = TuningTrainer) -> Any:
        """Return a trainer that builds a new model for every training."""
        return kind(
            None,
            self.args,
            Seq2SeqCollator(self.config.pad_token_id, self.config.decoder_start_token_id),
            model_init=self.model,
            train_dataset=self.tokens["train"],
            eval_dataset=self.tokens["validation"],
            processing_class=self.tokenizer,
        )
