"""`pipeline("translation")` of transformers, with models of this package and others."""

import copy
import subprocess
import sys

import datasets
import pytest
import torch
import transformers
from torch.utils.data import Dataset
from transformers import GenerationConfig, pipeline
from transformers.pipelines.pt_utils import KeyDataset

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


def test_a_tokenizer_that_pads_on_the_left_changes_no_translation(model, tokenizer):
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    expected = [{"translation_text": text} for text in translate(model, tokenizer, PHRASES)]
    translator = TranslationPipeline(model, left)
    assert translator(PHRASES, batch_size=7) == expected
    assert left.padding_side == "left"


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_an_error_that_names_them(model, tokenizer, value):
    model.model.encoder.layers[1].fc1.weight.data[3, 4] = value
    with pytest.raises(ValueError, match=r"its weights contain NaN or infinity, in model\.encoder\.layers\.1\.fc1"):
        TranslationPipeline(model, tokenizer)


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

    for source in (sentences(), map(str, sentences())):
        drawn.clear()
        stream = iter(translator(source, batch_size=batch_size))
        assert next(stream) == expected[0]
        assert len(drawn) < 6
        assert list(stream) == expected[1:]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_columns_of_datasets_are_lists_and_their_streams_are_streamed(translator, batch_size):
    expected = translator(PHRASES[:6])
    dataset = datasets.Dataset.from_dict({"en": PHRASES[:6], "id": range(6)})
    assert translator(dataset["en"], batch_size=batch_size) == expected
    streams = (KeyDataset(dataset, "en"), dataset.to_iterable_dataset()["en"])
    for stream in streams:
        assert [result for (result,) in translator(stream, batch_size=batch_size)] == expected


@pytest.mark.parametrize("num_beams", [1, 4])
def test_transformers_4_arguments_select_what_is_returned(translator, model, tokenizer, num_beams):
    (tokens,) = model.generate(**tokenizer(PHRASES[0], return_tensors="pt"), num_beams=num_beams)
    text = translator(PHRASES[0], num_beams=num_beams)[0]["translation_text"]
    for arguments in ({"return_tensors": True}, {"return_text": False}):
        (result,) = translator(PHRASES[0], num_beams=num_beams, **arguments)
        assert set(result) == {"translation_token_ids"}
        assert torch.equal(result["translation_token_ids"], tokens)
    (both,) = translator(PHRASES[0], num_beams=num_beams, return_tensors=True, return_text=True)
    assert set(both) == {"translation_token_ids", "translation_text"}
    assert both["translation_text"] == text


@pytest.mark.parametrize("cleaned", [True, False])
def test_the_tokenizer_is_asked_to_clean_up_spaces(translator, monkeypatch, cleaned):
    """Whether it does depends on its kind and on the release of transformers."""
    asked = []
    decode = translator.tokenizer.decode
    monkeypatch.setattr(translator.tokenizer, "decode", lambda *args, **kwargs: asked.append(kwargs) or decode(*args))
    translator("a dog . a man", clean_up_tokenization_spaces=cleaned)
    assert [kwargs["clean_up_tokenization_spaces"] for kwargs in asked] == [cleaned]


@pytest.mark.parametrize("settings", [{"num_beams": 1}, {"num_beams": 3}, {"num_beams": 3, "num_return_sequences": 2}])
def test_return_dict_in_generate_never_changes_the_result(translator, settings):
    expected = translator(PHRASES[:4], batch_size=2, **settings)
    assert translator(PHRASES[:4], batch_size=2, return_dict_in_generate=True, **settings) == expected
    assert (
        translator(PHRASES[:4], batch_size=2, return_dict_in_generate=True, output_scores=True, **settings) == expected
    )


def test_the_task_name_chooses_the_direction(model, tokenizer):
    model.config.source_lang = "en"
    model.config.target_lang = "de"
    parts = {"model": model, "tokenizer": tokenizer}
    expected = pipeline("translation", **parts)(PHRASES[0])
    assert pipeline("translation_en_to_de", **parts)(PHRASES[0]) == expected
    wrong = [pipeline("translation_fr_to_de", **parts), pipeline("translation", src_lang="fr", **parts)]
    for translator in wrong:
        with pytest.raises(ValueError, match="translates from en, not from 'fr'"):
            translator(PHRASES[0])
    with pytest.raises(ValueError, match="translates into de, not into 'fr'"):
        pipeline("translation_en_to_de", **parts)(PHRASES[0], tgt_lang="fr")


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


def test_long_text_has_an_empty_translation_and_one_warning(translator, tokenizer):
    long = " ".join(PHRASES * 9)
    with pytest.warns(UserWarning, match="Not translated") as warned:
        results = translator([PHRASES[0], long, PHRASES[1]], batch_size=3)
    (message,) = [str(warning.message) for warning in warned]
    assert f"its {len(tokenizer(long).input_ids)} tokens are more than the 64" in message
    assert long[:40] in message
    assert long[:60] not in message
    assert results == [*translator(PHRASES[0]), {"translation_text": ""}, *translator(PHRASES[1])]


def test_a_text_is_too_long_from_one_token_beyond_the_models_positions(translator, tokenizer):
    words = " ".join(PHRASES).split()
    lengths = {len(tokenizer(" ".join(words[:n])).input_ids): " ".join(words[:n]) for n in range(1, len(words))}
    fits = max(length for length in lengths if length <= 40)
    translator.model.config.max_position_embeddings = fits
    assert translator(lengths[fits])[0]["translation_text"] != ""
    translator.model.config.max_position_embeddings = fits - 1
    with pytest.warns(UserWarning, match=f"{fits} tokens are more than the {fits - 1}"):
        assert translator(lengths[fits]) == [{"translation_text": ""}]


@pytest.mark.parametrize("truncation", [True, "only_first"])
def test_explicit_truncation_translates_the_start_of_a_long_text(translator, model, tokenizer, truncation):
    text = " ".join(PHRASES * 9)
    result = translator(text, truncation=truncation, max_new_tokens=9)
    cut = tokenizer(text, truncation=True, max_length=64, return_tensors="pt")
    assert cut.input_ids[0, -1] == tokenizer.eos_token_id
    expected = tokenizer.decode(model.generate(**cut, max_new_tokens=9)[0], skip_special_tokens=True)
    assert result == [{"translation_text": expected}]


@pytest.mark.parametrize("truncation", [False, "do_not_truncate"])
def test_truncation_can_be_refused(translator, truncation):
    with pytest.warns(UserWarning, match="Not translated"):
        assert translator(" ".join(PHRASES * 9), truncation=truncation) == [{"translation_text": ""}]


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
    "order",
    [
        "import hf_vanilla_transformer, transformers",
        pytest.param("import transformers, hf_vanilla_transformer", marks=pytest.mark.slow),
    ],
)
def test_other_removed_tasks_are_still_rejected(order, saved):
    code = f"""{order}
from transformers import GenerationConfig, pipeline
from transformers.pipelines.pt_utils import KeyDataset
for task in ("summarization", "text2text-generation", "question-answering", "translation_en_de"):
    try:
        pipeline(task, model={saved!r})
    except KeyError as error:
        print(task, "refused")
for task in ("translation", "translation_en_to_de"):
    print(pipeline(task, model={saved!r})("A dog.", max_new_tokens=3))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.count("refused") == 4, run.stderr[-2000:]
    assert run.stdout.count("translation_text") == 2, run.stderr[-2000:]


def test_a_saved_pipeline_includes_its_code(translator, saved, tmp_path):
    translator.save_pretrained(tmp_path / "again")
    again = pipeline("translation", model=str(tmp_path / "again"))
    assert again(PHRASES[0]) == translator(PHRASES[0])
    assert (tmp_path / "again" / "pipeline_vanilla_transformer.py").is_file()


def test_prefix_and_settings_of_the_task_apply_as_in_transformers_4(tokenizer):
    torch.manual_seed(0)
    prefix = "a big dog: "
    of_task = {"prefix": prefix, "num_beams": 3, "max_length": 9, "early_stopping": True, "summary_type": "x"}
    special = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, **special
    )
    config.task_specific_params = {
        "translation_en_to_de": of_task,
        "summarization": {"prefix": "s: ", "max_length": 5},
    }
    t5 = transformers.T5ForConditionalGeneration(config).eval()
    t5.generation_config.max_length = 7
    translator = pipeline("translation_en_to_de", model=t5, tokenizer=tokenizer)

    def tokens(translator, text, **settings):
        return translator(text, return_tensors=True, **settings)[0]["translation_token_ids"].tolist()

    for text in PHRASES[:5]:
        source = tokenizer(prefix + text, return_tensors="pt")
        settings = {"num_beams": 3, "max_length": 9, "early_stopping": True}
        assert tokens(translator, text) == t5.generate(**source, **settings)[0].tolist()
        # what the caller gives wins
        settings |= {"max_length": 6}
        assert tokens(translator, text, max_length=6) == t5.generate(**source, **settings)[0].tolist()
        given = GenerationConfig(num_beams=1, max_length=5, **special)
        assert (
            tokens(translator, text, generation_config=given)
            == t5.generate(**source, generation_config=given)[0].tolist()
        )
    assert translator("", return_tensors=True)[0]["translation_token_ids"].tolist() == []
    assert t5.generation_config.num_beams is None

    other = pipeline("translation_en_to_fr", model=t5, tokenizer=tokenizer)
    plain = tokenizer(PHRASES[0], return_tensors="pt")
    assert tokens(other, PHRASES[0]) == t5.generate(**plain)[0].tolist()
    config.prefix = prefix
    prefixed = tokenizer(prefix + PHRASES[0], return_tensors="pt")
    assert (
        tokens(pipeline("translation", model=t5, tokenizer=tokenizer), PHRASES[0])
        == t5.generate(**prefixed)[0].tolist()
    )
