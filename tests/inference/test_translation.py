"""Translation of many sentences in batches."""

from types import SimpleNamespace

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerTrainer, train_tokenizer, translate
from hf_vanilla_transformer.inference.translation import translate_ids, translate_nbest

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
    model.lm_head.bias.data[:260] = -1e4  # predict only merged tokens, which decode to readable text
    model.lm_head.bias.data[2] = 4.0
    return model


@pytest.mark.parametrize("max_tokens", [1, 30, 1000])
def test_order_and_blank_sentences_are_kept_for_every_batch_size(model, tokenizer, max_tokens):
    expected = [translate(model, tokenizer, [sentence])[0] for sentence in SENTENCES]
    assert translate(model, tokenizer, SENTENCES, max_tokens=max_tokens) == expected
    assert expected[1] == expected[3] == ""
    assert len(set(expected)) > 3


def test_translation_equals_the_output_of_generate(model, tokenizer):
    inputs = tokenizer(SENTENCES[0], return_tensors="pt")
    expected = tokenizer.decode(model.generate(**inputs, num_beams=2)[0], skip_special_tokens=True)
    assert translate(model, tokenizer, SENTENCES[:1], num_beams=2) == [expected]


@pytest.mark.parametrize("max_tokens", [1, 1000])
def test_n_best_lists_equal_those_of_transformers(model, tokenizer, max_tokens):
    settings = {"num_beams": 3, "length_penalty": 0.7}
    lists = translate_nbest(model, tokenizer, SENTENCES, 2, max_tokens=max_tokens, **settings)
    for sentence, hypotheses in zip(SENTENCES, lists, strict=True):
        if not sentence.strip():
            assert hypotheses == [("", 0.0)] * 2
            continue
        inputs = tokenizer(sentence, return_tensors="pt")
        returned = {"num_return_sequences": 2, "return_dict_in_generate": True, "output_scores": True}
        output = model.generate(**inputs, **settings, **returned)
        texts = tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
        assert [hypothesis.text for hypothesis in hypotheses] == texts
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(output.sequences_scores.tolist(), 1e-5)
    with pytest.raises(ValueError, match="num_return_sequences"):
        translate_nbest(model, tokenizer, SENTENCES, 3, num_beams=2)


def test_progress_counts_every_sentence(model, tokenizer):
    counts = []
    translate(model, tokenizer, SENTENCES, max_tokens=12, progress=counts.append)
    assert sum(counts) == len(SENTENCES)
    assert len(counts) > 2


def test_training_mode_is_restored(model, tokenizer):
    model.train()
    translate(model, tokenizer, SENTENCES[:1])
    assert model.training


def test_empty_and_blank_inputs_have_empty_translations(model, tokenizer):
    assert translate(model, tokenizer, []) == []
    assert translate(model, tokenizer, ["", " "]) == ["", ""]


def test_dropout_is_off_while_translating(small_model, tokenizer):
    model = small_model(vocab_size=len(tokenizer), dropout=0.9).train()
    outputs = {translate(model, tokenizer, SENTENCES[:1], num_beams=1, max_new_tokens=8)[0] for _ in range(3)}
    assert len(outputs) == 1
    assert torch.is_grad_enabled()


def test_model_can_be_trained_after_the_position_table_grew_in_inference_mode(small_model, tokenizer, trainer):
    model = small_model(vocab_size=len(tokenizer), max_position_embeddings=8)
    translate(model, tokenizer, ["a dog runs " * 20], num_beams=1, max_new_tokens=2)
    table = model.model.encoder.embed_positions.table
    assert len(table) > 8
    assert not table.is_inference()
    model.to(torch.float64).to(torch.float32)
    VanillaTransformerTrainer(model, trainer().args)


def test_long_sentence_does_not_change_the_batches_of_the_others(tokenizer):
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
