"""Exact conversion to and from MarianMT, and from `torch.nn.Transformer`.

All three are the same network where they can be converted at all; what has no equivalent is a `ValueError`.
"""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

if TYPE_CHECKING:
    from transformers import MarianMTModel

_SHARED_FIELDS = (
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
_POSITIONS = "embed_positions.weight"  # fixed sinusoids, which each side makes for itself


def _the_one(what: str, values: Any) -> Any:
    """The value that all `values` are."""
    distinct = sorted(set(values), key=str)
    if len(distinct) != 1:
        raise ValueError(f"There is no equivalent: {what} differs between parts of the model: {distinct}.")
    return distinct[0]


def _norm_epsilon(model: nn.Module) -> float:
    return _the_one("the layer-norm epsilon", (m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)))


def _permute_residual(name: str, tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """The parameter `name` for a model whose residual stream has its columns in another order.

    Sinusoids may be interleaved (the paper) or sines first, then cosines (Marian): that is a permutation of d_model
    columns, which every matrix that reads or writes them has to follow. Widths inside a sub-layer stay as they are.
    """
    module, kind = name.split(".")[-2:]
    if module.endswith("layer_norm") or module in ("out_proj", "fc2"):
        return tensor[order]
    return tensor[:, order] if kind == "weight" else tensor


def _sines_first(d_model: int) -> torch.Tensor:
    """(d_model,) Marian's column j is the paper's column `order[j]`."""
    return torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))


def from_marian(marian: "MarianMTModel") -> VanillaTransformerForConditionalGeneration:
    """The same model as a `MarianMTModel`: equal logits; generation settings are carried, scores are by "length".

    Raises:
        ValueError: for a Marian model with separate vocabularies, unscaled embeddings, or stacks of unequal shape.
    """
    theirs = marian.config
    if not theirs.share_encoder_decoder_embeddings:
        raise ValueError("There is no equivalent: this Marian model has separate source and target embeddings.")
    if not theirs.scale_embedding:
        raise ValueError("There is no equivalent: this Marian model does not scale its embeddings by sqrt(d_model).")
    weights = {name: tensor for name, tensor in marian.state_dict().items() if not name.endswith(_POSITIONS)}
    output_bias = weights.pop("final_logits_bias")[0]
    attention_biases = [name for name in weights if name.endswith("_proj.bias")]
    config = VanillaTransformerConfig(
        **{name: getattr(theirs, name) for name in _SHARED_FIELDS},
        num_encoder_layers=theirs.encoder_layers,
        num_decoder_layers=theirs.decoder_layers,
        num_heads=_the_one("the number of heads", (theirs.encoder_attention_heads, theirs.decoder_attention_heads)),
        d_ff=_the_one("d_ff", (theirs.encoder_ffn_dim, theirs.decoder_ffn_dim)),
        attention_bias=any(weights[name].any() for name in attention_biases),
        lm_head_bias=bool(output_bias.any()),
        layer_norm_eps=_norm_epsilon(marian),
        length_normalization="length",
    )
    if not config.attention_bias:
        for name in attention_biases:
            del weights[name]
    order = _sines_first(config.d_model).argsort()
    weights = {name: _permute_residual(name, tensor, order) for name, tensor in weights.items()}
    if config.lm_head_bias:
        weights["lm_head.bias"] = output_bias
    return _build(config, weights, marian)


def to_marian(model: VanillaTransformerForConditionalGeneration) -> "MarianMTModel":
    """The same model as a `MarianMTModel`: equal logits, for everything that knows Marian.

    Marian has one epsilon in its code, 1e-5: the returned modules have this model's, but saving and loading them
    would restore Marian's. `generate` there knows neither the GNMT length penalty nor the limit of input + 50.

    Raises:
        ValueError: for learned positions, and for d_k or d_v other than d_model / num_heads.
    """
    from transformers import MarianConfig, MarianMTModel

    ours = model.config
    if ours.position_embedding != "sinusoidal":
        raise ValueError("There is no equivalent: Marian has sinusoidal positions only, this model learned ones.")
    if {ours.d_k, ours.d_v} != {ours.d_model / ours.num_heads}:
        raise ValueError(
            "There is no equivalent: Marian's heads are d_model / num_heads wide, but here "
            f"d_k {ours.d_k} and d_v {ours.d_v} with {ours.num_heads} heads do not make d_model {ours.d_model}."
        )
    config = MarianConfig(
        **{name: getattr(ours, name) for name in _SHARED_FIELDS},
        encoder_layers=ours.num_encoder_layers,
        decoder_layers=ours.num_decoder_layers,
        encoder_attention_heads=ours.num_heads,
        decoder_attention_heads=ours.num_heads,
        encoder_ffn_dim=ours.d_ff,
        decoder_ffn_dim=ours.d_ff,
        scale_embedding=True,
        forced_eos_token_id=None,
    )
    weights = model.state_dict()
    output_bias = weights.pop("lm_head.bias", None)
    order = _sines_first(config.d_model)
    weights = {name: _permute_residual(name, tensor, order) for name, tensor in weights.items()}
    marian: Any = MarianMTModel(config)
    marian.to(dtype=model.dtype, device=model.device)
    for name, tensor in marian.state_dict().items():
        if name.endswith("_proj.bias"):
            weights.setdefault(name, torch.zeros_like(tensor))
        elif name.endswith(_POSITIONS):
            weights[name] = tensor
    zeros = marian.final_logits_bias
    weights["final_logits_bias"] = zeros if output_bias is None else output_bias[None]
    weights.setdefault("model.shared.weight", weights["model.encoder.embed_tokens.weight"])
    marian.load_state_dict(weights)
    for module in marian.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = ours.layer_norm_eps
    marian.generation_config = copy.deepcopy(model.generation_config)
    return marian.train(model.training)


def from_torch(transformer: nn.Transformer, embedding: nn.Embedding) -> VanillaTransformerForConditionalGeneration:
    """The same model as a post-norm `torch.nn.Transformer` whose inputs and output share `embedding`.

    `torch.nn.Transformer` puts a norm of its own after each stack, which the paper's model has not: set
    `transformer.encoder.norm = transformer.decoder.norm = None` before training. Positions are the paper's, token ids
    this package's defaults.

    Raises:
        ValueError: for a final norm, pre-norm layers, or parts that are not `torch.nn`'s.
    """
    encoder, decoder = transformer.encoder, transformer.decoder
    if encoder.norm is not None or decoder.norm is not None:
        raise ValueError(
            "There is no equivalent: this torch.nn.Transformer has a norm after each stack, the paper's model none. "
            "Train it with transformer.encoder.norm = transformer.decoder.norm = None."
        )
    stacks = ((encoder, nn.TransformerEncoderLayer), (decoder, nn.TransformerDecoderLayer))
    layers = [layer for stack, _ in stacks for layer in stack.layers]
    strange = [type(layer).__name__ for stack, kind in stacks for layer in stack.layers if type(layer) is not kind]
    if strange:
        raise ValueError(f"There is no equivalent: {strange[0]} is not a layer of torch.nn.")
    if any(layer.norm_first for layer in layers):
        raise ValueError("There is no equivalent: these layers are pre-norm (norm_first=True), the paper's post-norm.")
    attentions = [module for module in transformer.modules() if isinstance(module, nn.MultiheadAttention)]
    if any(a.in_proj_weight is None or a.bias_k is not None or a.add_zero_attn for a in attentions):
        raise ValueError("There is no equivalent: an attention with kdim, vdim, add_bias_kv or add_zero_attn.")
    d_model = _the_one("d_model", (embedding.embedding_dim, *(a.embed_dim for a in attentions)))
    dropouts = [module.p for module in transformer.modules() if isinstance(module, nn.Dropout)]
    dropout = _the_one("dropout", (*dropouts, *(a.dropout for a in attentions)))
    config = VanillaTransformerConfig(
        vocab_size=embedding.num_embeddings,
        d_model=d_model,
        num_encoder_layers=len(encoder.layers),
        num_decoder_layers=len(decoder.layers),
        num_heads=_the_one("the number of heads", (a.num_heads for a in attentions)),
        d_ff=_the_one("d_ff", (layer.linear1.out_features for layer in layers)),
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        activation_function=_the_one("the activation", (_activation(layer.activation) for layer in layers)),
        attention_bias=attentions[0].in_proj_bias is not None,
        layer_norm_eps=_norm_epsilon(transformer),
    )
    weights = {"model.shared.weight": embedding.weight}
    for stack in ("encoder", "decoder"):
        for i, layer in enumerate(getattr(transformer, stack).layers):
            parts = {"self_attn": layer.self_attn}
            if stack == "decoder":
                parts["encoder_attn"] = layer.multihead_attn
            modules = {"fc1": layer.linear1, "fc2": layer.linear2}
            norms = [*(f"{name}_layer_norm" for name in parts), "final_layer_norm"]
            modules |= {name: getattr(layer, f"norm{n}") for n, name in enumerate(norms, start=1)}
            for name, module in modules.items():
                bias = module.weight.new_zeros(len(module.weight)) if module.bias is None else module.bias
                weights |= {f"model.{stack}.layers.{i}.{name}.weight": module.weight}
                weights |= {f"model.{stack}.layers.{i}.{name}.bias": bias}
            for name, attention in parts.items():
                for projection, tensor in _projections(attention):
                    weights[f"model.{stack}.layers.{i}.{name}.{projection}"] = tensor
    return _build(config, weights, transformer)


def _projections(attention: nn.MultiheadAttention) -> Iterator[tuple[str, torch.Tensor]]:
    """The four projections by the names that they have here."""
    bias = (attention.in_proj_bias, attention.out_proj.bias)
    for kind, (inner, outer) in (("weight", (attention.in_proj_weight, attention.out_proj.weight)), ("bias", bias)):
        if inner is not None:
            for name, tensor in zip("qkv", inner.chunk(3), strict=True):
                yield f"{name}_proj.{kind}", tensor
            yield f"out_proj.{kind}", outer


def _activation(function: Any) -> str:
    """The name that transformers has for `torch.nn`'s activations."""
    if function is nn.functional.relu or isinstance(function, nn.ReLU):
        return "relu"
    if function is nn.functional.gelu or (isinstance(function, nn.GELU) and function.approximate == "none"):
        return "gelu"
    raise ValueError(f"There is no equivalent: the activation {function} is neither relu nor gelu.")


def _build(
    config: VanillaTransformerConfig, weights: dict[str, torch.Tensor], source: nn.Module
) -> VanillaTransformerForConditionalGeneration:
    """The model of `config` with `weights`, and dtype, device, mode and generation settings of `source`."""
    example = next(source.parameters())
    model: Any = VanillaTransformerForConditionalGeneration(config)
    model.to(dtype=example.dtype, device=example.device)
    weights = {name: tensor.detach() for name, tensor in weights.items()}
    shared = weights["model.shared.weight"] if config.tie_word_embeddings else weights.pop("model.shared.weight")
    for place in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
        weights.setdefault(place, shared)
    model.load_state_dict(weights)
    if isinstance(getattr(source, "generation_config", None), type(model.generation_config)):
        model.generation_config = copy.deepcopy(source.generation_config)
    return model.train(source.training)
