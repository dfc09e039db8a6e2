"""Turn a `torch.nn.Transformer` into the model of this package, with the same logits: what differs are only names."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration


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
    norms = [module for module in transformer.modules() if isinstance(module, nn.LayerNorm)]
    dropouts = [module.p for module in transformer.modules() if isinstance(module, nn.Dropout)]
    dropout = _single_value("dropout", (*dropouts, *(attention.dropout for attention in attentions)))
    config = VanillaTransformerConfig(
        vocab_size=embedding.num_embeddings,
        d_model=_single_value("d_model", (embedding.embedding_dim, *(a.embed_dim for a in attentions))),
        num_encoder_layers=len(transformer.encoder.layers),
        num_decoder_layers=len(transformer.decoder.layers),
        num_heads=_single_value("the number of heads", (attention.num_heads for attention in attentions)),
        d_ff=_single_value("d_ff", (layer.linear1.out_features for layer in layers)),
        # nn.Transformer has a single rate and applies it in all these places.
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        activation_function=_single_value("the activation", (_activation_name(layer.activation) for layer in layers)),
        # `bias` is an argument of the whole nn.Transformer, so the first layer speaks for all.
        attention_bias=attentions[0].in_proj_bias is not None,
        layer_norm_eps=_single_value("the layer-norm epsilon", (norm.eps for norm in norms)),
    )
    weights = {
        f"model.{stack}.layers.{i}.{name}": tensor.detach()
        for stack in ("encoder", "decoder")
        for i, layer in enumerate(getattr(transformer, stack).layers)
        for name, tensor in _layer_weights(layer)
    }
    # Tied embeddings are one module, which the state names once for each place where it is used.
    for name in ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
        weights[f"{name}.weight"] = embedding.weight.detach()
    # Any, because mypy cannot call transformers' decorated `to`.
    model: Any = VanillaTransformerForConditionalGeneration(config)
    model.to(dtype=embedding.weight.dtype, device=embedding.weight.device)
    model.load_state_dict(weights)
    return model.train(transformer.training)


def _single_value(description: str, values: Iterable[Any]) -> Any:
    """Return the value that all `values` have in common.

    Raises:
        ValueError: if they differ.
    """
    distinct = sorted(set(values), key=str)
    if len(distinct) != 1:
        raise ValueError(f"Cannot convert: {description} differs between parts of the model: {distinct}.")
    return distinct[0]


def _check_layers(transformer: nn.Transformer) -> None:
    """Check that every layer of `transformer` has an equivalent in the paper's model.

    Raises:
        ValueError: if one has none.
    """
    stacks = ((transformer.encoder, nn.TransformerEncoderLayer), (transformer.decoder, nn.TransformerDecoderLayer))
    for stack, layer_class in stacks:
        if stack.norm is not None:
            raise ValueError(
                "Cannot convert: a layer norm after each stack; train with encoder.norm = decoder.norm = None."
            )
        for layer in stack.layers:
            # Not `isinstance`: a subclass may compute anything.
            if type(layer) is not layer_class:
                raise ValueError(f"Cannot convert: {type(layer).__name__} is not a layer of torch.nn.")
            if layer.norm_first:
                raise ValueError("Cannot convert: a layer is pre-norm (norm_first), but the paper's are post-norm.")


def _layer_weights(
    layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of an encoder or decoder layer of `torch.nn` under the names of this package."""
    attentions = {"self_attn": layer.self_attn}
    if isinstance(layer, nn.TransformerDecoderLayer):
        # torch's name for attention to the encoder's output
        attentions["encoder_attn"] = layer.multihead_attn

    # torch numbers the layer norms in the order of the sub-layers.
    norms = [*(f"{name}_layer_norm" for name in attentions), "final_layer_norm"]
    modules = {name: getattr(layer, f"norm{n}") for n, name in enumerate(norms, start=1)}

    # Of biases, the paper's model can only do without those of attention; zeros are equivalent to none elsewhere.
    for name, module in {"fc1": layer.linear1, "fc2": layer.linear2, **modules}.items():
        yield f"{name}.weight", module.weight
        yield f"{name}.bias", module.weight.new_zeros(len(module.weight)) if module.bias is None else module.bias
    for name, attention in attentions.items():
        for projection, tensor in _projections(attention):
            yield f"{name}.{projection}", tensor


def _projections(attention: nn.MultiheadAttention) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of the query, key, value and output projections under the names of this package."""
    if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
        raise ValueError("Cannot convert: an attention layer uses kdim, vdim, add_bias_kv or add_zero_attn.")
    for kind in ("weight", "bias"):
        stacked = getattr(attention, f"in_proj_{kind}")
        if stacked is not None:
            # torch stacks the three projections: (3 * d_model, d_model), or (3 * d_model,) for their biases
            for name, tensor in zip("qkv", stacked.chunk(3), strict=True):
                yield f"{name}_proj.{kind}", tensor
            yield f"out_proj.{kind}", getattr(attention.out_proj, kind)


def _activation_name(function: Callable[[torch.Tensor], torch.Tensor]) -> str:
    """Return the name in transformers of an activation function or module of torch."""
    if function is nn.functional.relu or isinstance(function, nn.ReLU):
        return "relu"
    if function is nn.functional.gelu or (isinstance(function, nn.GELU) and function.approximate == "none"):
        return "gelu"
    raise ValueError(f"Cannot convert: the activation {function} is neither relu nor gelu.")
