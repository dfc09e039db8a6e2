"""A small random model for lesson 7, which never ends a sentence by itself."""

import torch

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration


def random_model(seed: int = 8) -> VanillaTransformerForConditionalGeneration:
    """Return a model of 12 tokens whose next token depends much on the words before."""
    torch.manual_seed(seed)
    config = VanillaTransformerConfig(
        vocab_size=12,
        d_model=32,
        num_heads=4,
        d_ff=64,
        num_encoder_layers=1,
        num_decoder_layers=2,
        tie_word_embeddings=False,
        lm_head_bias=True,
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(std=0.3)
        # padding, start and end
        model.lm_head.bias[:3] = -1e4
    return model
