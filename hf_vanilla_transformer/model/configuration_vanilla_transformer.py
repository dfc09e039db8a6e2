"""Configuration of the Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv:1706.03762)."""

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig

from .errors_vanilla_transformer import UserError

IGNORED_LABEL = -100  # label of positions that the loss ignores, as in torch and transformers
# More, which only a damaged file asks for, would fill the memory with sinusoids, or take hours to build
MAX_POSITIONS = 1_000_000
MAX_LAYERS = 1000

ALIASES_OF_TWO = {"num_hidden_layers": "num_encoder_layers", "head_dim": "d_v"}  # and the second field that each sets

# Where transformers finds the code of a saved model if this package is not installed. Saving a model copies these
# files next to its weights, because `_auto_class` is set on the classes here and in the modeling file.
_AUTO_MAP = {
    "AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig",
    "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
    "AutoModelForSeq2SeqLM": "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration",
}
_CUSTOM_PIPELINES = {
    "translation": {
        "impl": "pipeline_vanilla_transformer.TranslationPipeline",
        "pt": ["AutoModelForSeq2SeqLM"],
        "type": "text",
    }
}


@strict
class VanillaTransformerConfig(PreTrainedConfig):
    r"""
    Configuration of a Transformer. The defaults are the paper's base model (section 3).

    Every other row of the paper's Table 3 changes some of these fields.

    Args:
        vocab_size: Size of the vocabulary, which source and target share (section 3.4).
        d_model: Width of every sub-layer's output.
        num_encoder_layers, num_decoder_layers: The paper's N, 6 for both.
        num_heads: Number of attention heads, the paper's h.
        d_ff: Inner width of the feed-forward sub-layer (section 3.3).
        d_k, d_v: Width of each head's keys (and queries) and of its values. Default: `d_model // num_heads`. Rows A
            and B of Table 3 vary them.
        dropout: Dropout probability on each sub-layer's output before it is added to the sub-layer's input, and on
            the sums of embeddings and positions in both stacks (section 5.4).
        attention_dropout, activation_dropout: Dropout probabilities on the attention weights and inside the
            feed-forward sub-layer. The paper uses neither.
        activation_function: A key of transformers' `ACT2FN`. The paper uses "relu".
        position_embedding: "sinusoidal" (section 3.5, any length) or "learned" (row E, at most
            `max_position_embeddings` positions).
        max_position_embeddings: Initial number of positions. A sinusoidal table grows if a text is longer.
        attention_bias: Whether the four projections of an attention layer have biases. The paper's have none.
        lm_head_bias: Whether the pre-softmax projection has a bias. The paper's has none.
        layer_norm_eps: Epsilon of layer normalisation. The paper does not give one; the default is tensor2tensor's.
        initializer_range: Standard deviation of all initial weight matrices. Default: tensor2tensor's initialisation
            (Xavier-uniform matrices, embeddings from N(0, 1 / d_model)), because the paper does not describe its own.
            In short training runs, narrow models reach better results with 0.02.
        length_normalization: Score of a hypothesis in beam search: "gnmt" is log P / ((5 + |Y|) / 6)^alpha (section
            6.1, Wu et al. 2016), "length" is transformers' log P / |Y|^alpha. alpha is the generation config's
            `length_penalty`.
        source_lang, target_lang: Languages that the model translates from and to, if known; None for a side on which
            a model of several directions has several languages.
        language_pairs: Directions of a model that was trained on several, such as "en-de". Each source then starts
            with a tag of the target language, "<2de>" (Johnson et al. 2017).
        doubtful_score: Mean log-probability per token of a translation, in nats, below which it is doubtful. Training
            sets it to what 99 % of the translations of the validation text exceed; None if unknown.
        tie_word_embeddings: Whether both inputs and the output projection share one matrix (section 3.4).

    The names that other models of transformers use for these fields, in `attribute_map`, are accepted too.
    `num_hidden_layers` sets both stacks and `head_dim` both widths, unless the second field is given as well. The same
    holds for fields that are set later, as by `from_pretrained(..., num_hidden_layers=2)`, and widths that have their
    default value follow `d_model` and `num_heads`.

    Raises:
        ValueError: If a field is out of range, or two of its names are given different values. The message names it.
        StrictDataclassError: If a field has the wrong type (from huggingface_hub).
    """

    model_type = "vanilla_transformer"
    _auto_class = "AutoConfig"
    # the name depends on the release of transformers
    keys_to_ignore_at_inference = ["cache", "past_key_values"]
    attribute_map = {
        "hidden_size": "d_model",
        # transformers reads num_hidden_layers to size the decoder's cache
        "num_hidden_layers": "num_decoder_layers",
        "num_attention_heads": "num_heads",
        "head_dim": "d_k",
        "encoder_layers": "num_encoder_layers",
        "decoder_layers": "num_decoder_layers",
        "encoder_attention_heads": "num_heads",
        "decoder_attention_heads": "num_heads",
        "encoder_ffn_dim": "d_ff",
        "decoder_ffn_dim": "d_ff",
        "intermediate_size": "d_ff",
    }
    if TYPE_CHECKING:
        hidden_size: int = 512
        num_hidden_layers: int = 6
        num_attention_heads: int = 8
        head_dim: int | None = None
        encoder_layers: int = 6
        decoder_layers: int = 6
        encoder_attention_heads: int = 8
        decoder_attention_heads: int = 8
        encoder_ffn_dim: int = 2048
        decoder_ffn_dim: int = 2048
        intermediate_size: int = 2048

    vocab_size: int = 37000
    d_model: int = 512
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    num_heads: int = 8
    d_ff: int = 2048
    d_k: int | None = None
    d_v: int | None = None
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    activation_function: str = "relu"
    position_embedding: str = "sinusoidal"
    max_position_embeddings: int = 1024
    attention_bias: bool = False
    lm_head_bias: bool = False
    layer_norm_eps: float = 1e-6
    initializer_range: float | None = None
    length_normalization: str = "gnmt"
    source_lang: str | None = None
    target_lang: str | None = None
    language_pairs: list[str] | None = None
    doubtful_score: float | int | None = None
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    tie_word_embeddings: bool = True

    def __new__(cls, *args, **kwargs):
        """Return a new configuration that remembers what is given: `__post_init__` only sees the fields' values."""
        config = super().__new__(cls)
        # copying and unpickling give nothing, and have no `__post_init__` which removes it
        if kwargs:
            vars(config)["_given"] = kwargs
        return config

    def __setattr__(self, name, value):
        """Set a field by any of its names, and the fields that follow from it, as at construction."""
        field = self.attribute_map.get(name, name)
        widths: list[str] = []
        # at construction, `__post_init__` derives them
        if field in ("d_model", "num_heads") and "d_v" in vars(self) and "_given" not in vars(self):
            widths = [width for width in ("d_k", "d_v") if getattr(self, width) == self._default_width()]
        super().__setattr__(name, value)
        for width in widths:
            super().__setattr__(width, self._default_width())
        if name in ALIASES_OF_TWO:
            super().__setattr__(ALIASES_OF_TWO[name], value)

    def _default_width(self) -> int:
        # a number of heads that is out of range has its own error
        return self.d_model // max(self.num_heads, 1)

    def __post_init__(self, **kwargs):
        # first, because other fields are derived from them
        self._apply_aliases(kwargs)
        if self.num_heads < 1:
            raise UserError(f"num_heads must be at least 1, got {self.num_heads}.")
        if self.d_k is None:
            self.d_k = self._default_width()
        if self.d_v is None:
            self.d_v = self._default_width()
        self.validate_architecture()
        for name in ("auto_map", "custom_pipelines"):
            # written again on saving
            kwargs.pop(name, None)
        if __name__.startswith("transformers_modules"):
            # Set only in the copy that travels with a saved model: transformers requires trust_remote_code for a
            # config with custom_pipelines, and the installed package does not need it. A copy, because transformers
            # changes the dictionary.
            kwargs["custom_pipelines"] = deepcopy(_CUSTOM_PIPELINES)
        super().__post_init__(auto_map=dict(_AUTO_MAP), **kwargs)

    def _apply_aliases(self, kwargs: dict[str, Any]) -> None:
        """Set the fields that are given under other names, which are removed from `kwargs`.

        Raises:
            ValueError: If a field is given with different values.
        """
        given = {name: value for name, value in vars(self).get("_given", {}).items() if value is not None}
        names = {name: name for name in given}
        for alias, field in self.attribute_map.items():
            value = kwargs.pop(alias, None)
            if value is None:
                continue
            if given.setdefault(field, value) != value:
                known = f"{names[field]}={given[field]!r}"
                raise UserError(f"{alias}={value!r} contradicts {known}: both set {field}; give only one of them.")
            names.setdefault(field, alias)
            setattr(self, field, value)
        for alias, other in ALIASES_OF_TWO.items():
            if alias in given and other not in given:
                setattr(self, other, given[alias])
        vars(self).pop("_given", None)

    def validate_architecture(self):
        """Check that the fields describe a model that can be built.

        Called at construction, and by `@strict` on saving.

        Raises:
            ValueError: If a field is out of range.
        """
        sizes = ("vocab_size", "d_model", "num_encoder_layers", "num_decoder_layers", "d_ff", "d_k", "d_v")
        for name in (*sizes, "max_position_embeddings"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}.")
        limits = {"max_position_embeddings": MAX_POSITIONS}
        limits |= {"num_encoder_layers": MAX_LAYERS, "num_decoder_layers": MAX_LAYERS}
        for name, most in limits.items():
            if getattr(self, name) > most:
                raise UserError(f"{name} must be at most {most:,}, got {getattr(self, name):,}.")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"{name} must be in [0, 1), got {getattr(self, name)}.")
        choices = {"position_embedding": ("sinusoidal", "learned"), "length_normalization": ("gnmt", "length")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise UserError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}.")
        if self.position_embedding == "sinusoidal" and self.d_model % 2:
            raise UserError(f"d_model must be even for sinusoidal positions, got {self.d_model}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields to save, including where to find the pipeline's code."""
        return {**super().to_dict(), "custom_pipelines": deepcopy(_CUSTOM_PIPELINES)}


__all__ = ["VanillaTransformerConfig"]
