"""Convert models exactly: from and to MarianMT, and from `torch.nn.Transformer`.

A converted model computes the same logits. Models that have no equivalent raise a `ValueError`.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

if TYPE_CHECKING:
    from transformers import MarianMTModel

_T = TypeVar("_T")
_SHARED_FIELDS = (  # config fields with the same name and meaning in Marian
    "vocab_size",
    "d_model",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "activation_function",
    "max_position_embeddings",
    "use_cache",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "tie_word_embeddings",
)
_POSITION_TABLE = "embed_positions.weight"  # fixed sinusoids: each model computes its own


def _single_value(description: str, values: Iterable[_T]) -> _T:
    """Return the value that all `values` have in common.

    Raises:
        ValueError: if they differ.
    """
    distinct = sorted(set(values), key=str)
    if len(distinct) != 1:
        raise ValueError(f"Cannot convert: {description} differs between parts of the model: {distinct}.")
    return distinct[0]


def _layer_norm_epsilon(model: nn.Module) -> float:
    return _single_value("the layer-norm epsilon", (m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)))


def _permute_residual(name: str, tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return the parameter `name` with the dimensions of the residual stream (d_model) permuted by `order`.

    The paper interleaves sines and cosines; Marian puts all sines before all cosines. The difference is a permutation
    of the d_model dimensions, which must be applied to every parameter that reads or writes the residual stream. The
    dimensions inside a sub-layer (heads, d_ff) do not change.
    """
    module = name.split(".")[-2]
    # what writes to the residual stream has its dimensions as rows, biases included
    if module.endswith("layer_norm") or module in ("out_proj", "fc2"):
        return tensor[order]
    # what reads it, and the embeddings, as columns
    return tensor[:, order] if name.endswith(".weight") else tensor


def _marian_order(d_model: int) -> torch.Tensor:
    """Return `order` (d_model,) such that dimension j in Marian is dimension `order[j]` in the paper."""
    return torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))


def from_marian(marian: "MarianMTModel") -> VanillaTransformerForConditionalGeneration:
    """Convert a `MarianMTModel` to a model of this package with the same logits.

    The generation config is copied; `length_normalization` is "length", as in Marian.

    Raises:
        ValueError: if the model has separate source and target vocabularies or unscaled embeddings, or if the number
            of heads or d_ff differs between encoder and decoder.
    """
    source = marian.config
    if not source.share_encoder_decoder_embeddings:
        raise ValueError("Cannot convert: this Marian model has separate source and target embeddings.")
    if not source.scale_embedding:
        raise ValueError("Cannot convert: this Marian model does not scale its embeddings by sqrt(d_model).")
    weights = {name: tensor for name, tensor in marian.state_dict().items() if not name.endswith(_POSITION_TABLE)}
    # (1, vocab_size), a buffer that is 0 in most models, as the biases of attention may be
    output_bias = weights.pop("final_logits_bias")[0]
    attention_biases = [name for name in weights if name.endswith("_proj.bias")]
    config = VanillaTransformerConfig(
        **{name: getattr(source, name) for name in _SHARED_FIELDS},
        num_encoder_layers=source.encoder_layers,
        num_decoder_layers=source.decoder_layers,
        num_heads=_single_value(
            "the number of heads", (source.encoder_attention_heads, source.decoder_attention_heads)
        ),
        d_ff=_single_value("d_ff", (source.encoder_ffn_dim, source.decoder_ffn_dim)),
        attention_bias=any(weights[name].any() for name in attention_biases),
        lm_head_bias=bool(output_bias.any()),
        layer_norm_eps=_layer_norm_epsilon(marian),
        length_normalization="length",
    )
    if not config.attention_bias:
        for name in attention_biases:
            del weights[name]
    # argsort() inverts a permutation
    order = _marian_order(config.d_model).argsort()
    weights = {name: _permute_residual(name, tensor, order) for name, tensor in weights.items()}
    if config.lm_head_bias:
        weights["lm_head.bias"] = output_bias
    return _build_model(config, weights, marian)


def to_marian(model: VanillaTransformerForConditionalGeneration) -> "MarianMTModel":
    """Convert a model to a `MarianMTModel` with the same logits, for tools that support Marian.

    Marian's layer-norm epsilon is a constant, 1e-5. The returned model has the epsilon of `model`, but a saved and
    reloaded copy has 1e-5. Marian's `generate` supports neither the GNMT length penalty nor the output limit of source
    length + 50 (section 6.1): without a limit of its own, the copy's translations end at `max_position_embeddings`.

    Raises:
        ValueError: if the model has learned positions, or d_k or d_v is not d_model / num_heads.
    """
    from transformers import MarianConfig, MarianMTModel

    source = model.config
    if source.position_embedding != "sinusoidal":
        raise ValueError("Cannot convert: this model has learned positions, but Marian supports only sinusoidal ones.")
    if {source.d_k, source.d_v} != {source.d_model / source.num_heads}:
        raise ValueError(
            "Cannot convert: Marian's heads are d_model / num_heads wide, but this model has d_model "
            f"{source.d_model}, {source.num_heads} heads, d_k {source.d_k} and d_v {source.d_v}."
        )
    config = MarianConfig(
        **{name: getattr(source, name) for name in _SHARED_FIELDS},
        encoder_layers=source.num_encoder_layers,
        decoder_layers=source.num_decoder_layers,
        encoder_attention_heads=source.num_heads,
        decoder_attention_heads=source.num_heads,
        encoder_ffn_dim=source.d_ff,
        decoder_ffn_dim=source.d_ff,
        scale_embedding=True,
        forced_eos_token_id=None,
    )
    weights = model.state_dict()
    output_bias = weights.pop("lm_head.bias", None)
    order = _marian_order(config.d_model)
    weights = {name: _permute_residual(name, tensor, order) for name, tensor in weights.items()}
    marian: Any = MarianMTModel(config)
    marian.to(dtype=model.dtype, device=model.device)
    for name, tensor in marian.state_dict().items():
        if name.endswith("_proj.bias"):
            weights.setdefault(name, torch.zeros_like(tensor))
        elif name.endswith(_POSITION_TABLE):
            weights[name] = tensor
    # a new Marian model has an output bias of zeros
    weights["final_logits_bias"] = marian.final_logits_bias if output_bias is None else output_bias[None]
    # Marian has a shared matrix even if it is not tied
    weights.setdefault("model.shared.weight", weights["model.encoder.embed_tokens.weight"])
    marian.load_state_dict(weights)
    for module in marian.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = source.layer_norm_eps
    marian.generation_config = copy.deepcopy(model.generation_config)
    if marian.generation_config.max_length is None and marian.generation_config.max_new_tokens is None:
        # otherwise Marian's `generate` would end every translation after 20 tokens
        marian.generation_config.max_length = source.max_position_embeddings
    return marian.train(model.training)


def from_torch(transformer: nn.Transformer, embedding: nn.Embedding) -> VanillaTransformerForConditionalGeneration:
    """Convert a post-norm `torch.nn.Transformer`, whose inputs and output share `embedding`, to this package's model.

    `torch.nn.Transformer` adds a layer norm after each stack, which the paper's model does not have: set
    `transformer.encoder.norm = transformer.decoder.norm = None` before training. The converted model has the paper's
    sinusoidal positions and the default special tokens of `VanillaTransformerConfig`.

    Args:
        transformer: the model to convert.
        embedding: (vocab_size, d_model), tied to both inputs and to the output projection (section 3.4).

    Raises:
        ValueError: if `transformer` has a layer norm after a stack, is pre-norm, contains layers that are not
            `torch.nn`'s own, or has settings that differ between its layers.
    """
    _check_layers(transformer)
    layers = [*transformer.encoder.layers, *transformer.decoder.layers]
    attentions = [module for module in transformer.modules() if isinstance(module, nn.MultiheadAttention)]
    d_model = _single_value("d_model", (embedding.embedding_dim, *(a.embed_dim for a in attentions)))
    dropouts = [module.p for module in transformer.modules() if isinstance(module, nn.Dropout)]
    dropout = _single_value("dropout", (*dropouts, *(a.dropout for a in attentions)))
    config = VanillaTransformerConfig(
        vocab_size=embedding.num_embeddings,
        d_model=d_model,
        num_encoder_layers=len(transformer.encoder.layers),
        num_decoder_layers=len(transformer.decoder.layers),
        num_heads=_single_value("the number of heads", (a.num_heads for a in attentions)),
        d_ff=_single_value("d_ff", (layer.linear1.out_features for layer in layers)),
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        activation_function=_single_value("the activation", (_activation_name(layer.activation) for layer in layers)),
        attention_bias=attentions[0].in_proj_bias is not None,
        layer_norm_eps=_layer_norm_epsilon(transformer),
    )
    weights = {"model.shared.weight": embedding.weight}
    for stack in ("encoder", "decoder"):
        for i, layer in enumerate(getattr(transformer, stack).layers):
            weights |= {f"model.{stack}.layers.{i}.{name}": tensor for name, tensor in _layer_weights(layer)}
    return _build_model(config, weights, transformer)


def _check_layers(transformer: nn.Transformer) -> None:
    """Check that every layer of `transformer` has an equivalent in the paper's model.

    Raises:
        ValueError: if one has none.
    """
    encoder = transformer.encoder
    decoder = transformer.decoder
    if encoder.norm is not None or decoder.norm is not None:
        raise ValueError(
            "Cannot convert: this torch.nn.Transformer has a layer norm after each stack; the paper's model has "
            "none. Set transformer.encoder.norm = transformer.decoder.norm = None before training."
        )
    stacks = ((encoder, nn.TransformerEncoderLayer), (decoder, nn.TransformerDecoderLayer))
    for stack, layer_class in stacks:
        for layer in stack.layers:
            if type(layer) is not layer_class:
                raise ValueError(f"Cannot convert: {type(layer).__name__} is not a layer of torch.nn.")
    if any(layer.norm_first for stack, _ in stacks for layer in stack.layers):
        raise ValueError("Cannot convert: these layers are pre-norm (norm_first=True), but the paper's are post-norm.")
    attentions = [module for module in transformer.modules() if isinstance(module, nn.MultiheadAttention)]
    if any(a.in_proj_weight is None or a.bias_k is not None or a.add_zero_attn for a in attentions):
        raise ValueError("Cannot convert: an attention layer uses kdim, vdim, add_bias_kv or add_zero_attn.")


def _layer_weights(layer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of an encoder or decoder layer of `torch.nn` under the names of this package."""
    attentions = {"self_attn": layer.self_attn}
    if isinstance(layer, nn.TransformerDecoderLayer):
        # torch's name for attention to the encoder's output
        attentions["encoder_attn"] = layer.multihead_attn
    norms = [*(f"{name}_layer_norm" for name in attentions), "final_layer_norm"]
    modules = {name: getattr(layer, f"norm{n}") for n, name in enumerate(norms, start=1)}
    for name, module in {"fc1": layer.linear1, "fc2": layer.linear2, **modules}.items():
        yield f"{name}.weight", module.weight
        yield f"{name}.bias", module.weight.new_zeros(len(module.weight)) if module.bias is None else module.bias
    for name, attention in attentions.items():
        for projection, tensor in _projections(attention):
            yield f"{name}.{projection}", tensor


def _projections(attention: nn.MultiheadAttention) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of the query, key, value and output projections under the names of this package."""
    weights = (attention.in_proj_weight, attention.out_proj.weight)
    biases = (attention.in_proj_bias, attention.out_proj.bias)
    for kind, (in_proj, out_proj) in (("weight", weights), ("bias", biases)):
        if in_proj is not None:
            # (3 d_model, d_model): the three projections below each other
            for name, tensor in zip("qkv", in_proj.chunk(3), strict=True):
                yield f"{name}_proj.{kind}", tensor
            yield f"out_proj.{kind}", out_proj


def _activation_name(function: Callable[[torch.Tensor], torch.Tensor]) -> str:
    """Return the name in transformers of an activation function or module of torch."""
    if function is nn.functional.relu or isinstance(function, nn.ReLU):
        return "relu"
    if function is nn.functional.gelu or (isinstance(function, nn.GELU) and function.approximate == "none"):
        return "gelu"
    raise ValueError(f"Cannot convert: the activation {function} is neither relu nor gelu.")


def _build_model(
    config: VanillaTransformerConfig, weights: dict[str, torch.Tensor], source: nn.Module
) -> VanillaTransformerForConditionalGeneration:
    """Build the model with `weights`; take dtype, device, training mode and generation config from `source`."""
    reference = next(source.parameters())
    model: Any = VanillaTransformerForConditionalGeneration(config)
    model.to(dtype=reference.dtype, device=reference.device)
    weights = {name: tensor.detach() for name, tensor in weights.items()}
    shared = weights["model.shared.weight"] if config.tie_word_embeddings else weights.pop("model.shared.weight")
    for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
        weights.setdefault(name, shared)
    model.load_state_dict(weights)
    if isinstance(getattr(source, "generation_config", None), type(model.generation_config)):
        model.generation_config = copy.deepcopy(source.generation_config)
    return model.train(source.training)
