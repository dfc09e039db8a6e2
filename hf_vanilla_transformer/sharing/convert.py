"""Convert models exactly, from and to MarianMT.

A converted model computes the same logits. Models that have no equivalent raise a `ValueError`.
"""

import copy
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, OfflineModeIsEnabled
from torch import nn
from transformers import AutoTokenizer, MarianConfig, MarianMTModel, PreTrainedModel, PreTrainedTokenizerBase
from yaml import YAMLError

from .. import files
from ..data.tokenizer import check_tokenizer
from ..errors import UserError
from ..files import CARD, MODEL_TYPES, RECORD, JsonObject
from ..loading import find_weights, load, load_complete, load_model, loading_errors, read_model_type
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .card import CardDetails, model_card, write_card, write_record
from .marian_tokenizer import adopt_languages, for_marian, save_for_all_releases

MARIAN = "marian"
VANILLA_TRANSFORMER = VanillaTransformerConfig.model_type
_LANGUAGES = ("source_lang", "target_lang", "language_pairs")
_KEPT = (*_LANGUAGES, "doubtful_score")  # fields that a MarianConfig does not have, but a copy as MarianMT keeps
_DOWNLOADS = [
    *files.CONFIGS,
    *files.VOCABULARIES,
    files.WEIGHT_FILES,
    CARD,
    RECORD,
]  # the card of a copy is made from these

# Each model computes its own sinusoids, in its own order, so those of the other are never copied.
_POSITION_TABLE = "embed_positions.weight"


def _shared_fields(config: VanillaTransformerConfig | MarianConfig) -> dict[str, Any]:
    """Return the fields that the configurations of both classes have under the same name and with the same meaning."""
    # Only what the classes themselves declare, not what they inherit, such as the version of transformers.
    names = VanillaTransformerConfig.__annotations__.keys() & MarianConfig.__annotations__.keys()
    return {name: getattr(config, name, None) for name in (*names, *_KEPT)}


def _permute_residual(name: str, tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return the parameter `name` with the dimensions of the residual stream (d_model) permuted by `order`.

    The paper interleaves sines and cosines; Marian puts all sines before all cosines. The difference is a permutation
    of the d_model dimensions, which must be applied to every parameter that reads or writes the residual stream. The
    dimensions inside a sub-layer (heads, d_ff) do not change.
    """
    module, kind = name.split(".")[-2:]

    # These write the stream: their weights are (d_model, ...) and their biases (d_model,). A linear layer's weight is
    # (outputs, inputs).
    if module.endswith("layer_norm") or module in ("out_proj", "fc2"):
        return tensor[order]

    # All others read it: embeddings, (vocabulary, d_model), and projections into a sub-layer, whose biases are inside.
    return tensor[:, order] if kind == "weight" else tensor


def _marian_order(d_model: int) -> torch.Tensor:
    """Return `order` (d_model,) such that dimension j in Marian is dimension `order[j]` in the paper."""
    return torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))


def from_marian(marian: MarianMTModel) -> VanillaTransformerForConditionalGeneration:
    """Convert a `MarianMTModel` to a model of this package with the same logits.

    The generation config is copied; `length_normalization` is "length", as in Marian.

    Raises:
        ValueError: if it is a model of another class, has separate source and target vocabularies or unscaled
            embeddings, or if the number of heads or d_ff differs between encoder and decoder.
    """
    source = marian.config
    _check_marian(source)
    if not isinstance(marian, MarianMTModel):
        raise UserError(f"Cannot convert: a {type(marian).__name__} has no output layer; load a MarianMTModel.")

    weights = {name: tensor for name, tensor in marian.state_dict().items() if not name.endswith(_POSITION_TABLE)}
    output_bias = weights.pop("final_logits_bias")[0]  # (1, vocab_size) -> (vocab_size,)

    # Marian always has these biases. A model that was converted from the paper's, which has none, has zeros in them;
    # leaving them out lets it come back with the configuration that it had.
    attention_biases = [name for name in weights if name.endswith("_proj.bias")]
    config = VanillaTransformerConfig(
        **_shared_fields(source),
        num_encoder_layers=source.encoder_layers,
        num_decoder_layers=source.decoder_layers,
        num_heads=source.encoder_attention_heads,
        d_ff=source.encoder_ffn_dim,
        attention_bias=any(weights[name].any() for name in attention_biases),
        lm_head_bias=bool(output_bias.any()),
        # A constant in saved models, but not in those that `to_marian` returns.
        layer_norm_eps=marian.model.encoder.layers[0].final_layer_norm.eps,
        length_normalization="length",
    )
    if not config.attention_bias:
        for name in attention_biases:
            del weights[name]

    # Sorting a permutation yields its inverse: from Marian's order back to the paper's.
    order = _marian_order(config.d_model).argsort()
    weights = {name: _permute_residual(name, tensor, order) for name, tensor in weights.items()}
    if config.lm_head_bias:
        weights["lm_head.bias"] = output_bias
    if not config.tie_word_embeddings:
        # Marian's state names a shared embedding even where none is shared.
        del weights["model.shared.weight"]

    # Any, because mypy cannot call transformers' decorated `to`.
    model: Any = VanillaTransformerForConditionalGeneration(config)
    model.to(dtype=marian.dtype, device=marian.device)
    model.load_state_dict(weights)
    model.generation_config = copy.deepcopy(marian.generation_config)
    return model.train(marian.training)


def _check_marian(config: MarianConfig) -> None:
    """Check that the paper's model has the same parts as a model of Marian.

    Raises:
        ValueError: if it does not, or the model is of another class.
    """
    _check_convertible(config.model_type, MARIAN)
    if not config.share_encoder_decoder_embeddings or config.decoder_vocab_size != config.vocab_size:
        raise UserError("Cannot convert: this Marian model has separate source and target vocabularies.")
    if not config.scale_embedding:
        raise UserError("Cannot convert: this Marian model does not scale its embeddings by sqrt(d_model).")
    for field in ("attention_heads", "ffn_dim"):
        sizes = [getattr(config, f"{stack}_{field}") for stack in ("encoder", "decoder")]
        if sizes[0] != sizes[1]:
            name = "the number of heads" if field == "attention_heads" else "d_ff"
            raise UserError(f"Cannot convert: {name} differs between encoder and decoder: {sizes}.")


def _check_convertible(model_type: str, expected: str) -> None:
    """Check that the class of a model can be converted.

    Raises:
        ValueError: if it cannot, saying what differs.
    """
    if model_type != expected:
        raise UserError(f"Cannot convert: this is not a {expected} but a {model_type} model.")


def check_equivalent(config: VanillaTransformerConfig) -> None:
    """Check that MarianMT has an equivalent of a model.

    Raises:
        ValueError: if it has none, saying why.
    """
    _check_convertible(config.model_type, VANILLA_TRANSFORMER)
    if config.position_embedding != "sinusoidal":
        raise UserError("Cannot convert: this model has learned positions, but Marian supports only sinusoidal ones.")
    if {config.d_k, config.d_v} != {config.d_model / config.num_heads}:
        heads = f"d_k {config.d_k} and d_v {config.d_v}, with d_model {config.d_model} and {config.num_heads} heads"
        raise UserError(f"Cannot convert: Marian's heads are d_model / num_heads wide, but this model has {heads}.")


def to_marian(model: VanillaTransformerForConditionalGeneration) -> MarianMTModel:
    """Convert a model to a `MarianMTModel` with the same logits, for tools that support Marian.

    Marian's layer-norm epsilon is a constant, 1e-5. The returned model has the epsilon of `model`, but a saved and
    reloaded copy has 1e-5. Marian's `generate` supports neither the GNMT length penalty nor the output limit of source
    length + 50 (section 6.1): without a limit of its own, the copy's translations end at `max_position_embeddings`.

    Raises:
        ValueError: if the model has learned positions, or d_k or d_v is not d_model / num_heads.
    """
    source = model.config
    check_equivalent(source)

    config = MarianConfig(
        **_shared_fields(source),
        encoder_layers=source.num_encoder_layers,
        decoder_layers=source.num_decoder_layers,
        encoder_attention_heads=source.num_heads,
        decoder_attention_heads=source.num_heads,
        encoder_ffn_dim=source.d_ff,
        decoder_ffn_dim=source.d_ff,
        scale_embedding=True,
        # By default, Marian would force token 0 at the length limit, here the padding.
        forced_eos_token_id=None,
    )

    weights = model.state_dict()
    output_bias = weights.pop("lm_head.bias", None)
    order = _marian_order(config.d_model)
    weights = {name: _permute_residual(name, tensor, order) for name, tensor in weights.items()}
    if output_bias is not None:
        weights["final_logits_bias"] = output_bias[None]  # (1, vocab_size)
    # Marian's state names all three embeddings, whether they are tied or not.
    embedding = _permute_residual("shared.weight", model.model.encoder.embed_tokens.weight, order)
    for module in ("shared", "encoder.embed_tokens", "decoder.embed_tokens"):
        weights.setdefault(f"model.{module}.weight", embedding)

    # Any, because mypy cannot call transformers' decorated `to`.
    marian: Any = MarianMTModel(config)
    marian.to(dtype=model.dtype, device=model.device)
    # What the paper's model lacks keeps its initial value: the biases of attention and of the output are zero, and the
    # table of positions is Marian's own. Anything else that is missing is an error.
    lacking = ("_proj.bias", "final_logits_bias", _POSITION_TABLE)
    initial = {name: tensor for name, tensor in marian.state_dict().items() if name.endswith(lacking)}
    marian.load_state_dict(initial | weights)
    for module in marian.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = source.layer_norm_eps

    settings = copy.deepcopy(model.generation_config)
    if settings.max_length == vars(settings).pop("longest_output", None):
        # The limit of this package's `generate` is relative to the source, which no generation config can say; without
        # one, Marian's `generate` would end every translation after 20 tokens.
        settings.max_length = None if settings.max_new_tokens else source.max_position_embeddings
    marian.generation_config = settings
    return marian.train(model.training)


def from_pretrained(
    source: str | Path,
    output_dir: str | Path | None = None,
    to: str = VANILLA_TRANSFORMER,
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Convert a saved model with its tokenizer, and write both, with a model card, if there is an `output_dir`.

    Args:
        source: the folder of a MarianMT model such as OPUS-MT's, or its name on the Hub; or a model of this package.
        output_dir: a folder to write to, which must be new or empty.
        to: one of `MODEL_TYPES`: the class of the converted model.
        source_lang, target_lang: the languages of a MarianMT model whose tokenizer and name do not specify them.

    Raises:
        ImportError: if the packages of its tokenizer are not installed.
        OSError: if the model cannot be loaded.
        ValueError: if it has no equivalent, saying why, or `output_dir` is in use.
    """
    if to not in MODEL_TYPES:
        raise UserError(f"to must be one of {', '.join(MODEL_TYPES)}, got {to!r}.")
    if to == MARIAN and (source_lang or target_lang):
        raise UserError("The languages of a model of this package are its own: give none with a conversion to marian.")
    name = str(source)
    _check_convertible(read_model_type(name), VANILLA_TRANSFORMER if to == MARIAN else MARIAN)
    model: PreTrainedModel
    if to == MARIAN:
        if not Path(name).is_dir():
            # the card is made from its files
            with loading_errors(name):
                name = snapshot_download(name, allow_patterns=_DOWNLOADS)
        model, tokenizer = _load_as_marian(name)
    else:
        model, tokenizer = _load_from_marian(name, source_lang, target_lang)
    if output_dir is not None:
        details = CardDetails(name=Path(output_dir).resolve().name, format=to)
        with files.new_folder(output_dir) as folder:
            model.save_pretrained(folder)
            if to == MARIAN:
                save_for_all_releases(tokenizer, folder)
                files.write_whole(folder / CARD, str(model_card(name, details)))
            else:
                tokenizer.save_pretrained(folder)
                write_record(folder, _origin(name))
                write_card(folder, details)
    return model, tokenizer


def _load_from_marian(
    name: str, source_lang: str | None, target_lang: str | None
) -> tuple[VanillaTransformerForConditionalGeneration, PreTrainedTokenizerBase]:
    """Return a MarianMT model as one of this package, and its tokenizer."""
    _check_marian(load(MarianConfig, name))
    for module in ("sentencepiece", "sacremoses"):
        files.import_extra(module, "marian")
    # In text, names of special tokens are ordinary characters, as for the tokenizers of this package
    tokenizer = load(AutoTokenizer, name, split_special_tokens=True)
    with loading_errors(name):
        find_weights(name)
    model = from_marian(load_complete(MarianMTModel, name))
    if not any(getattr(model.config, field) for field in _LANGUAGES):
        model.config.update(adopt_languages(tokenizer, name, source_lang, target_lang))
    elif source_lang or target_lang:
        raise UserError(f"{name} names its languages: omit --source_lang and --target_lang.")
    check_tokenizer(tokenizer, model.config)
    return model, tokenizer


def _load_as_marian(name: str) -> tuple[MarianMTModel, PreTrainedTokenizerBase]:
    """Return a model of this package as a MarianMT model with padding as the last token, and its tokenizer."""
    model = to_marian(load_model(name))
    tokenizer, order = for_marian(load(AutoTokenizer, name), model.config.vocab_size)
    _reorder_vocabulary(model, order)
    return model, tokenizer


def _reorder_vocabulary(marian: MarianMTModel, order: list[int]) -> None:
    """Reorder the tokens of a model; `order` has the old id of each, and may leave some out.

    Raises:
        ValueError: if the model needs one that is left out.
    """
    # the new matrices by the old, which modules may share
    reordered: dict[nn.Parameter, nn.Parameter] = {}
    embeddings = (marian.model.shared, marian.model.encoder.embed_tokens, marian.model.decoder.embed_tokens)
    for module in (*embeddings, marian.lm_head):
        old = module.weight
        module.weight = reordered.setdefault(old, nn.Parameter(old.detach()[order]))
    for embedding in embeddings:
        embedding.num_embeddings = len(order)
        embedding.padding_idx = len(order) - 1
    marian.lm_head.out_features = len(order)
    marian.register_buffer("final_logits_bias", marian.final_logits_bias[:, order])
    marian.config.vocab_size = marian.config.decoder_vocab_size = len(order)

    new_ids = {old: new for new, old in enumerate(order)}

    def renumber(value: Any) -> Any:
        """Return the new id of a token, or a list without what has a token that is left out; None if it is empty."""
        if not isinstance(value, list):
            return new_ids[value]
        kept = [item for item in value if new_ids.keys() >= set(item if isinstance(item, list) else [item])]
        return [renumber(item) for item in kept] or None

    names = [f"{name}_token_id" for name in ("pad", "bos", "eos", "decoder_start", "forced_bos", "forced_eos")]
    names += ["suppress_tokens", "begin_suppress_tokens", "bad_words_ids"]
    for config in (marian.config, marian.generation_config):
        for name in names:
            value = getattr(config, name, None)
            if isinstance(value, int) and value not in new_ids:
                raise UserError(f"Cannot convert: the tokenizer has no token {value:,}, the {name} of the model.")
            if value is not None:
                setattr(config, name, renumber(value))


def _origin(name: str) -> JsonObject:
    """Return the record of a converted model, for its card: where it is from, and under which licence."""
    local = Path(name).is_dir()
    card = Path(name, CARD)
    license = None
    if not local or card.is_file():
        # It may have no card, or one that cannot be read
        with suppress(EntryNotFoundError, LocalEntryNotFoundError, OfflineModeIsEnabled, ValueError, YAMLError):
            license = ModelCard.load(card if local else name).data.license
    if isinstance(license, list):
        license = ", ".join(license)
    public = files.public_name(name)
    return {"base_model": public, "converted": public, "converted_license": license, "license": license}
