"""A saved model for the tests of model cards and uploads."""

import pytest
from card_contents import PHRASES

from hf_vanilla_transformer import train_tokenizer, translate


@pytest.fixture
def saved(small_model, tmp_path):
    """The folder of a random model with its tokenizer, and its translations of the phrases."""
    tokenizer = train_tokenizer(PHRASES, 330)
    model = small_model(vocab_size=len(tokenizer), source_lang="en", target_lang="de")
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, translate(model, tokenizer, PHRASES, max_new_tokens=9)
