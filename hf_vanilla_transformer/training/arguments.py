"""The dataclasses behind the command line; each field is a flag, its help the flag's."""

import math
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from transformers import Seq2SeqTrainingArguments

from ..inference.metrics import check_tokenization

NOAM = "noam"

# Flags of Seq2SeqTrainingArguments that change nothing here, and why: only their defaults are accepted
_WITHOUT_EFFECT = {
    "auto_find_batch_size": "batches are sized by max_tokens",
    "dataloader_drop_last": "every epoch brings every pair",
    "length_column_name": "batches hold pairs of similar length in any case",
    "neftune_noise_alpha": "the embeddings take no noise",
    "save_only_model": "no run resumes from a checkpoint without its optimizer; a lower save_total_limit saves room",
    "sortish_sampler": "batches hold pairs of similar length in any case",
    "train_sampling_strategy": "batches hold pairs of similar length in any case",
}
# and those that change nothing on the command line, which never calls `predict()`
_WITHOUT_EFFECT_ON_TRAINING = {
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), "batches are sized by max_tokens"),
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), "validation runs in the precision of training"),
    **dict.fromkeys(
        ("batch_eval_metrics", "include_for_metrics", "label_names", "prediction_loss_only"),
        "validation reports the loss, the perplexity and, unless --no_eval_bleu is given, BLEU",
    ),
    **dict.fromkeys(
        ("eval_accumulation_steps", "eval_do_concat_batches", "eval_use_gather_object"),
        "validation keeps no more than sums and translations",
    ),
    "do_predict": "`vanilla-transformer evaluate` scores a test text",
    "generation_max_length": "a translation may have the tokens of its source and 50 more",
}
NEVER_RECORDED = {*_WITHOUT_EFFECT, *_WITHOUT_EFFECT_ON_TRAINING}
_DEFAULTS = {
    field.name: field.default if field.default_factory is MISSING else field.default_factory()
    for field in fields(Seq2SeqTrainingArguments)
}


def option(help: str, default: Any = None) -> Any:
    """A field of a dataclass that is a flag."""
    return field(default=default, metadata={"help": help})


def _refuse(args: Any, names: dict[str, str]) -> None:
    for name, why in names.items():
        if getattr(args, name, _DEFAULTS.get(name)) != _DEFAULTS.get(name):
            raise ValueError(f"{name} would change nothing: {why}.")


def check_batch_size(args: Any) -> None:
    """See that the size of batches is not given in pairs.

    Raises:
        ValueError: if `per_device_train_batch_size` is not its default.
    """
    name = "per_device_train_batch_size"
    _refuse(args, {name: _WITHOUT_EFFECT_ON_TRAINING[name]})


def check_evaluation(args: Any) -> None:
    """See that validation can do what the arguments ask for.

    Raises:
        ValueError: for what `Trainer` alone does.
    """
    names = ("bf16_full_eval", "fp16_full_eval", "batch_eval_metrics", "include_for_metrics")
    _refuse(args, {name: _WITHOUT_EFFECT_ON_TRAINING[name] for name in names})


def check_flags(args: Any) -> None:
    """See that every flag of a command line has an effect, and that validation will report what decides.

    Raises:
        ValueError: for a flag that changes nothing, or a `metric_for_best_model` that there will not be.
    """
    _refuse(args, _WITHOUT_EFFECT_ON_TRAINING)
    if args.metric_for_best_model.removeprefix("eval_") not in args.metrics():
        raise ValueError(
            f"metric_for_best_model must be one of {', '.join(args.metrics())}, got {args.metric_for_best_model!r}."
        )


@dataclass
class VanillaTransformerTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the defaults of section 5 of the paper (its base model)."""

    _argument_group_name = "training: this package's flags, and all of transformers' Seq2SeqTrainingArguments"

    max_tokens: int = option("Most tokens of a batch's source, and of its target, with padding (section 5.1).", 25_000)
    max_steps: int = option("Updates to make; -1 leaves it to --num_train_epochs.", 100_000)
    lr_scheduler_type: str = option("The paper's 'noam' (section 5.3), or a schedule of transformers' own.", NOAM)
    learning_rate: float | None = option(  # type: ignore[assignment]
        "Under 'noam' the factor on the schedule, 1.0 if not given; else the peak rate, 5e-5 if not given."
    )
    warmup_steps: float = option("Updates during which the learning rate rises (section 5.3).", 4000)
    adam_beta2: float = option("Adam's beta2 (section 5.3).", 0.98)
    adam_epsilon: float = option("Adam's epsilon (section 5.3).", 1e-9)
    label_smoothing_factor: float = option("The paper's epsilon_ls (section 5.4).", 0.1)
    r_drop_alpha: float = option("Weight of R-Drop (arXiv:2106.14448), each pair passing twice; 0 for none.", 0.0)
    ema_decay: float = option("Validate and keep a moving average of the weights, such as 0.999's; 0 for none.", 0.0)
    max_grad_norm: float = option("Gradients are clipped to this norm; 0, the paper's way, leaves them alone.", 0.0)
    save_steps: float = option("Updates between checkpoints; below 1, a share of all updates.", 1500)
    save_total_limit: int | None = option("Newest checkpoints to keep beside the best; the paper averages 5.", 5)
    eval_bleu: bool = option("Translate the validation text at each evaluation and report its BLEU.", True)
    bleu_tokenize: str = option("sacreBLEU's tokenisation for it; 'none' for text that is tokenised already.", "13a")
    ddp_find_unused_parameters: bool | None = option("Only for models some of whose weights rest in a step.", False)
    hub_strategy: str = option("Only 'end': the finished model is uploaded, with its card.", "end")
    early_stopping_patience: int | None = option(
        "Evaluations without a better metric_for_best_model after which training stops; the best model is then kept."
    )
    # in this order, as in transformers: HfArgumentParser takes the type from the second place
    report_to: None | str | list[str] = option("Where metrics go: 'tensorboard', 'wandb', 'all', 'none' ....", "none")

    def __post_init__(self):
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}.")
        if not self.r_drop_alpha >= 0:
            raise ValueError(f"r_drop_alpha must not be negative, got {self.r_drop_alpha}.")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must be at least 0 and below 1, got {self.ema_decay}.")
        if not 0 <= self.label_smoothing_factor < 1:
            raise ValueError(
                f"label_smoothing_factor must be at least 0 and below 1, got {self.label_smoothing_factor}."
            )
        if self.generation_num_beams is not None and self.generation_num_beams < 1:
            raise ValueError(f"generation_num_beams must be at least 1, got {self.generation_num_beams}.")
        _refuse(self, _WITHOUT_EFFECT)
        noam = self.lr_scheduler_type == NOAM
        if noam and self.lr_scheduler_kwargs:
            raise ValueError("lr_scheduler_kwargs would change nothing: the noam schedule has warmup_steps alone.")
        if self.learning_rate is None:
            self.learning_rate = 1.0 if noam else 5e-5
        if self.eval_steps is None:
            self.eval_steps = self.save_steps
        if self.metric_for_best_model is None:
            self.metric_for_best_model = "bleu" if self.eval_bleu else "loss"
        if self.eval_bleu:
            check_tokenization(self.bleu_tokenize)
        if self.greater_is_better is None:
            self.greater_is_better = not self.metric_for_best_model.endswith(("loss", "perplexity"))
        if self.early_stopping_patience is not None:
            if self.early_stopping_patience < 1 or self.eval_strategy == "no":
                raise ValueError("Early stopping needs validation text and a patience of at least 1.")
            self.load_best_model_at_end = True
        if noam:
            if self.warmup_steps < 1:
                raise ValueError(f"The noam schedule needs at least one step of warm-up, got {self.warmup_steps}.")
            # transformers accepts only its own names here; this is the one of the same shape
            self.lr_scheduler_type = "inverse_sqrt"
        if self.push_to_hub and self.hub_strategy != "end":
            raise ValueError(f"hub_strategy must be 'end', got {self.hub_strategy!r}: checkpoints hold pickles.")
        super().__post_init__()
        if noam:
            self.lr_scheduler_type = NOAM

    def metrics(self) -> tuple[str, ...]:
        """Return the names of what validation reports, without "eval_"."""
        return ("loss", "perplexity", *(("bleu",) if self.eval_bleu else ()))


@dataclass
class ModelArguments:
    """What to train. A field left out is the preset's, or that of the model to start from."""

    _argument_group_name = "the model"

    preset: str = option("Model and training settings: tiny, base, big or a row of the paper's Table 3.", "base")
    model_name_or_path: str | None = option("A trained model to go on from, with its tokenizer; else from nothing.")
    tokenizer_name: str | None = option("A tokenizer to use; else one is learned from the training text.")
    vocab_size: int | None = option("Tokens in the joint vocabulary.")
    d_model: int | None = option("Width of the model.")
    num_encoder_layers: int | None = option("Layers of the encoder.")
    num_decoder_layers: int | None = option("Layers of the decoder.")
    num_heads: int | None = option("Attention heads.")
    d_ff: int | None = option("Inner width of the feed-forward sub-layers.")
    d_k: int | None = option("Width of one head's keys.")
    d_v: int | None = option("Width of one head's values.")
    dropout: float | None = option("On sub-layer outputs and embeddings.")
    attention_dropout: float | None = option("On attention weights.")
    activation_dropout: float | None = option("Inside the feed-forward sub-layers.")
    position_embedding: str | None = option("'sinusoidal' or 'learned'.")
    initializer_range: float | None = option("Standard deviation of initial matrices; else tensor2tensor's.")
    num_beams: int | None = option("Beam size saved with the model, 4 in the paper.")
    length_penalty: float | None = option("Alpha saved with the model, 0.6 in the paper.")
    license: str | None = option("Licence of the model, for its card, such as 'apache-2.0'.")

    def __post_init__(self):
        if self.num_beams is not None and self.num_beams < 1:
            raise ValueError(f"num_beams must be at least 1, got {self.num_beams}.")
        if self.length_penalty is not None and not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty must be a finite number, got {self.length_penalty}.")

    def config_overrides(self) -> dict[str, Any]:
        """The fields given of the model's configuration."""
        others = {"preset", "model_name_or_path", "tokenizer_name", "num_beams", "length_penalty", "license"}
        return {name: value for name, value in vars(self).items() if name not in others and value is not None}

    def generation_overrides(self) -> dict[str, Any]:
        """The fields given of its generation configuration."""
        return {name: value for name in ("num_beams", "length_penalty") if (value := getattr(self, name)) is not None}


@dataclass
class DataArguments:
    """What to train on; with neither a file nor a data set, the built-in English-German phrases."""

    _argument_group_name = "the text"

    train_file: str | None = option(
        "Training text: a .jsonl, .tsv, .csv or .parquet file, the prefix P of a Moses pair P.en and P.de, or a "
        "folder that scripts/prepare_data.py made."
    )
    streaming: bool = option("Read a prepared folder from start to end, instead of mapping it into memory.", False)
    validation_file: str | None = option("The same for the validation text, but no prepared folder.")
    dataset_name: str | None = option("A data set of the Hub instead, with splits 'train' and perhaps 'validation'.")
    dataset_config_name: str | None = option("Its configuration, such as 'de-en'.")
    source_lang: str | None = option("Language translated from, as the text names it; else the model's, or 'en'.")
    target_lang: str | None = option("Language translated to; else the model's, or 'de'.")
    clean: bool = option("Drop long, uneven and duplicate pairs and those with markup from the training text.", True)
    max_sentence_tokens: int = option("The longest side of a training pair, in tokens.", 256)
    max_length_ratio: float = option("The most tokens that one side may have for one of the other.", 4.0)
