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
    max_grad_norm: float = _field("Gradients are clipped to this norm; 0, the paper's way, leaves them alone.", 0.0)
    save_steps: float = _field("Updates between checkpoints; below 1, a share of all updates.", 1500)
    save_total_limit: int | None = _field("Newest checkpoints to keep; the paper averages 5.", 5)
    # in this order, as in transformers: HfArgumentParser takes the type from the second place
    report_to: None | str | list[str] = _field("Where metrics go: 'tensorboard', 'wandb', 'all', 'none' ....", "none")

    def __post_init__(self):
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}.")
        noam = self.lr_scheduler_type == NOAM
        if self.learning_rate is None:
            self.learning_rate = 1.0 if noam else 5e-5
        if self.eval_steps is None:
            self.eval_steps = self.save_steps
        if noam:
            if self.warmup_steps < 1:
                raise ValueError(f"The noam schedule needs at least one step of warm-up, got {self.warmup_steps}.")
            # transformers accepts only its own names here; this is the one of the same shape
            self.lr_scheduler_type = "inverse_sqrt"
        super().__post_init__()
        if noam:
            self.lr_scheduler_type = NOAM


@dataclass
class ModelArguments:
    """What to train. A field left out is the preset's."""

    preset: str = _field("Model and training settings: tiny, base, big or a row of the paper's Table 3.", "base")
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

    def overrides(self) -> dict[str, Any]:
        """The model fields that were given, by their names in the config."""
        return {name: value for name, value in vars(self).items() if name != "preset" and value is not None}


@dataclass
class DataArguments:
    """What to train on; with no file at all, the built-in English-German phrases."""

    train_file: str | None = _field("Moses prefix of the training text: P for P.en and P.de.")
    validation_file: str | None = _field("The same for the validation text.")
    source_lang: str = _field("Language translated from, as in the file's ending.", "en")
    target_lang: str = _field("Language translated to.", "de")
