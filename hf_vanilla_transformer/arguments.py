"""The dataclasses behind the command line; each field is a flag, its help the flag's."""

from dataclasses import dataclass, field
from typing import Any

from transformers import Seq2SeqTrainingArguments

NOAM = "noam"


def _field(help: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class VanillaTransformerTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the defaults of section 5 of the paper (its base model)."""

    _argument_group_name = "training: this package's flags, and all of transformers' Seq2SeqTrainingArguments"

    max_tokens: int = _field("Most tokens of a batch's source, and of its target, with padding (section 5.1).", 25_000)
    max_steps: int = _field("Updates to make; -1 leaves it to --num_train_epochs.", 100_000)
    lr_scheduler_type: str = _field("The paper's 'noam' (section 5.3), or a schedule of transformers' own.", NOAM)
    learning_rate: float | None = _field(
        "Under 'noam' the factor on the schedule, 1.0 if not given; else the peak rate, 5e-5 if not given."
    )
    warmup_steps: float = _field("Updates during which the learning rate rises (section 5.3).", 4000)
    adam_beta2: float = _field("Adam's beta2 (section 5.3).", 0.98)
    adam_epsilon: float = _field("Adam's epsilon (section 5.3).", 1e-9)
    label_smoothing_factor: float = _field("The paper's epsilon_ls (section 5.4).", 0.1)
    r_drop_alpha: float = _field("Weight of R-Drop (arXiv:2106.14448), each pair passing twice; 0 for none.", 0.0)
    ema_decay: float = _field("Validate and keep a moving average of the weights, such as 0.999's; 0 for none.", 0.0)
    max_grad_norm: float = _field("Gradients are clipped to this norm; 0, the paper's way, leaves them alone.", 0.0)
    save_steps: float = _field("Updates between checkpoints; below 1, a share of all updates.", 1500)
    save_total_limit: int | None = _field("Newest checkpoints to keep beside the best; the paper averages 5.", 5)
    eval_bleu: bool = _field("Translate the validation text at each evaluation and report its BLEU.", True)
    bleu_tokenize: str = _field("sacreBLEU's tokenisation for it; 'none' for text that is tokenised already.", "13a")
    ddp_find_unused_parameters: bool | None = _field("Only for models some of whose weights rest in a step.", False)
    hub_strategy: str = _field("Only 'end': the finished model is uploaded, with its card.", "end")
    early_stopping_patience: int | None = _field(
        "Evaluations without a better metric_for_best_model after which training stops; the best model is then kept."
    )
    # in this order, as in transformers: HfArgumentParser takes the type from the second place
    report_to: None | str | list[str] = _field("Where metrics go: 'tensorboard', 'wandb', 'all', 'none' ....", "none")

    def __post_init__(self):
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}.")
        if self.r_drop_alpha < 0:
            raise ValueError(f"r_drop_alpha must not be negative, got {self.r_drop_alpha}.")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must be at least 0 and below 1, got {self.ema_decay}.")
        noam = self.lr_scheduler_type == NOAM
        if self.learning_rate is None:
            self.learning_rate = 1.0 if noam else 5e-5
        if self.eval_steps is None:
            self.eval_steps = self.save_steps
        if self.metric_for_best_model is None:
            self.metric_for_best_model = "bleu" if self.eval_bleu else "loss"
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


@dataclass
class ModelArguments:
    """What to train. A field left out is the preset's, or that of the model to start from."""

    _argument_group_name = "the model"

    preset: str = _field("Model and training settings: tiny, base, big or a row of the paper's Table 3.", "base")
    model_name_or_path: str | None = _field("A trained model to go on from, with its tokenizer; else from nothing.")
    tokenizer_name: str | None = _field("A tokenizer to use; else one is learned from the training text.")
    vocab_size: int | None = _field("Tokens in the joint vocabulary.")
    d_model: int | None = _field("Width of the model.")
    num_encoder_layers: int | None = _field("Layers of the encoder.")
    num_decoder_layers: int | None = _field("Layers of the decoder.")
    num_heads: int | None = _field("Attention heads.")
    d_ff: int | None = _field("Inner width of the feed-forward sub-layers.")
    d_k: int | None = _field("Width of one head's keys.")
    d_v: int | None = _field("Width of one head's values.")
    dropout: float | None = _field("On sub-layer outputs and embeddings.")
    attention_dropout: float | None = _field("On attention weights.")
    activation_dropout: float | None = _field("Inside the feed-forward sub-layers.")
    position_embedding: str | None = _field("'sinusoidal' or 'learned'.")
    initializer_range: float | None = _field("Standard deviation of initial matrices; else tensor2tensor's.")
    num_beams: int | None = _field("Beam size saved with the model, 4 in the paper.")
    length_penalty: float | None = _field("Alpha saved with the model, 0.6 in the paper.")
    license: str | None = _field("Licence of the model, for its card, such as 'apache-2.0'.")

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

    train_file: str | None = _field(
        "Training text: a .jsonl, .tsv, .csv or .parquet file, the prefix P of a Moses pair P.en and P.de, or a "
        "folder that scripts/prepare_data.py made."
    )
    streaming: bool = _field("Read a prepared folder from start to end, instead of mapping it into memory.", False)
    validation_file: str | None = _field("The same for the validation text.")
    dataset_name: str | None = _field("A data set of the Hub instead, with splits 'train' and perhaps 'validation'.")
    dataset_config_name: str | None = _field("Its configuration, such as 'de-en'.")
    source_lang: str | None = _field("Language translated from, as the text names it; else the model's, or 'en'.")
    target_lang: str | None = _field("Language translated to; else the model's, or 'de'.")
    clean: bool = _field("Drop long, uneven and duplicate pairs and those with markup from the training text.", True)
    max_sentence_tokens: int = _field("The longest side of a training pair, in tokens.", 256)
    max_length_ratio: float = _field("The most tokens that one side may have for one of the other.", 4.0)
