import pytest
import torch

from hf_vanilla_transformer import train_tokenizer, translate

SENTENCES = [
    "a dog runs",
    "",
    "two men sit on a bench and talk about the weather",
    "   ",
    "cats",
    "the dog sleeps here",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SENTENCES * 3, 300)


@pytest.fixture
def model(small_model, tokenizer):
    model = small_model(vocab_size=len(tokenizer), lm_head_bias=True)
    model.lm_head.weight.data[:] *= 3
    model.lm_head.bias.data[:260] = -1e4  # only merged tokens, which are readable text
    model.lm_head.bias.data[2] = 4.0
    return model


@pytest.mark.parametrize("max_tokens", [1, 30, 1000])
def test_order_and_blanks_are_kept_whatever_the_batches(model, tokenizer, max_tokens):
    alone = [translate(model, tokenizer, [sentence])[0] for sentence in SENTENCES]
    assert translate(model, tokenizer, SENTENCES, max_tokens=max_tokens) == alone
    assert alone[1] == alone[3] == ""
    assert len(set(alone)) > 3


def test_a_translation_is_what_generate_gives(model, tokenizer):
    inputs = tokenizer(SENTENCES[0], return_tensors="pt")
    expected = tokenizer.decode(model.generate(**inputs, num_beams=2)[0], skip_special_tokens=True)
    assert translate(model, tokenizer, SENTENCES[:1], num_beams=2) == [expected]


def test_progress_counts_every_sentence(model, tokenizer):
    counts = []
    translate(model, tokenizer, SENTENCES, max_tokens=12, progress=counts.append)
    assert sum(counts) == len(SENTENCES)
    assert len(counts) > 2


def test_the_model_is_left_in_the_mode_it_had(model, tokenizer):
    model.train()
    translate(model, tokenizer, SENTENCES[:1])
    assert model.training


def test_nothing_in_gives_nothing_out(model, tokenizer):
    assert translate(model, tokenizer, []) == []
    assert translate(model, tokenizer, ["", " "]) == ["", ""]


def test_dropout_is_off_while_translating(small_model, tokenizer):
    model = small_model(vocab_size=len(tokenizer), dropout=0.9).train()
    outputs = {translate(model, tokenizer, SENTENCES[:1], num_beams=1, max_new_tokens=8)[0] for _ in range(3)}
    assert len(outputs) == 1
    assert torch.is_grad_enabled()
