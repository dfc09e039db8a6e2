"""Dataclasses whose fields are the flags of `vanilla-transformer train` and `tune`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar

from transformers import Seq2SeqTrainingArguments, TrainingArguments
from transformers.debug_utils import DebugOption
from transformers.integrations import get_reporting_integration_callbacks

from ..data.text_flags import CleaningFlags, VocabularyFlags
from ..errors import UserError, checking_settings
from ..files import MODEL_TYPES
from ..flags import Decides, Meaning, Part, Refuser, check_values, finite, number, numpy_seed, option, positive
from ..loading import check_search
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig

NOAM = "noam"
AUTO = "auto"
# Recorded with the settings of a run, but not flags: the digests of the text that its flags name
TEXT = "training_text"
VALIDATION = "validation_text"
_ENDLESS_SCHEDULES = (NOAM, "constant", "constant_with_warmup")  # independent of when training ends
_SCHEDULES_WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau", "greedy")

# What a flag may mean; a value that may hold a local path is private, and stays out of cards
_BATCHES = Meaning(Decides.BATCHES)
_TEXT = Meaning(Decides.BATCHES, private=True)
_TEXT_NAME = replace(_TEXT, content=TEXT)
_OPTIMIZER = Meaning(Decides.OPTIMIZER)
# The learning rate of a recipe or preset is meant for its own schedule
_SCHEDULE = Meaning(Decides.OPTIMIZER, replaces=("learning_rate",))
_SIZE = Meaning(Decides.SIZES, Part.CONFIG)
_DROPOUT = Meaning(Decides.LEARNING, Part.CONFIG)
_LEARNING = Meaning(Decides.LEARNING)
_ORIGIN = Meaning(Decides.LEARNING, private=True)
_LENGTH = Meaning(Decides.LENGTH, fitted=True)
_WARMUP = Meaning(Decides.LEARNING, fitted=True)
_SCORES = Meaning(Decides.SCORES)
_VALIDATION_TEXT = Meaning(Decides.SCORES, private=True)
_VALIDATION_NAME = replace(_VALIDATION_TEXT, content=VALIDATION)
_SEARCH = Meaning(Decides.SCORES, Part.GENERATION_CONFIG)
_NOTHING = Meaning(Decides.NOTHING)
_PRIVATE = Meaning(Decides.NOTHING, private=True)
_ONE_LAUNCH = Meaning(Decides.NOTHING, private=True, recorded=False)

_not_negative = number(float, "at least 0", low=0)
_at_least_1 = number(float, "at least 1", low=1)
_probability = number(float, "at least 0 and below 1", low=0, below=1)
_positive_each = number(float, "positive numbers", low=math.ulp(0.0))


# The flags of Seq2SeqTrainingArguments, whose fields cannot hold a meaning of ours. A name that ends in "_" stands for
# all flags that start with it and are not named themselves. These are pairs, because in a dictionary a second group
# with the same meaning would silently replace the first.
_GROUPS: tuple[tuple[Meaning, str], ...] = (
    (_OPTIMIZER, "optim optim_args optim_target_modules weight_decay adam_beta1"),
    # With most of these, numbers differ in their last bits, so that a resumed run would no longer be the same run
    (
        _LEARNING,
        "lr_scheduler_kwargs average_tokens_across_devices neftune_noise_alpha fp16 tf32 full_determinism "
        "use_liger_kernel liger_kernel_config use_cache torch_compile torch_compile_ activation_ gradient_ "
        "fsdp fsdp_ parallelism_ accelerator_ ignore_data_skip remove_unused_columns",
    ),
    # The path of its configuration
    (_ORIGIN, "deepspeed"),
    (_LENGTH, "num_train_epochs"),
    (_VALIDATION_TEXT, "generation_config"),
    (
        _NOTHING,
        "eval_ logging_ log_ save_ dataloader_ ddp_ include_num_ load_best_model_at_end greater_is_better "
        "predict_with_generate use_cpu do_train do_eval local_rank torch_empty_cache_steps skip_memory_metrics "
        "enable_jit_checkpoint restore_callback_",
    ),
    (_PRIVATE, "hub_ push_to_hub run_name disable_tqdm project trackio_"),
    (_ONE_LAUNCH, "resume_from_checkpoint hub_token"),
)
_SIZED = "batches are sized by max_tokens"
_SORTED = "batches always hold pairs of similar length"
_SAVED = "no run can resume from a checkpoint without its optimizer; lower save_total_limit instead"
_PRECISE = "validation computes the loss as in training, and BLEU in float32"
_METRICS = "validation reports the loss, the perplexity and, unless --no_eval_bleu is given, BLEU"
_SUMS = "validation stores only sums and translations"
# Flags without effect, with who refuses them and why
_REFUSED: tuple[tuple[Refuser, str, str], ...] = (
    (Refuser.ARGUMENTS, "auto_find_batch_size", _SIZED),
    (Refuser.ARGUMENTS, "dataloader_drop_last", "every epoch uses every pair"),
    (Refuser.ARGUMENTS, "length_column_name sortish_sampler train_sampling_strategy", _SORTED),
    (Refuser.ARGUMENTS, "save_only_model", _SAVED),
    (Refuser.TRAINER, "per_device_train_batch_size", _SIZED),
    (Refuser.VALIDATION, "bf16_full_eval fp16_full_eval", _PRECISE),
    (Refuser.VALIDATION, "batch_eval_metrics include_for_metrics", _METRICS),
    (Refuser.COMMAND_LINE, "per_device_eval_batch_size", _SIZED),
    (Refuser.COMMAND_LINE, "label_names prediction_loss_only", _METRICS),
    (Refuser.COMMAND_LINE, "eval_accumulation_steps eval_do_concat_batches eval_use_gather_object", _SUMS),
    (Refuser.COMMAND_LINE, "do_predict", "`vanilla-transformer evaluate` scores a test text"),
    (Refuser.COMMAND_LINE, "generation_max_length", "a translation may be 50 tokens longer than its source"),
)
INHERITED: dict[str, Meaning] = {name: known for known, names in _GROUPS for name in names.split()} | {
    name: Meaning(Decides.NOTHING, recorded=False, refused=reason, refuser=refuser)
    for refuser, names, reason in _REFUSED
    for name in names.split()
}


def reject_changes(args: TrainingArguments, *refusers: Refuser) -> None:
    """Check that the flags that these refuse have their defaults.

    Raises:
        ValueError: if one has not, saying why it has no effect.
    """
    for flag in fields(Seq2SeqTrainingArguments):
        known = meaning(flag.name)
        # A flag whose default is an empty list has a factory in place of a default
        changed = getattr(args, flag.name) not in (flag.default, [])
        if changed and known.refused and known.refuser in refusers:
            raise UserError(f"{flag.name} has no effect here: {known.refused}.")


def short_warmup(args: "VanillaTransformerTrainingArguments", updates: int) -> str:
    """Return the advice for a run that ends during the warm-up, or "" for any other.

    A shorter warm-up alone makes the peak of the noam schedule higher, in proportion to 1 / sqrt(warmup_steps).
    """
    if updates >= args.warmup_updates(updates):
        return ""
    warmup = max(1, updates // 4)
    assert args.learning_rate is not None  # set by __post_init__
    factor = args.learning_rate * (warmup / args.warmup_steps) ** 0.5
    advice = f"--warmup_steps {warmup}"
    if args.lr_scheduler_type == NOAM:
        advice += f" --learning_rate {factor:.2g}, which keeps the peak of the learning rate"
    # The settings of this run are in its folder by now, and may not change there
    return f"Training ends during the warm-up of {args.warmup_steps:g} updates: try {advice}, in another --output_dir."


def check_reporters(args: TrainingArguments) -> None:
    """Check that the packages behind `report_to` are installed, which the trainer does only after reading the text.

    Raises:
        ValueError: if one is not, or is unknown.
    """
    try:
        for reporter in get_reporting_integration_callbacks(args.report_to):
            reporter()
    except (RuntimeError, ImportError, ValueError) as error:
        raise UserError(f"--report_to {' '.join(args.report_to or ())}: {error}") from error


def check_flags(args: "VanillaTransformerTrainingArguments") -> None:
    """Check that every flag of a command line has an effect and that validation reports `metric_for_best_model`.

    Raises:
        ValueError: for a flag without effect, or a `metric_for_best_model` that validation does not report.
    """
    reject_changes(args, Refuser.TRAINER, Refuser.VALIDATION, Refuser.COMMAND_LINE)
    metrics = args.metrics()
    # With several validation texts, the name of one comes first; the trainer, which knows the names, checks it
    if not str(args.metric_for_best_model).endswith(metrics):
        raise UserError(
            f"metric_for_best_model must be one of {', '.join(metrics)}, got {args.metric_for_best_model!r}."
        )


@dataclass
class VanillaTransformerTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the defaults of the paper's base model (section 5)."""

    TITLE: ClassVar[str] = "training: this package's flags, and all of transformers' Seq2SeqTrainingArguments"

    output_dir: str | None = option(
        "Folder for the run and the model; the same command resumes the run in it.", None, _PRIVATE, required=True
    )
    max_tokens: int = option(
        "Maximum tokens of a batch's source and of its target, padded (section 5.1).", 25_000, _BATCHES, parse=positive
    )
    max_steps: int = option("Number of updates; -1 to train for --num_train_epochs instead.", 100_000, _LENGTH)
    lr_scheduler_type: str = option("The paper's 'noam' (section 5.3) or one of transformers.", NOAM, _SCHEDULE)
    learning_rate: float | None = option(  # type: ignore[assignment]
        "A factor on 'noam' (default: 1.0), or the peak of another schedule (default: 5e-5).", None, _OPTIMIZER
    )
    warmup_steps: float = option("Updates over which the learning rate rises (section 5.3).", 4000, _WARMUP)
    adam_beta2: float = option("Adam's beta2 (section 5.3).", 0.98, _OPTIMIZER)
    adam_epsilon: float = option("Adam's epsilon (section 5.3).", 1e-9, _OPTIMIZER)
    label_smoothing_factor: float = option("The paper's epsilon_ls (section 5.4).", 0.1, _LEARNING, parse=_probability)
    r_drop_alpha: float = option(
        "Weight of R-Drop (arXiv:2106.14448), which runs each pair twice; 0: off.", 0.0, _LEARNING, parse=_not_negative
    )
    ema_decay: float = option(
        "Validate and save a moving average of weights with this decay; 0: off.", 0.0, _LEARNING, parse=_probability
    )
    max_grad_norm: float = option("Clip gradients to this norm; 0, as in the paper, to disable.", 0.0, _LEARNING)
    gradient_accumulation_steps: int = option("Batches of max_tokens per update, in each process.", 1, _BATCHES)
    save_steps: float = option("Updates between checkpoints; below 1, a fraction of all updates.", 1500, _NOTHING)
    save_total_limit: int | None = option("Newest checkpoints to keep besides the best (5 in the paper).", 5, _NOTHING)
    eval_steps: float | None = option("Updates between evaluations (default: save_steps).", None, _NOTHING)
    metric_for_best_model: str | None = option(
        "Metric of the best model: bleu, loss or perplexity (default: bleu, if it is computed).", None, _NOTHING
    )
    eval_bleu: bool = option("Translate the validation text at each evaluation and report BLEU.", True, _NOTHING)
    bleu_tokenize: str = option(
        "sacreBLEU's tokenisation for validation BLEU; 'none' for text that is already tokenised.", "13a", _SCORES
    )
    generation_num_beams: int | None = option("Beam size of validation BLEU.", None, _SCORES, parse=positive)
    bf16: bool | str = option(  # type: ignore[assignment]
        "Train in bfloat16; with 'auto', if a few steps of the model show that it is faster here.",
        False,
        _LEARNING,
        choices=(True, False, AUTO),
    )
    # Every parameter has a gradient in every step, and the only buffer is the constant table of sinusoids, so DDP need
    # not look for unused parameters or send buffers
    ddp_find_unused_parameters: bool | None = option("Let DDP look for unused parameters.", False, _NOTHING)
    ddp_broadcast_buffers: bool | None = option("Let DDP send buffers, here constants, at each step.", False, _NOTHING)
    # transformers' filter would synchronise host and device at every update
    logging_nan_inf_filter: bool = option(
        "Check each loss on the host; the logged mean leaves out non-finite losses anyway.", False, _NOTHING
    )
    # transformers would upload checkpoints, which contain pickles
    hub_strategy: str = option(
        "Upload the finished model and its card; checkpoints contain pickles.", "end", _PRIVATE, choices=("end",)
    )
    hub_format: str = option(
        "Class of the uploaded model: marian for a copy as MarianMT, which transformers loads without code.",
        MODEL_TYPES[0],
        _PRIVATE,
        choices=MODEL_TYPES,
    )
    early_stopping_patience: int | None = option(
        "Stop after this many evaluations without a better model, and keep the best.", None, _NOTHING, parse=positive
    )
    report_to: str | list[str] | None = option(
        "Where to report metrics: 'tensorboard', 'wandb', 'all', or several of these.", "none", _NOTHING
    )
    # Bare, it is the flag of every verb; with a value, that of transformers
    debug: str | list[DebugOption] = option(
        "Show tracebacks; with underflow_overflow, find the first non-finite number.", [], _NOTHING, nargs="*"
    )
    seed: int = option("Seed of the model, its dropout and the batches.", 42, _BATCHES, parse=numpy_seed)
    data_seed: int | None = option("Seed of the batches (default: --seed).", None, _BATCHES, parse=numpy_seed)

    def __post_init__(self):
        check_values(self)
        if self.max_steps == 0:
            raise UserError("max_steps must be at least 1, or -1 to train for num_train_epochs, got 0.")
        reject_changes(self, Refuser.ARGUMENTS)
        noam = self.lr_scheduler_type == NOAM
        if noam and self.lr_scheduler_kwargs:
            raise UserError("lr_scheduler_kwargs has no effect with the noam schedule; set warmup_steps instead.")
        if self.learning_rate is None:
            self.learning_rate = 1.0 if noam else 5e-5
        if self.eval_steps is None:
            self.eval_steps = self.save_steps
        if self.metric_for_best_model is None:
            self.metric_for_best_model = "bleu" if self.eval_bleu else "loss"
        if self.eval_bleu:
            from ..inference.metrics import check_tokenization  # slow to import

            # Now, not at the first validation, which may be hours away
            check_tokenization(self.bleu_tokenize)
        if self.greater_is_better is None:
            self.greater_is_better = not self.metric_for_best_model.endswith(("loss", "perplexity"))
        if self.early_stopping_patience is not None:
            if self.eval_strategy == "no":
                raise UserError("Early stopping needs validation text.")
            self.load_best_model_at_end = True
        by_steps = self.eval_strategy == "steps" and self.save_strategy == "steps"
        if self.load_best_model_at_end and by_steps and self.eval_steps != self.save_steps:
            raise UserError(
                "Early stopping and load_best_model_at_end need a checkpoint of each evaluated model: eval_steps and "
                f"save_steps must be equal, got {self.eval_steps} and {self.save_steps}."
            )
        if noam:
            if self.warmup_steps < 1:
                raise UserError(f"The noam schedule needs at least one step of warm-up, got {self.warmup_steps}.")
            # transformers accepts only the names of its own schedules here; this one has the same shape
            self.lr_scheduler_type = "inverse_sqrt"
        chooses = self.bf16 == AUTO
        if chooses:
            if self.fp16:
                raise UserError("bf16 may not be 'auto' together with fp16.")
            # Until the model is there to measure with
            self.bf16 = False
        with checking_settings():
            super().__post_init__()
        if noam:
            self.lr_scheduler_type = NOAM
        if chooses:
            self.bf16 = AUTO

    def set_precision(self, bfloat16: bool) -> None:
        """Set whether to train in bfloat16, in place of "auto"."""
        self.bf16 = bfloat16
        self.mixed_precision = "bf16" if bfloat16 else "no"

    def keep_precision(self, recorded: Mapping[str, object] | None) -> None:
        """Replace "auto" by the choice of a run that resumes, given its settings, if there is one."""
        if recorded is not None and self.bf16 == AUTO:
            self.set_precision(bool(recorded.get("bf16", False)))

    def warmup_updates(self, updates: int) -> int:
        """Return over how many of `updates` the learning rate rises, which may be more than there are."""
        return 0 if self.lr_scheduler_type in _SCHEDULES_WITHOUT_WARMUP else self.get_warmup_steps(updates)

    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics that validation reports, without "eval_"."""
        return ("loss", "perplexity", *(("bleu",) if self.eval_bleu else ()))


@dataclass
class ModelArguments(VocabularyFlags):
    """The model to train; fields that are not given come from the preset or from the pretrained model."""

    TITLE: ClassVar[str] = "the model"

    # It decides nothing by itself: the settings that it stands for are recorded one by one
    preset: str = option(
        "Settings: tiny, base, big or a row of the paper's Table 3 (default on the command line: tiny for fewer than "
        "200,000 pairs, else base); the defaults shown are base's.",
        "base",
        _NOTHING,
    )
    model_name_or_path: str | None = option("Trained model to start from, with its tokenizer.", None, _ORIGIN)
    tokenizer_name: str | None = option("Tokenizer to use; by default, learn one from the text.", None, _ORIGIN)
    d_model: int | None = option("Width of the model.", None, _SIZE)
    num_encoder_layers: int | None = option("Number of encoder layers.", None, _SIZE)
    num_decoder_layers: int | None = option("Number of decoder layers.", None, _SIZE)
    num_heads: int | None = option("Number of attention heads.", None, _SIZE)
    d_ff: int | None = option("Inner width of the feed-forward sub-layers.", None, _SIZE)
    d_k: int | None = option("Width of the keys of one head.", None, _SIZE)
    d_v: int | None = option("Width of the values of one head.", None, _SIZE)
    dropout: float | None = option("Dropout on sub-layer outputs and embeddings.", None, _DROPOUT)
    attention_dropout: float | None = option("Dropout on attention weights.", None, _DROPOUT)
    activation_dropout: float | None = option("Dropout inside the feed-forward sub-layers.", None, _DROPOUT)
    position_embedding: str | None = option("'sinusoidal' or 'learned'.", None, _SIZE)
    initializer_range: float | None = option(
        "Standard deviation of initial matrices (default: as in tensor2tensor).", None, _SIZE
    )
    num_beams: int | None = option("Beam size saved with the model (4 in the paper).", None, _SEARCH, parse=positive)
    length_penalty: float | None = option(
        "Length penalty alpha saved with the model (0.6 in the paper).", None, _SEARCH, parse=finite
    )
    license: str | None = option("Licence of the model for its card, such as 'apache-2.0'.", None, _PRIVATE)

    def __post_init__(self):
        super().__post_init__()
        check_values(self)
        # As when the model is loaded
        check_search(self.overrides(Part.GENERATION_CONFIG), VanillaTransformerConfig())

    def overrides(self, part: Part) -> dict[str, object]:
        """Return the given fields that belong to a part of the saved model, by name."""
        names = [flag.name for flag in fields(self) if flag.metadata["meaning"].part is part]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass
class DataArguments(CleaningFlags):
    """The text to train on; without a file or dataset, the built-in English-German phrases."""

    TITLE: ClassVar[str] = "the text"

    train_file: list[str] | None = option(
        "Training texts: .jsonl, .tsv, .csv or .parquet files, prefixes P of Moses files P.en and P.de, or folders "
        "made by `prepare` or by `translate --output_dir`.",
        None,
        _TEXT_NAME,
    )
    streaming: bool = option("Read a prepared folder sequentially instead of memory-mapping it.", False, _BATCHES)
    validation_file: list[str] | None = option(
        "Validation texts (no prepared folder): one for each training text, or one for all.", None, _VALIDATION_NAME
    )
    dataset_name: list[str] | None = option(
        "Datasets on the Hub, with a split 'train' and optionally 'validation'.", None, _TEXT_NAME
    )
    dataset_config_name: list[str] | None = option("Configuration of each, such as 'de-en', or all.", None, _BATCHES)
    train_weights: list[float] | None = option(
        "How often each pair of each training text is used per epoch: 3 is three times, 0.5 is half of the pairs in "
        "one epoch and the others in the next (default: once).",
        None,
        _BATCHES,
        parse=_positive_each,
    )
    sampling_temperature: float | None = option(
        "Use each text in proportion to its size ** (1 / this), the largest once.", None, _BATCHES, parse=_at_least_1
    )
    language_pairs: list[str] | None = option(
        "Direction of each training text, or of all, such as en-de de-en; with several, the source starts with a "
        "tag of the target language. Lines of .jsonl may have 'source', 'target', 'source_lang' and 'target_lang' "
        "instead.",
        None,
        Meaning(Decides.BATCHES, replaces=("source_lang", "target_lang")),
    )
    source_tag: list[str] | None = option(
        "Tag at the start of every source of each text, such as <bt> for synthetic text; '' for none.", None, _BATCHES
    )
    bpe_dropout: float = option(
        "Probability of leaving out a merge in training text (0.1 is usual).", 0.0, _BATCHES, parse=_probability
    )
    source_lang: str | None = option("Source language of the text (default: the model's or 'en').", None, _BATCHES)
    target_lang: str | None = option("Target language of the text (default: the model's or 'de').", None, _BATCHES)

    def __post_init__(self):
        super().__post_init__()
        if self.language_pairs and (self.source_lang or self.target_lang):
            raise UserError("Give either --language_pairs or --source_lang and --target_lang.")
        if self.train_weights and self.sampling_temperature:
            raise UserError("Give either --train_weights or --sampling_temperature.")
        check_values(self)


@dataclass
class ResolvedFlags:
    """The flags of a run, with both languages or several language pairs set, and the configuration of its model."""

    model: ModelArguments
    data: DataArguments
    args: VanillaTransformerTrainingArguments
    config: VanillaTransformerConfig


RUN_FLAGS = (ModelArguments, DataArguments, VanillaTransformerTrainingArguments)
_MEANINGS = INHERITED | {
    flag.name: flag.metadata["meaning"] for kind in RUN_FLAGS for flag in fields(kind) if "meaning" in flag.metadata
}
_MEANINGS |= {TEXT: _TEXT, VALIDATION: _VALIDATION_TEXT}


def known_meaning(name: str) -> Meaning | None:
    """Return the meaning of a flag of `train`, or None if nobody has decided on one."""
    prefixes = [prefix for prefix in INHERITED if prefix.endswith("_") and name.startswith(prefix)]
    return _MEANINGS.get(name) or INHERITED.get(max(prefixes, key=len, default=""))


def meaning(name: str) -> Meaning:
    """Return the meaning of a flag of `train`; one of a newer version of transformers may not change in a run."""
    return known_meaning(name) or _LEARNING


def decided_by(name: str, settings: Mapping[str, object]) -> Decides:
    """Return what a flag of `train` decides in a run with these settings."""
    schedule = settings.get("lr_scheduler_type")
    # Each worker of a stream builds its own batches
    if name == "dataloader_num_workers" and settings.get("streaming"):
        return Decides.BATCHES
    # A run may have recorded them although the noam schedule has none
    if name == "lr_scheduler_kwargs" and schedule == NOAM:
        return Decides.NOTHING
    decides = meaning(name).decides
    return Decides.LEARNING if decides is Decides.LENGTH and schedule not in _ENDLESS_SCHEDULES else decides
