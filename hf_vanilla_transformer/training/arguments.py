"""Dataclasses whose fields are the flags of `vanilla-transformer train` and `tune`."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from accelerate.utils import parse_flag_from_env
from transformers import GenerationConfig, Seq2SeqTrainingArguments, TrainingArguments
from transformers.debug_utils import DebugOption
from transformers.integrations import get_available_reporting_integrations
from transformers.integrations.integration_utils import is_flytekit_available

from ..data.text_flags import CleaningFlags, VocabularyFlags
from ..errors import UserError, checking_settings
from ..files import MODEL_TYPES
from ..flags import (
    Decides,
    Flags,
    Meaning,
    Settings,
    check_values,
    details,
    finite,
    number,
    numpy_seed,
    option,
    positive,
)
from ..loading import check_search
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig

NOAM = "noam"
NOAM_FACTOR = 1.0  # the default learning rate
AUTO = "auto"
# Recorded with the settings of a run, but not flags
PROCESSES = "processes"  # set by the launcher
TEXT = "training_text"  # the digest of the text that the flags name
VALIDATION = "validation_text"
FACTS = (PROCESSES, TEXT, VALIDATION)
_ENDLESS_SCHEDULES = (NOAM, "constant", "constant_with_warmup")  # independent of when training ends

# What a flag may mean; a value that may hold a local path is private, and stays out of cards
_LEARNING = Meaning(Decides.LEARNING)
_TEXT = Meaning(Decides.LEARNING, private=True, content=TEXT)
# The learning rate of a recipe or preset is meant for its own schedule
_SCHEDULE = Meaning(Decides.LEARNING, replaces=("learning_rate",))
_SIZE = Meaning(Decides.SIZES)
_ORIGIN = Meaning(Decides.LEARNING, private=True)
_LENGTH = Meaning(Decides.LENGTH)
_SCORES = Meaning(Decides.SCORES)
_VALIDATION = Meaning(Decides.SCORES, private=True, content=VALIDATION)
_NOTHING = Meaning(Decides.NOTHING)
_PRIVATE = Meaning(Decides.NOTHING, private=True)
_ONE_LAUNCH = Meaning(Decides.NOTHING, private=True, recorded=False)

# What the flags of transformers mean, by how their names start. Any other changes what is learned, if only in the last
# bits, and so does one that a newer version adds.
_INHERITED: tuple[tuple[Meaning, tuple[str, ...]], ...] = (
    (_ONE_LAUNCH, ("resume_from_checkpoint", "hub_token")),
    (_PRIVATE, ("hub_", "push_to_hub", "run_name", "disable_tqdm", "project", "trackio_")),
    (_ORIGIN, ("deepspeed",)),
    (Meaning(Decides.SCORES, private=True), ("generation_config",)),
    (_LENGTH, ("num_train_epochs",)),
    (_NOTHING, ("eval_", "logging_", "log_", "save_", "load_best_model_at_end", "greater_is_better")),
    (_NOTHING, ("dataloader_", "ddp_", "use_cpu", "local_rank", "torch_empty_cache_steps", "skip_memory_metrics")),
    (_NOTHING, ("include_", "predict_with_generate", "do_", "enable_jit_checkpoint", "restore_callback_")),
)

# The flags of transformers that have no effect here, with the reason. They are not in the help, and refused.
_NO_EFFECT = {
    "auto_find_batch_size per_device_train_batch_size per_device_eval_batch_size": "batches are sized by max_tokens",
    "length_column_name sortish_sampler train_sampling_strategy": "batches always hold pairs of similar length",
    "dataloader_drop_last": "every epoch uses every pair",
    "save_only_model": "no run can resume from a checkpoint without its optimizer; lower save_total_limit instead",
    "bf16_full_eval fp16_full_eval": "validation computes the loss as in training, and BLEU in float32",
    "batch_eval_metrics include_for_metrics prediction_loss_only": (
        "validation reports the loss, the perplexity and, unless --no_eval_bleu is given, BLEU"
    ),
    "label_names": 'the labels are in the column "labels"',
    "eval_accumulation_steps eval_do_concat_batches eval_use_gather_object": "validation stores only sums and texts",
    "do_predict": "`vanilla-transformer evaluate` scores a test text",
    "generation_max_length": "a translation may be 50 tokens longer than its source",
}
NO_EFFECT = {name: reason for names, reason in _NO_EFFECT.items() for name in names.split()}
# Scripts that use adapters often name the labels
_TRUE_ANYWAY = {"label_names": ["labels"]}

# With the others, transformers would compile the whole model, and round the operands of float32 products to TF32
_NOT_COMPILED = {"torch_compile": False, "torch_compile_backend": None, "torch_compile_mode": None}

_LOWER_IS_BETTER = ("loss", "perplexity")
_OWN_METRICS = (*_LOWER_IS_BETTER, "bleu")

_not_negative = number(float, "at least 0", low=0)
_at_least_1 = number(float, "at least 1", low=1)
_probability = number(float, "at least 0 and below 1", low=0, below=1)
_positive_each = number(float, "positive numbers", low=math.ulp(0.0))


def check_reporters(args: TrainingArguments) -> None:
    """Check that the packages behind `report_to` are installed, which the trainer does only after reading the text.

    Raises:
        ValueError: if one is not, or is unknown.
    """
    available = get_available_reporting_integrations()
    if is_flytekit_available():
        # left out there
        available.append("flyte")
    for reporter in args.report_to or ():
        if reporter not in available:
            known = ", ".join(available) or "none"
            raise UserError(f"--report_to {reporter}: it is unknown or not installed; installed: {known}.")


@dataclass
class VanillaTransformerTrainingArguments(Flags, Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the defaults of the paper's base model (section 5).

    Args:
        output_dir: Folder for the run and the model; the same command resumes the run in it.
        max_tokens: Maximum tokens of a batch's source and its target, padded (section 5.1).
        max_steps: Number of updates; -1 to train for --num_train_epochs instead.
        lr_scheduler_type: The paper's 'noam' (section 5.3) or one of transformers.
        learning_rate: A factor on 'noam' (default: 1.0), or the peak of another schedule (default: 5e-5).
        warmup_steps: Updates over which the learning rate rises (section 5.3).
        adam_beta2: Adam's beta2 (section 5.3).
        adam_epsilon: Adam's epsilon (section 5.3).
        label_smoothing_factor: The paper's epsilon_ls (section 5.4).
        r_drop_alpha: Weight of R-Drop (arXiv:2106.14448), which runs each pair twice; 0: off.
        simcut_alpha: Weight of SimCut (arXiv:2206.02368), which runs each pair twice, once with cut tokens; 0: off.
        simcut_p: SimCut's probability of cutting a token's embedding.
        ema_decay: Validate and save a moving average of weights with this decay; 0: off.
        max_grad_norm: Clip gradients to this norm; 0, as in the paper, to disable.
        gradient_accumulation_steps: Batches of max_tokens per update, in each process.
        save_steps: Updates between checkpoints; below 1, a fraction of all updates.
        save_total_limit: Newest checkpoints to keep besides the best (5 in the paper).
        eval_steps: Updates between evaluations (default: save_steps).
        metric_for_best_model: Metric of the best model: bleu, loss or perplexity (default: bleu, if it is computed).
        eval_bleu: Translate the validation text at each evaluation and report BLEU.
        bleu_tokenize: sacreBLEU's tokenisation for validation BLEU; 'none' for text that is already tokenised.
        generation_num_beams: Beam size of validation BLEU.
        bf16: Train in bfloat16; with 'auto', if a few steps of the model show that it is faster here.
        torch_compile: Compile each layer and the loss, on a GPU; with 'auto', for at least 5,000 --max_steps.
        ddp_find_unused_parameters: Let DDP look for unused parameters.
        ddp_broadcast_buffers: Let DDP send buffers, here constants, at each step.
        logging_nan_inf_filter: Check each loss on the host; the logged mean leaves out non-finite losses anyway.
        hub_strategy: Upload the finished model and its card; checkpoints contain pickles.
        hub_format: Class of the uploaded model: marian for a copy as MarianMT, which transformers loads without code.
        early_stopping_patience: Stop after this many evaluations without a better model, and keep the best.
        report_to: Where to report metrics: 'tensorboard', 'trackio', 'wandb', 'all', or several of these.
        debug: Show tracebacks; with underflow_overflow, find the first non-finite number.
        seed: Seed of the model, its dropout and the batches.
        data_seed: Seed of the batches (default: --seed).
    """

    TITLE: ClassVar[str] = "training: this package's flags, and all of transformers' Seq2SeqTrainingArguments"

    output_dir: str | None = option(None, _PRIVATE, required=True)
    max_tokens: int = option(25_000, _LEARNING, parse=positive)
    max_steps: int = option(100_000, _LENGTH)
    lr_scheduler_type: str = option(NOAM, _SCHEDULE)
    learning_rate: float | None = option(None, _LEARNING, parse=_not_negative)  # type: ignore[assignment]
    warmup_steps: float = option(4000, _LEARNING)
    adam_beta2: float = option(0.98, _LEARNING)
    adam_epsilon: float = option(1e-9, _LEARNING)
    label_smoothing_factor: float = option(0.1, _LEARNING, parse=_probability)
    r_drop_alpha: float = option(0.0, _LEARNING, parse=_not_negative)
    simcut_alpha: float = option(0.0, _LEARNING, parse=_not_negative)
    simcut_p: float = option(0.05, _LEARNING, parse=_probability)
    ema_decay: float = option(0.0, _LEARNING, parse=_probability)
    max_grad_norm: float = option(0.0, _LEARNING)
    gradient_accumulation_steps: int = option(1, _LEARNING)
    save_steps: float = option(1500, _NOTHING)
    save_total_limit: int | None = option(5, _NOTHING)
    eval_steps: float | None = option(None, _NOTHING)
    metric_for_best_model: str | None = option(None, _NOTHING)
    eval_bleu: bool = option(True, _NOTHING)
    bleu_tokenize: str = option("13a", _SCORES)
    generation_num_beams: int | None = option(None, _SCORES, parse=positive)
    bf16: bool | str = option(False, _LEARNING, choices=(True, False, AUTO))  # type: ignore[assignment]
    # Compiled dropout draws other masks. None is AUTO, which HfArgumentParser would take for the value of a switch.
    torch_compile: bool | str = option(None, _LEARNING, choices=(True, False, AUTO))  # type: ignore[assignment]
    # Every parameter has a gradient in every step, and the only buffer is the constant table of sinusoids, so DDP need
    # not look for unused parameters or send buffers
    ddp_find_unused_parameters: bool | None = option(False, _NOTHING)
    ddp_broadcast_buffers: bool | None = option(False, _NOTHING)
    # transformers' filter would synchronise host and device at every update
    logging_nan_inf_filter: bool = option(False, _NOTHING)
    # transformers would upload checkpoints, which contain pickles
    hub_strategy: str = option("end", _PRIVATE, choices=("end",))
    hub_format: str = option(MODEL_TYPES[0], _PRIVATE, choices=MODEL_TYPES)
    early_stopping_patience: int | None = option(None, _NOTHING, parse=positive)
    # In the order that HfArgumentParser expects
    report_to: None | str | list[str] = option("none", _NOTHING)  # noqa: RUF036
    # Bare, it is the flag of every verb; with a value, that of transformers
    debug: str | list[DebugOption] = option([], _NOTHING, nargs="*")
    seed: int = option(42, _LEARNING, parse=numpy_seed)
    data_seed: int | None = option(None, _LEARNING, parse=numpy_seed)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an argument.

        Raises:
            ValueError: if it has no effect here and is not transformers' default, saying why.
        """
        if reason := NO_EFFECT.get(name):
            flag = Seq2SeqTrainingArguments.__dataclass_fields__[name]
            # A flag whose default is an empty list has a factory in place of a default
            if value not in (flag.default, [], _TRUE_ANYWAY.get(name)):
                raise UserError(f"{name} has no effect here: {reason}.")
        super().__setattr__(name, value)

    def __post_init__(self):
        check_values(self)
        if self.max_steps == 0:
            raise UserError("max_steps must be at least 1, or -1 to train for num_train_epochs, got 0.")
        if self.r_drop_alpha and self.simcut_alpha:
            raise UserError("r_drop_alpha and simcut_alpha exclude each other: set only one of them.")
        # transformers trains on the CPU then, but would refuse bfloat16 there without the flag
        self.use_cpu |= parse_flag_from_env("ACCELERATE_USE_CPU")
        noam = self.lr_scheduler_type == NOAM
        if noam and self.lr_scheduler_kwargs:
            raise UserError("lr_scheduler_kwargs has no effect with the noam schedule; set warmup_steps instead.")
        if self.learning_rate is None:
            self.learning_rate = NOAM_FACTOR if noam else 5e-5
        if self.eval_steps is None:
            self.eval_steps = self.save_steps
        metric = self.metric_for_best_model or ("bleu" if self.eval_bleu else "loss")
        self.metric_for_best_model = metric.removeprefix("eval_")
        if self.eval_bleu:
            from ..inference.metrics import check_tokenization  # slow to import

            # Now, not at the first validation, which may be hours away
            check_tokenization(self.bleu_tokenize)
        # Copied arguments, as by dataclasses.replace, may have that of another metric
        if self.greater_is_better is None or self.metric_for_best_model.endswith(_OWN_METRICS):
            self.greater_is_better = not self.metric_for_best_model.endswith(_LOWER_IS_BETTER)
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
        if noam and self.warmup_steps < 1:
            raise UserError(f"The noam schedule needs at least one step of warm-up, got {self.warmup_steps}.")
        if self.bf16 == AUTO and self.fp16:
            raise UserError("bf16 may not be 'auto' together with fp16.")
        if self.torch_compile_backend or self.torch_compile_mode:
            self.torch_compile = True
        elif self.torch_compile is None:
            self.torch_compile = AUTO
        replaced: dict[str, object] = dict(_NOT_COMPILED)
        if noam:
            # transformers accepts only the names of its own schedules here; this one has the same shape
            replaced["lr_scheduler_type"] = "inverse_sqrt"
        if self.bf16 == AUTO:
            # Until the model is there to measure with
            replaced["bf16"] = False
        own = {name: getattr(self, name) for name in replaced}
        vars(self).update(replaced)
        with checking_settings():
            super().__post_init__()
        vars(self).update(own)

    def set_precision(self, bfloat16: bool) -> None:
        """Set whether to train in bfloat16, in place of "auto"."""
        self.bf16 = bfloat16
        self.mixed_precision = "bf16" if bfloat16 else "no"

    def undecided(self) -> list[str]:
        """Return the names of the settings that are "auto" until the trainer has the model."""
        return [name for name in ("bf16", "torch_compile") if getattr(self, name) == AUTO]

    def describe_choice(self, name: str) -> str:
        """Return what the user should know of the choice for a setting that was "auto"; "" for nothing."""
        if name == "bf16":
            return f"--bf16 auto: training in {'bfloat16' if self.bf16 else 'float32'}"
        if self.torch_compile:
            return "--torch_compile auto: the first updates wait until the layers are compiled"
        return ""

    def keep_choices(self, recorded: Settings) -> None:
        """Replace "auto" by the choices of a run that resumes, given its settings, whatever is faster here."""
        if self.bf16 == AUTO:
            self.set_precision(bool(recorded.get("bf16", False)))
        if self.torch_compile == AUTO:
            # None, as it is recorded, in runs from before there was this choice
            self.torch_compile = recorded.get("torch_compile")  # type: ignore[assignment]

    @property
    def batch_seed(self) -> int:
        """Return the seed of the batches."""
        return self.seed if self.data_seed is None else self.data_seed

    def metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics that validation reports, without "eval_"."""
        return ("loss", "perplexity", *(("bleu",) if self.eval_bleu else ()))

    def check_metric(self) -> None:
        """Check that validation reports `metric_for_best_model`, of one validation text or another.

        Raises:
            ValueError: if it does not. A trainer with its own metrics may report others.
        """
        if not str(self.metric_for_best_model).endswith(self.metrics()):
            names = ", ".join(self.metrics())
            raise UserError(f"metric_for_best_model must be one of {names}, got {self.metric_for_best_model!r}.")


@dataclass
class ModelArguments(VocabularyFlags):
    """The model to train; fields that are not given come from the preset or from the pretrained model.

    Args:
        preset: Settings: tiny, base, big or a row of the paper's Table 3 (default on the command line: tiny for fewer
            than 200,000 pairs, else base); the defaults shown are base's.
        model_name_or_path: Trained model to start from, with its tokenizer.
        tokenizer_name: Tokenizer to use; by default, learn one from the text.
        d_model: Width of the model.
        num_encoder_layers: Number of encoder layers.
        num_decoder_layers: Number of decoder layers.
        num_heads: Number of attention heads.
        d_ff: Inner width of the feed-forward sub-layers.
        d_k: Width of the keys of one head.
        d_v: Width of the values of one head.
        dropout: Dropout on sub-layer outputs and embeddings.
        attention_dropout: Dropout on attention weights.
        activation_dropout: Dropout inside the feed-forward sub-layers.
        position_embedding: 'sinusoidal' or 'learned'.
        initializer_range: Standard deviation of initial matrices (default: as in tensor2tensor).
        num_beams: Beam size saved with the model (4 in the paper).
        length_penalty: Length penalty alpha saved with the model (0.6 in the paper).
        license: Licence of the model for its card, such as 'apache-2.0'.
    """

    TITLE: ClassVar[str] = "the model"

    # It decides nothing by itself: the settings that it stands for are recorded one by one
    preset: str = option("base", _NOTHING)
    model_name_or_path: str | None = option(None, _ORIGIN)
    tokenizer_name: str | None = option(None, _ORIGIN)
    d_model: int | None = option(None, _SIZE)
    num_encoder_layers: int | None = option(None, _SIZE)
    num_decoder_layers: int | None = option(None, _SIZE)
    num_heads: int | None = option(None, _SIZE)
    d_ff: int | None = option(None, _SIZE)
    d_k: int | None = option(None, _SIZE)
    d_v: int | None = option(None, _SIZE)
    dropout: float | None = option(None, _LEARNING)
    attention_dropout: float | None = option(None, _LEARNING)
    activation_dropout: float | None = option(None, _LEARNING)
    position_embedding: str | None = option(None, _SIZE)
    initializer_range: float | None = option(None, _SIZE)
    num_beams: int | None = option(None, _SCORES, parse=positive)
    length_penalty: float | None = option(None, _SCORES, parse=finite)
    license: str | None = option(None, _PRIVATE)

    def __post_init__(self):
        super().__post_init__()
        check_values(self)
        # As when the model is loaded
        check_search(self.overrides(vars(GenerationConfig())), VanillaTransformerConfig())

    def overrides(self, names: Collection[str]) -> dict[str, object]:
        """Return the given fields among `names`, those of a configuration."""
        return {name: value for name, value in vars(self).items() if name in names and value is not None}


@dataclass
class DataArguments(CleaningFlags):
    """The text to train on; without a file or dataset, the built-in English-German phrases.

    Args:
        train_file: Training texts: .jsonl, .tsv, .csv or .parquet files, prefixes P of Moses files P.en and P.de, or
            folders made by `prepare` or by `translate --output_dir`.
        streaming: Read a prepared folder sequentially instead of memory-mapping it.
        validation_file: Validation texts (no prepared folder): one for each training text, or one for all.
        dataset_name: Datasets on the Hub, with a split 'train' and optionally 'validation'.
        dataset_config_name: Configuration of each, such as 'de-en', or all.
        train_weights: How often each pair of each training text is used per epoch: 3 is three times, 0.5 is half of
            the pairs in one epoch and the others in the next (default: once).
        sampling_temperature: Use each text in proportion to its size ** (1 / this), the largest once.
        language_pairs: Direction of each training text, or of all, such as en-de de-en; with several, the source
            starts with a tag of the target language. Lines of .jsonl may have 'source', 'target', 'source_lang' and
            'target_lang' instead.
        source_tag: Tag at the start of every source of each text, such as <bt> for synthetic text; '' for none.
        bpe_dropout: Probability of leaving out a merge in training text (0.1 is usual).
        source_lang: Source language of the text (default: the model's or 'en').
        target_lang: Target language of the text (default: the model's or 'de').
    """

    TITLE: ClassVar[str] = "the text"

    train_file: list[str] | None = option(None, _TEXT)
    streaming: bool = option(False, _LEARNING)
    validation_file: list[str] | None = option(None, _VALIDATION)
    dataset_name: list[str] | None = option(None, _TEXT)
    dataset_config_name: list[str] | None = option(None, _LEARNING)
    train_weights: list[float] | None = option(None, _LEARNING, parse=_positive_each)
    sampling_temperature: float | None = option(None, _LEARNING, parse=_at_least_1)
    language_pairs: list[str] | None = option(None, Meaning(Decides.LEARNING, replaces=("source_lang", "target_lang")))
    source_tag: list[str] | None = option(None, _LEARNING)
    bpe_dropout: float = option(0.0, _LEARNING, parse=_probability)
    source_lang: str | None = option(None, _LEARNING)
    target_lang: str | None = option(None, _LEARNING)

    def __post_init__(self):
        super().__post_init__()
        if self.language_pairs and (self.source_lang or self.target_lang):
            raise UserError("Give either --language_pairs or --source_lang and --target_lang.")
        if self.train_weights and self.sampling_temperature:
            raise UserError("Give either --train_weights or --sampling_temperature.")
        check_values(self)


@dataclass(frozen=True)
class Recipe:
    """Everything that flags, recipe, preset and output folder decide about a run; resolved once, before text is read.

    Args:
        data: with both languages set, or with several language pairs.
        config: the configuration of the model.
        folder: the output folder.
        settings: what is recorded there, by names of flags.
        recorded: the settings of the run that it holds; None if it holds none.
    """

    model: ModelArguments
    data: DataArguments
    args: VanillaTransformerTrainingArguments
    config: VanillaTransformerConfig
    folder: str
    settings: Settings
    recorded: Settings | None


RUN_FLAGS = (ModelArguments, DataArguments, VanillaTransformerTrainingArguments)
_MEANINGS: dict[str, Meaning] = {
    flag.name: known for kind in RUN_FLAGS for flag in fields(kind) if (known := details(flag).meaning)
}
_MEANINGS |= {PROCESSES: _LEARNING, TEXT: _TEXT, VALIDATION: _VALIDATION}


def meaning(name: str) -> Meaning:
    """Return the meaning of a flag of `train`, or of what is recorded with it."""
    inherited = (known for known, starts in _INHERITED if name.startswith(starts))
    return _MEANINGS.get(name) or next(inherited, _LEARNING)


def decided_by(name: str, settings: Mapping[str, object]) -> Decides:
    """Return what a flag of `train` decides in a run with these settings."""
    # Each worker of a stream builds its own batches
    if name == "dataloader_num_workers" and settings.get("streaming"):
        return Decides.LEARNING
    decides = meaning(name).decides
    is_endless = settings.get("lr_scheduler_type") in _ENDLESS_SCHEDULES
    return Decides.LEARNING if decides is Decides.LENGTH and not is_endless else decides
