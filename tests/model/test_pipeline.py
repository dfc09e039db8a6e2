"""`pipeline("translation")` of transformers, with models of this package and others."""

import logging
import subprocess
import sys

import pytest
import torch
import transformers
from torch.utils.data import Dataset
from transformers import pipeline

from hf_vanilla_transformer import TranslationPipeline, convert, train_tokenizer, translate
from hf_vanilla_transformer.data.phrases import splits

PHRASES = [phrase.en for phrase in splits()["test"][:15]]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(PHRASES, 330)


@pytest.fixture
def model(small_model, tokenizer):
    """Return a random model that ends its sentences at many lengths."""
    model = small_model(vocab_size=len(tokenizer), lm_head_bias=True, tie_word_embeddings=False)
    model.lm_head.weight.data.normal_()
    model.lm_head.bias.data[2] += 8.0
    return model


@pytest.fixture
def saved(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def translator(saved):
    return pipeline("translation", model=saved)


def test_the_task_loads_a_saved_model_without_trust_remote_code(translator, model, tokenizer):
    assert type(translator) is TranslationPipeline
    text = PHRASES[0]
    assert translator(text) == [{"translation_text": translate(model, tokenizer, [text])[0]}]


@pytest.mark.parametrize("batch_size", [1, 7])
def test_a_list_returns_one_translation_per_string_for_any_batch_size(translator, model, tokenizer, batch_size):
    expected = [{"translation_text": text} for text in translate(model, tokenizer, PHRASES)]
    assert translator(PHRASES, batch_size=batch_size) == expected
    assert translator(tuple(PHRASES), batch_size=batch_size) == expected
    assert translator([]) == []


def test_generation_arguments_are_passed_to_generate(translator, model, tokenizer):
    settings = {"num_beams": 2, "length_penalty": 1.5, "max_new_tokens": 5}
    expected = [{"translation_text": text} for text in translate(model, tokenizer, PHRASES, **settings)]
    assert translator(PHRASES, batch_size=8, **settings) == expected
    assert expected != translator(PHRASES, batch_size=8)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_datasets_and_generators_are_streamed(translator, batch_size):
    class Sentences(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, i):
            return PHRASES[i]

    expected = [[result] for result in translator(PHRASES[:6])]
    assert list(translator(Sentences(), batch_size=batch_size)) == expected
    drawn = []

    def sentences():
        for text in PHRASES[:6]:
            drawn.append(text)
            yield text

    stream = iter(translator(sentences(), batch_size=batch_size))
    assert next(stream) == expected[0]
    assert len(drawn) < 6
    assert list(stream) == expected[1:]


def test_n_best_scores_are_log_probability_over_the_length_penalty(translator, model, tokenizer):
    results = translator(PHRASES[:3], num_return_sequences=3, num_beams=4, batch_size=3)
    assert [len(result) for result in results] == [3, 3, 3]
    for text, candidates in zip(PHRASES, results, strict=False):
        scores = [candidate["score"] for candidate in candidates]
        assert scores == sorted(scores, reverse=True)
        assert candidates[0]["translation_text"] == translate(model, tokenizer, [text])[0]
    inputs = tokenizer(PHRASES[0], return_tensors="pt")
    best = model.generate(**inputs)
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=best[:, :-1]).logits.double()
    log_probability = logits.log_softmax(-1).gather(-1, best[:, 1:, None]).sum().item()
    penalty = ((5 + best.shape[1] - 1) / 6) ** 0.6
    assert results[0][0]["score"] == pytest.approx(log_probability / penalty, rel=1e-5)
    alone = translator(PHRASES[0], num_return_sequences=3, num_beams=4)
    assert [a["translation_text"] for a in alone] == [b["translation_text"] for b in results[0]]
    assert [a["score"] for a in alone] == pytest.approx([b["score"] for b in results[0]], rel=1e-5)


def test_blank_text_has_an_empty_translation_and_never_changes_others(translator):
    results = translator(["", PHRASES[0], " \t\n"], batch_size=3)
    assert [result["translation_text"] == "" for result in results] == [True, False, True]
    assert results[1] == translator(PHRASES[0])[0]
    assert translator(" ") == [{"translation_text": ""}]


def test_long_text_is_truncated_with_a_warning(translator, model, tokenizer, caplog):
    text = " ".join(PHRASES * 9)
    with caplog.at_level(logging.WARNING):
        result = translator(text, max_new_tokens=9)
    assert f"A text of {len(tokenizer(text).input_ids)} tokens was truncated to 64" in caplog.text
    cut = tokenizer(text, truncation=True, max_length=64, return_tensors="pt")
    assert cut.input_ids[0, -1] == tokenizer.eos_token_id
    expected = tokenizer.decode(model.generate(**cut, max_new_tokens=9)[0], skip_special_tokens=True)
    assert result == [{"translation_text": expected}]


@pytest.mark.parametrize("text", ["🤖 ❤️‍🔥 日本語", "</s><pad>", "a\x00b", "\ufeff" + PHRASES[0]])
def test_unusual_text_is_translated(translator, text):
    (result,) = translator(text)
    assert isinstance(result["translation_text"], str)


@pytest.mark.parametrize("wrong", [None, 3, b"bytes", {"text": "a"}, ["a", None], [["a"]]])
def test_anything_but_strings_raises_a_clear_error(translator, wrong):
    with pytest.raises(ValueError, match="translation expects a string or a list of strings, got"):
        translator(wrong)


def test_the_pipeline_works_with_other_models(model, tokenizer, translator):
    model.config.length_normalization = "length"
    marian = pipeline("translation", model=convert.to_marian(model), tokenizer=tokenizer)
    theirs = marian(PHRASES[:5], max_new_tokens=9, num_beams=2, length_penalty=0.6)
    assert type(marian.model) is transformers.MarianMTModel
    assert [set(result) for result in theirs] == [{"translation_text"}] * 5
    translator.model.config.length_normalization = "length"
    assert theirs == translator(PHRASES[:5], max_new_tokens=9, num_beams=2)


@pytest.mark.parametrize(
    "order", ["import hf_vanilla_transformer, transformers", "import transformers, hf_vanilla_transformer"]
)
def test_other_removed_tasks_are_still_rejected(order, saved):
    code = f"""{order}
from transformers import pipeline
for task in ("summarization", "text2text-generation", "question-answering", "translation_en_to_de"):
    try:
        pipeline(task, model={saved!r})
    except KeyError as error:
        print(task, "refused")
print(pipeline("translation", model={saved!r})("A dog.", max_new_tokens=3))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.count("refused") == 4, run.stderr[-2000:]
    assert "translation_text" in run.stdout, run.stderr[-2000:]


def test_a_saved_pipeline_includes_its_code(translator, saved, tmp_path):
    translator.save_pretrained(tmp_path / "again")
    again = pipeline("translation", model=str(tmp_path / "again"))
    assert again(PHRASES[0]) == translator(PHRASES[0])
    assert (tmp_path / "again" / "pipeline_vanilla_transformer.py").is_file()
