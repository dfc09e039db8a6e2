"""Dataclasses whose fields are the flags of `vanilla-transformer train` and `tune`."""

import math
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from transformers import Seq2SeqTrainingArguments, TrainingArguments

NOAM = "noam"

# Flags of Seq2SeqTrainingArguments that have no effect here, and why; only their default values are accepted
_WITHOUT_EFFECT = {
    "auto_find_batch_size": "batches are sized by max_tokens",
    "dataloader_drop_last": "every epoch uses every pair",
    "length_column_name": "batches always hold pairs of similar length",
    "neftune_noise_alpha": "no noise is added to the embeddings",
    "save_only_model": "no run can resume from a checkpoint without its optimizer; lower save_total_limit instead",
    "sortish_sampler": "batches always hold pairs of similar length",
    "train_sampling_strategy": "batches always hold pairs of similar length",
}
# Flags that have no effect on the command line, which never calls `predict()`
_WITHOUT_EFFECT_ON_TRAINING = {
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), "batches are sized by max_tokens"),
    **dict.fromkeys(
        ("bf16_full_eval", "fp16_full_eval"), "validation computes the loss as in training, and BLEU in float32"
    ),
    **dict.fromkeys(
        ("batch_eval_metrics", "include_for_metrics", "label_names", "prediction_loss_only"),
        "validation reports the loss, the perplexity and, unless --no_eval_bleu is given, BLEU",
    ),
    **dict.fromkeys(
        ("eval_accumulation_steps", "eval_do_concat_batches", "eval_use_gather_object"),
        "validation stores only sums and translations",
    ),
    "do_predict": "`vanilla-transformer evaluate` scores a test text",
    "generation_max_length": "a translation may be 50 tokens longer than its source",
}
NEVER_RECORDED = {*_WITHOUT_EFFECT, *_WITHOUT_EFFECT_ON_TRAINING}
_DEFAULTS = {
    field.name: field.default if field.default_factory is MISSING else field.default_factory()
    for field in fields(Seq2SeqTrainingArguments)
}


def option(help: str, default: Any = None) -> Any:
    """Return a dataclass field that becomes a flag with this help text."""
    return field(default=default, metadata={"help": help})


def _reject_changes(args: TrainingArguments, reasons: dict[str, str]) -> None:
    for name, reason in reasons.items():
        if getattr(args, name, _DEFAULTS.get(name)) != _DEFAULTS.get(name):
            raise ValueError(f"{name} has no effect here: {reason}.")


def check_batch_size(args: TrainingArguments) -> None:
    """Check that the batch size is not given as a number of pairs.

    Raises:
        ValueError: if `per_device_train_batch_size` is not its default.
    """
    name = "per_device_train_batch_size"
    _reject_changes(args, {name: _WITHOUT_EFFECT_ON_TRAINING[name]})


def check_evaluation(args: TrainingArguments) -> None:
    """Check that validation supports the evaluation arguments.

    Raises:
        ValueError: for an argument that only the evaluation of `Trainer` supports.
    """
    names = ("bf16_full_eval", "fp16_full_eval", "batch_eval_metrics", "include_for_metrics")
    _reject_changes(args, {name: _WITHOUT_EFFECT_ON_TRAINING[name] for name in names})


def check_flags(args: "VanillaTransformerTrainingArguments", data: "DataArguments") -> None:
    """Check that every flag of a command line has an effect and that validation reports `metric_for_best_model`.

    With several validation texts, whose names are not known yet, `NAME_bleu` is accepted for any name.

    Raises:
        ValueError: for a flag without effect, or a `metric_for_best_model` that validation does not report.
    """
    _reject_changes(args, _WITHOUT_EFFECT_ON_TRAINING)
    metric = str(args.metric_for_best_model).removeprefix("eval_")
    several = any(len(names or []) > 1 for names in (data.validation_file, data.dataset_name, data.language_pairs))
    if metric not in args.metrics() and not (several and metric.endswith(tuple(f"_{m}" for m in args.metrics()))):
        raise ValueError(
            f"metric_for_best_model must be one of {', '.join(args.metrics())}"
            f"{', or NAME_bleu and so on for one of the validation texts' if several else ''}, got "
            f"{args.metric_for_best_model!r}."
        )


@dataclass
class VanillaTransformerTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the defaults of the paper's base model (section 5)."""

    _argument_group_name = "training: this package's flags, and all of transformers' Seq2SeqTrainingArguments"

    max_tokens: int = option(
        "Maximum tokens of a batch's source, and of its target, with padding (section 5.1).", 25_000
    )
    max_steps: int = option("Number of updates; -1 to train for --num_train_epochs instead.", 100_000)
    lr_scheduler_type: str = option("The paper's 'noam' (section 5.3), or a schedule of transformers.", NOAM)
    learning_rate: float | None = option(  # type: ignore[assignment]
        "With 'noam', a factor on the schedule (default: 1.0); otherwise the peak learning rate (default: 5e-5)."
    )
    warmup_steps: float = option("Number of updates over which the learning rate rises (section 5.3).", 4000)
    adam_beta2: float = option("Adam's beta2 (section 5.3).", 0.98)
    adam_epsilon: float = option("Adam's epsilon (section 5.3).", 1e-9)
    label_smoothing_factor: float = option("Label smoothing, the paper's epsilon_ls (section 5.4).", 0.1)
    r_drop_alpha: float = option("Weight of R-Drop (arXiv:2106.14448), which runs each pair twice; 0 to disable.", 0.0)
    ema_decay: float = option(
        "Validate and save a moving average of the weights with this decay, such as 0.999; 0 to disable.", 0.0
    )
    max_grad_norm: float = option("Clip gradients to this norm; 0, as in the paper, to disable.", 0.0)
    gradient_accumulation_steps: int = option("Batches of max_tokens per update, in each process.", 1)
    save_steps: float = option("Updates between checkpoints; a value below 1 is a fraction of all updates.", 1500)
    save_total_limit: int | None = option("Newest checkpoints to keep besides the best; the paper averages 5.", 5)
    eval_steps: float | None = option("Updates between evaluations (default: save_steps).")
    metric_for_best_model: str | None = option("Best by this: bleu, loss or perplexity (default: bleu if computed).")
    eval_bleu: bool = option("Translate the validation text at each evaluation and report BLEU.", True)
    bleu_tokenize: str = option(
        "sacreBLEU's tokenisation for validation BLEU; 'none' for text that is already tokenised.", "13a"
    )
    ddp_find_unused_parameters: bool | None = option(
        "Let DDP look for parameters without a gradient in each step.", False
    )
    ddp_broadcast_buffers: bool | None = option("Let DDP send buffers, here constants, at each step.", False)
    logging_nan_inf_filter: bool = option(
        "Check each loss on the host; not needed, since the logged mean leaves out non-finite losses anyway.", False
    )
    hub_strategy: str = option("Only 'end' is supported: upload the finished model with its card.", "end")
    early_stopping_patience: int | None = option(
        "Stop after this many evaluations without a better metric_for_best_model, and keep the best model."
    )
    # None first, as in transformers: HfArgumentParser takes the type from the second member of the union
    report_to: None | str | list[str] = option("Where to report metrics: 'tensorboard', 'wandb', 'all', ...", "none")

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
        _reject_changes(self, _WITHOUT_EFFECT)
        noam = self.lr_scheduler_type == NOAM
        if noam and self.lr_scheduler_kwargs:
            raise ValueError("lr_scheduler_kwargs has no effect with the noam schedule; set warmup_steps instead.")
        if self.learning_rate is None:
            self.learning_rate = 1.0 if noam else 5e-5
        if self.eval_steps is None:
            self.eval_steps = self.save_steps
        if self.metric_for_best_model is None:
            self.metric_for_best_model = "bleu" if self.eval_bleu else "loss"
        if self.eval_bleu:
            from ..inference.metrics import check_tokenization  # slow to import

            check_tokenization(self.bleu_tokenize)
        if self.greater_is_better is None:
            self.greater_is_better = not self.metric_for_best_model.endswith(("loss", "perplexity"))
        if self.early_stopping_patience is not None:
            if self.early_stopping_patience < 1 or self.eval_strategy == "no":
                raise ValueError("Early stopping needs validation text and a patience of at least 1.")
            self.load_best_model_at_end = True
        by_steps = self.eval_strategy == "steps" and self.save_strategy == "steps"
        if self.load_best_model_at_end and by_steps and self.eval_steps != self.save_steps:
            raise ValueError(
                "Early stopping and load_best_model_at_end need a checkpoint of each evaluated model: eval_steps and "
                f"save_steps must be equal, got {self.eval_steps} and {self.save_steps}."
            )
        if noam:
            if self.warmup_steps < 1:
                raise ValueError(f"The noam schedule needs at least one step of warm-up, got {self.warmup_steps}.")
            # transformers accepts only the names of its own schedules here; this one has the same shape
            self.lr_scheduler_type = "inverse_sqrt"
        if self.push_to_hub and self.hub_strategy != "end":
            raise ValueError(f"hub_strategy must be 'end', got {self.hub_strategy!r}: checkpoints contain pickles.")
        super().__post_init__()
        if noam:
            self.lr_scheduler_type = NOAM

    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics that validation reports, without "eval_"."""
        return ("loss", "perplexity", *(("bleu",) if self.eval_bleu else ()))


@dataclass
class ModelArguments:
    """The model to train; fields that are not given come from the preset or from the pretrained model."""

    _argument_group_name = "the model"

    preset: str = option(
        "Model and training settings: tiny, base, big or a row of the paper's Table 3; the defaults shown are base's.",
        "base",
    )
    model_name_or_path: str | None = option(
        "Trained model to start from, with its tokenizer; by default, train from scratch."
    )
    tokenizer_name: str | None = option("Tokenizer to use; by default, learn one from the training text.")
    tokenizer_model: str = option("Kind of vocabulary to learn: 'bpe' or 'unigram'.", "bpe")
    normalization: str = option("Unicode normalisation of the text before it is tokenised: 'none' or 'nfkc'.", "none")
    vocab_size: int | None = option("Size of the joint vocabulary.")
    d_model: int | None = option("Width of the model.")
    num_encoder_layers: int | None = option("Number of encoder layers.")
    num_decoder_layers: int | None = option("Number of decoder layers.")
    num_heads: int | None = option("Number of attention heads.")
    d_ff: int | None = option("Inner width of the feed-forward sub-layers.")
    d_k: int | None = option("Width of the keys of one head.")
    d_v: int | None = option("Width of the values of one head.")
    dropout: float | None = option("Dropout on sub-layer outputs and embeddings.")
    attention_dropout: float | None = option("Dropout on attention weights.")
    activation_dropout: float | None = option("Dropout inside the feed-forward sub-layers.")
    position_embedding: str | None = option("'sinusoidal' or 'learned'.")
    initializer_range: float | None = option(
        "Standard deviation of initial matrices; by default, that of tensor2tensor."
    )
    num_beams: int | None = option("Beam size saved with the model (4 in the paper).")
    length_penalty: float | None = option("Length penalty alpha saved with the model (0.6 in the paper).")
    license: str | None = option("Licence of the model for its card, such as 'apache-2.0'.")

    def __post_init__(self):
        for name, allowed in {"tokenizer_model": ("bpe", "unigram"), "normalization": ("none", "nfkc")}.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}.")
        if self.num_beams is not None and self.num_beams < 1:
            raise ValueError(f"num_beams must be at least 1, got {self.num_beams}.")
        if self.length_penalty is not None and not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty must be a finite number, got {self.length_penalty}.")

    def config_overrides(self) -> dict[str, Any]:
        """Return the given fields that belong to the model's configuration."""
        others = {"preset", "model_name_or_path", "tokenizer_name", "tokenizer_model", "normalization"}
        others |= {"num_beams", "length_penalty", "license"}
        return {name: value for name, value in vars(self).items() if name not in others and value is not None}

    def generation_overrides(self) -> dict[str, Any]:
        """Return the given fields that belong to the model's generation configuration."""
        return {name: value for name in ("num_beams", "length_penalty") if (value := getattr(self, name)) is not None}


@dataclass
class DataArguments:
    """The text to train on; without a file or dataset, the built-in English-German phrases."""

    _argument_group_name = "the text"

    train_file: list[str] | None = option(
        "Training texts: .jsonl, .tsv, .csv or .parquet files, prefixes P of Moses files P.en and P.de, or folders "
        "made by `prepare` or by `translate --output_dir`."
    )
    streaming: bool = option("Read a prepared folder sequentially instead of memory-mapping it.", False)
    validation_file: list[str] | None = option(
        "Validation texts, in any format of --train_file except a prepared folder: one for each training text, or one."
    )
    dataset_name: list[str] | None = option("Datasets on the Hub, with a split 'train' and optionally 'validation'.")
    dataset_config_name: list[str] | None = option("Configuration of each dataset, such as 'de-en', or of all.")
    train_weights: list[float] | None = option(
        "How often each pair of each training text is used per epoch: 3 is three times, 0.5 is half of the pairs in "
        "one epoch and the others in the next (default: once)."
    )
    sampling_temperature: float | None = option(
        "Instead of weights: use each training text in proportion to its size ** (1 / this), the largest once."
    )
    language_pairs: list[str] | None = option(
        "Direction of each training text, or of all, such as en-de de-en; with several, the source starts with a tag "
        "of the target language. Lines of .jsonl may have 'source', 'target', 'source_lang' and 'target_lang' instead."
    )
    source_tag: list[str] | None = option(
        "Tag at the start of every source of each training text, such as <bt> for synthetic text; '' for none."
    )
    bpe_dropout: float = option("Probability with which a merge is left out of training text (0.1 is usual).", 0.0)
    source_lang: str | None = option("Source language, as named in the text; by default, the model's or 'en'.")
    target_lang: str | None = option("Target language, as named in the text; by default, the model's or 'de'.")
    clean: bool = option("Drop training pairs that are long, uneven or duplicate, or that contain markup.", True)
    filter_language: bool = option("Drop training pairs that are in other languages (extra: clean).", False)
    max_sentence_tokens: int = option("Maximum tokens on either side of a training pair.", 256)
    max_length_ratio: float = option(
        "Maximum ratio of the longer side of a training pair to the shorter, in tokens.", 4.0
    )

    def __post_init__(self):
        from ..data.cleaning import Cleaning  # slow to import

        Cleaning(self.max_sentence_tokens, self.max_length_ratio)  # checks them, before anything is read
        for name in ("train_file", "validation_file", "dataset_name", "dataset_config_name"):
            if isinstance(value := getattr(self, name), str):
                setattr(self, name, [value])
        if self.language_pairs and (self.source_lang or self.target_lang):
            raise ValueError("Give either --language_pairs or --source_lang and --target_lang.")
        if self.train_weights and self.sampling_temperature:
            raise ValueError("Give either --train_weights or --sampling_temperature.")
        for weight in self.train_weights or ():
            if not 0.0 < weight < math.inf:
                raise ValueError(f"--train_weights must be positive numbers, got {weight}.")
        if self.sampling_temperature is not None and not 1.0 <= self.sampling_temperature < math.inf:
            raise ValueError(f"sampling_temperature must be at least 1, got {self.sampling_temperature}.")
        if self.filter_language and not self.clean:
            raise ValueError("--filter_language is part of cleaning, which --no_clean turns off.")
        if not 0.0 <= self.bpe_dropout < 1.0:
            raise ValueError(f"bpe_dropout must be in [0, 1), got {self.bpe_dropout}.")
