"""What every test shares: no network, fixed seeds, small models."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


@pytest.fixture
def small_model():
    """A function that builds a small model, random and in evaluation mode, from changes to its config."""

    def build(**changes) -> VanillaTransformerForConditionalGeneration:
        torch.manual_seed(0)
        fields = {
            "vocab_size": 50,
            "d_model": 32,
            "num_encoder_layers": 2,
            "num_decoder_layers": 3,
            "num_heads": 4,
            "d_ff": 64,
            "max_position_embeddings": 64,
        }
        return VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**{**fields, **changes})).eval()

    return build
