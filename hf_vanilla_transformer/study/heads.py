"""Attention heads by name, and the head masks that switch them off."""

from collections.abc import Iterable
from typing import NamedTuple

import torch

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.generation_vanilla_transformer import HEAD_MASKS
from .plots import KINDS

_MASKS = dict(zip(KINDS, HEAD_MASKS, strict=True))  # the argument for each kind of attention


class Head(NamedTuple):
    """A head of an attention layer; layer and number count from 1."""

    kind: str  # one of `plots.KINDS`
    layer: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind}, layer {self.layer}, head {self.number}"


def layers_by_kind(config: VanillaTransformerConfig) -> dict[str, int]:
    """Return how many layers a model has of each kind of attention."""
    return {kind: config.num_encoder_layers if kind == "encoder" else config.num_decoder_layers for kind in KINDS}


def all_heads(config: VanillaTransformerConfig) -> list[Head]:
    """Return all heads of a model, kind by kind and layer by layer."""
    return [
        Head(kind, layer, number)
        for kind, layers in layers_by_kind(config).items()
        for layer in range(1, layers + 1)
        for number in range(1, config.num_heads + 1)
    ]


def masks_without(heads: Iterable[Head], config: VanillaTransformerConfig) -> dict[str, torch.Tensor]:
    """Return the arguments of the forward pass and of `generate` that switch heads off; each is (layers, heads)."""
    layers = layers_by_kind(config)
    masks: dict[str, torch.Tensor] = {}
    for kind, layer, number in heads:
        mask = masks.setdefault(_MASKS[kind], torch.ones(layers[kind], config.num_heads))
        mask[layer - 1, number - 1] = 0
    return masks
