from types import SimpleNamespace

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerTrainer, train_tokenizer, translate
from hf_vanilla_transformer.inference.translation import translate_ids

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


def test_a_text_beyond_the_table_of_positions_leaves_the_model_usable(small_model, tokenizer, trainer):
    model = small_model(vocab_size=len(tokenizer), max_position_embeddings=8)
    translate(model, tokenizer, ["a dog runs " * 20], num_beams=1, max_new_tokens=2)
    table = model.model.encoder.embed_positions.table
    assert len(table) > 8
    assert not table.is_inference()
    model.to(torch.float64).to(torch.float32)
    VanillaTransformerTrainer(model, trainer().args)


def test_one_long_sentence_leaves_the_others_their_batches(tokenizer):
    class Recorder:
        training, device = False, torch.device("cpu")
        config = SimpleNamespace(pad_token_id=0)

        def __init__(self):
            self.shapes = []

        def eval(self):
            return self

        def train(self, mode):
            return self

        def generate(self, input_ids, attention_mask):
            self.shapes.append(tuple(input_ids.shape))
            return input_ids

    model = Recorder()
    sources = [[5] * 20] * 50 + [[6] * 2001] + [[7] * 20] * 50
    assert translate_ids(model, sources, max_tokens=200) == sources
    assert model.shapes == [(1, 2001), *[(10, 20)] * 10]
