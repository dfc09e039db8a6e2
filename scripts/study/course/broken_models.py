"""A dozen broken models for lesson 9. Read this file after the lesson: it holds the answers."""

import random
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from transformers import AttentionInterface

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.layers_vanilla_transformer import (
    VanillaTransformerAttention,
    VanillaTransformerLayer,
    eager_attention_forward,
)

Model = VanillaTransformerForConditionalGeneration


def healthy() -> Model:
    """Return a small model with random weights, ready for experiments."""
    torch.manual_seed(0)
    config = VanillaTransformerConfig(
        vocab_size=50,
        d_model=32,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_ff=64,
        max_position_embeddings=64,
    )
    model = Model(config).eval()
    model.set_attn_implementation("eager")
    return model


def attentions(model: Model) -> list[VanillaTransformerAttention]:
    return [module for module in model.modules() if isinstance(module, VanillaTransformerAttention)]


def layers(model: Model) -> list[VanillaTransformerLayer]:
    return [module for module in model.modules() if isinstance(module, VanillaTransformerLayer)]


def attend_with(model: Model, name: str, function: Callable) -> None:
    AttentionInterface.register(name, function)
    model.set_attn_implementation(name)


def ignore_masks(modules: list[nn.Module], module, query, key, value, attention_mask, scaling, **kwargs):
    mask = None if any(module is other for other in modules) else attention_mask
    return eager_attention_forward(module, query, key, value, mask, scaling, **kwargs)


def mix_heads(module, query, key, value, attention_mask, scaling, **kwargs):
    # undo the transpose, then view as if the heads came first
    query, key, value = (states.transpose(1, 2).reshape(states.shape) for states in (query, key, value))
    return eager_attention_forward(module, query, key, value, attention_mask, scaling, **kwargs)


def no_causal_mask(model: Model) -> None:
    decoder = [layer.self_attn for layer in model.model.decoder.layers]
    attend_with(model, "course_future", partial(ignore_masks, decoder))


def padding_in_the_encoder(model: Model) -> None:
    encoder = [layer.self_attn for layer in model.model.encoder.layers]
    attend_with(model, "course_encoder", partial(ignore_masks, encoder))


def padding_in_cross_attention(model: Model) -> None:
    cross = [layer.encoder_attn for layer in model.model.decoder.layers]
    attend_with(model, "course_cross", partial(ignore_masks, cross))


def scores_not_scaled(model: Model) -> None:
    for attention in attentions(model):
        attention.scaling = 1.0


def heads_split_by_view(model: Model) -> None:
    attend_with(model, "course_view", mix_heads)


def one_projection_for_all_heads(model: Model) -> None:
    for attention in attentions(model):
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight.data = projection.weight[:8].repeat(4, 1)


def no_positions(model: Model) -> None:
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.table.zero_()


def doubled_exponent(model: Model) -> None:
    # the table of a model twice as wide, every second pair of columns
    angle = torch.arange(64)[:, None] * 10000.0 ** (-2 * torch.arange(0, 32, 2) / 32)
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.table = torch.stack((angle.sin(), angle.cos()), -1).flatten(1)


def softmax_in_the_model(model: Model) -> None:
    model.lm_head.register_forward_hook(lambda module, args, logits: logits.softmax(-1))


def pre_norm(model: Model) -> None:
    class PreNorm(nn.Module):
        """Normalise the input of a sub-layer, and nothing after the addition."""

        def __init__(self, layer: VanillaTransformerLayer):
            super().__init__()
            self.layer = layer

        def forward(self, states, mask, *args, **kwargs):
            layer = self.layer
            states = states + layer.self_attn(layer.self_attn_layer_norm(states), mask)[0]
            return states + layer.feed_forward(layer.final_layer_norm(states))

    model.model.encoder.layers = nn.ModuleList(PreNorm(layer) for layer in model.model.encoder.layers)


def dropout_in_evaluation(model: Model) -> None:
    for layer in layers(model):
        layer.dropout.register_forward_hook(lambda module, args, output: nn.functional.dropout(args[0], 0.1))


def target_not_shifted(model: Model) -> None:
    model.prepare_decoder_input_ids_from_labels = lambda labels: labels.clone()  # type: ignore[method-assign]


FAULTS = {
    "no causal mask": no_causal_mask,
    "padding visible to the encoder": padding_in_the_encoder,
    "padding visible to cross-attention": padding_in_cross_attention,
    "scores not scaled": scores_not_scaled,
    "heads split by view alone": heads_split_by_view,
    "one projection for all heads": one_projection_for_all_heads,
    "no positions": no_positions,
    "doubled exponent in the positions": doubled_exponent,
    "softmax in the model": softmax_in_the_model,
    "pre-norm encoder": pre_norm,
    "dropout in evaluation": dropout_in_evaluation,
    "target not shifted": target_not_shifted,
}
ORDER = list(FAULTS)
random.Random(2017).shuffle(ORDER)
FAULT_BY_NUMBER = dict(enumerate(ORDER, start=1))


@torch.no_grad()
def broken(number: int) -> Model:
    """Return broken model number 1 to 12."""
    return broken_by(FAULT_BY_NUMBER[number])


@torch.no_grad()
def broken_by(fault: str) -> Model:
    """Return a model with the given fault."""
    model = healthy()
    FAULTS[fault](model)
    return model
