"""A server in a real process, as a user starts it."""

import pytest
from export_models import PHRASES
from server_process import serving

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A random model from English to German whose translations end soon, its tokenizer, and its folder."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(PHRASES, 350)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), d_model=32, num_heads=4, d_ff=64, num_encoder_layers=2, num_decoder_layers=2,
        source_lang="en", target_lang="de", lm_head_bias=True, tie_word_embeddings=False,
    )  # fmt: skip
    model = VanillaTransformerForConditionalGeneration(config).eval()
    model.lm_head.weight.data.normal_()
    model.lm_head.bias.data[2] += 5.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer, folder


@pytest.fixture(scope="session")
def server(model, tmp_path_factory):
    with serving(model[2], tmp_path_factory.mktemp("server") / "log", "--timeout", "300") as process:
        yield process
