"""Translation of many sentences in batches."""

import copy
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from opus_models import write_opus_tokenizer
from search_models import nbest_lists, translate_ids
from transformers import GenerationConfig

from hf_vanilla_transformer import (
    Ensemble,
    TranslationPipeline,
    Translator,
    VanillaTransformerTrainer,
    train_tokenizer,
    translate,
)
from hf_vanilla_transformer.data.tokenizer import add_tags
from hf_vanilla_transformer.errors import UserError
from hf_vanilla_transformer.inference.comparison import score_translations
from hf_vanilla_transformer.inference.segments import words

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


def by_length(tokenizer) -> dict[int, str]:
    """Return texts by their number of tokens."""
    texts = ["x" * letters for letters in range(40)]  # no merges: a token per letter
    return {len(ids): text for ids, text in zip(tokenizer(texts)["input_ids"], texts, strict=True)}


@pytest.mark.parametrize("max_tokens", [1, 30, 1000])
def test_order_and_blank_sentences_are_kept_for_every_batch_size(model, tokenizer, max_tokens):
    expected = [translate(model, tokenizer, [sentence])[0] for sentence in SENTENCES]
    assert translate(model, tokenizer, SENTENCES, max_tokens=max_tokens) == expected
    assert expected[1] == expected[3] == ""
    assert len(set(expected)) > 3


def test_a_tokenizer_that_pads_on_the_left_changes_no_translation(model, tokenizer):
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    assert translate(model, left, SENTENCES) == translate(model, tokenizer, SENTENCES)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_not_finite_are_an_error_that_names_them(model, tokenizer, value, dtype):
    # even of a token that no source contains
    model.to(dtype).model.shared.weight.data[299, 0] = value
    with pytest.raises(ValueError, match=r"with the model: its weights contain NaN or infinity, in model\.shared"):
        translate(model, tokenizer, SENTENCES)
    with pytest.raises(ValueError, match=r"models\.0\.model\.shared"):
        translate(Ensemble([model, model]), tokenizer, SENTENCES)


def test_the_largest_weights_of_half_precision_are_finite(model, tokenizer):
    # whose sum is not
    model.half().model.shared.weight.data[:] = torch.finfo(torch.float16).max
    Translator(model, tokenizer)


def test_a_number_of_translations_saved_with_the_model_is_not_that_of_a_translator(model, tokenizer):
    expected = translate(model, tokenizer, SENTENCES, num_beams=2)
    model.generation_config.update(num_beams=2, num_return_sequences=2)
    assert translate(model, tokenizer, SENTENCES) == expected


def test_translation_equals_the_output_of_generate(model, tokenizer):
    inputs = tokenizer(SENTENCES[0], return_tensors="pt")
    expected = tokenizer.decode(model.generate(**inputs, num_beams=2)[0], skip_special_tokens=True)
    assert translate(model, tokenizer, SENTENCES[:1], num_beams=2) == [expected]


@pytest.mark.parametrize("max_tokens", [1, 1000])
def test_n_best_lists_equal_those_of_transformers(model, tokenizer, max_tokens):
    settings = {"num_beams": 3, "length_penalty": 0.7}
    lists = nbest_lists(model, tokenizer, SENTENCES, 2, max_tokens=max_tokens, **settings)
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
        nbest_lists(model, tokenizer, SENTENCES, 3, num_beams=2)


def test_progress_counts_every_sentence(model, tokenizer):
    counts = []
    translate(model, tokenizer, SENTENCES, max_tokens=12, progress=counts.append)
    assert sum(counts) == len(SENTENCES)
    assert len(counts) > 2


@pytest.mark.parametrize(
    ("settings", "sentences"),
    [
        ({"num_beams": 1}, 8),
        ({"num_beams": 2}, 4),
        ({"generation_config": GenerationConfig(num_beams=2, max_length=4)}, 4),
        ({"num_beams": 1, "scores": True}, 8),
        # samples of one sentence take as much memory as a beam, and so do scores of another pass
        ({"num_beams": 1, "do_sample": True, "nbest": 2}, 4),
        ({"num_beams": 1, "do_sample": True, "scores": True}, 4),
    ],
)
def test_batches_of_one_beam_are_twice_as_large_by_default(settings, sentences, model, tokenizer, monkeypatch):
    sources = tokenizer(["the dog sleeps"] * 16)["input_ids"]
    limit = 4 * len(sources[0])
    for module in ("hardware", "translator"):
        monkeypatch.setattr(f"hf_vanilla_transformer.inference.{module}.MAX_TOKENS", limit)
    translate_ids = partial(Translator(model, tokenizer).translate_ids, sources, max_new_tokens=2, **settings)
    counts = []
    translate_ids(progress=counts.append)
    assert counts == [sentences] * (16 // sentences)
    # a limit that the user names is one
    counts.clear()
    translate_ids(max_tokens=limit, progress=counts.append)
    assert counts == [4] * 4


def test_training_mode_is_restored(model, tokenizer):
    model.train()
    translate(model, tokenizer, SENTENCES[:1])
    assert model.training


def test_empty_and_blank_inputs_have_empty_translations(model, tokenizer):
    assert translate(model, tokenizer, []) == []
    assert translate(model, tokenizer, ["", " "]) == ["", ""]


PLAIN = [SENTENCES[0], SENTENCES[2], SENTENCES[5]]
UNUSUAL = [" {}", "\t{}", "\xa0{}", "{} \n", "\ufeff\u200e{}", "\u202a{}\u202c", "\r\n{}\u3000"]
INSIDE = ["\t", "\xa0", "  ", "\u3000", "\u202f", "\xad ", " \u2060", "\u200b \u200d"]


@pytest.mark.parametrize("unusual", UNUSUAL + INSIDE)
def test_white_space_and_invisible_characters_change_no_translation(model, tokenizer, unusual):
    written = [unusual.format(text) if "{}" in unusual else text.replace(" ", unusual) for text in PLAIN]
    translator = Translator(model, tokenizer)
    settings = {"nbest": 2, "num_beams": 3}
    assert translator.translate(written, **settings) == translator.translate(PLAIN, **settings)
    assert score_translations(translator, written, PLAIN) == score_translations(translator, PLAIN, PLAIN)
    pipeline = TranslationPipeline(model, tokenizer)
    assert pipeline(written, num_beams=1) == pipeline(PLAIN, num_beams=1)


@pytest.mark.parametrize("unusual", [" {}", "\t{}", "\xa0{}", "\ufeff{}", "\u200e{}", "{}\u3000", *INSIDE[:5]])
def test_white_space_is_read_as_the_tokenizer_of_marian_reads_it(model, tokenizer, tmp_path, unusual):
    marian = write_opus_tokenizer(tmp_path, PLAIN * 3, PLAIN * 3, 60)
    written = [unusual.format(text) if "{}" in unusual else text.replace(" ", unusual) for text in PLAIN]
    translator = Translator(model, tokenizer)
    for encode in (translator.encode, lambda texts: marian(texts)["input_ids"]):
        assert encode(written) == encode(PLAIN)


def test_white_space_around_the_sentences_of_a_text_stays(model, tokenizer):
    first, second = translate(model, tokenizer, ["A dog runs.", "Cats sleep here."])
    text = "\t A\xa0dog  ru\xadns.  \u3000Cats \u200esleep\there. \n\n"
    assert translate(model, tokenizer, text, split_sentences=True) == f"\t {first}  \u3000{second} \n\n"


def test_dropout_is_off_while_translating(small_model, tokenizer):
    model = small_model(vocab_size=len(tokenizer), dropout=0.9).train()
    outputs = {translate(model, tokenizer, SENTENCES[:1], num_beams=1, max_new_tokens=8)[0] for _ in range(3)}
    assert len(outputs) == 1
    assert torch.is_grad_enabled()


def test_model_can_be_trained_after_the_position_table_grew_in_inference_mode(small_model, tokenizer, trainer):
    model = small_model(vocab_size=len(tokenizer), max_position_embeddings=8)
    translate(model, tokenizer, ["a dog"], num_beams=1, min_new_tokens=20)
    table = model.model.decoder.embed_positions.table
    assert len(table) > 8
    assert not table.is_inference()
    model.to(torch.float64).to(torch.float32)
    VanillaTransformerTrainer(model, trainer().args)


def test_long_sentence_does_not_change_the_batches_of_the_others(tokenizer):
    class Recorder:
        device = torch.device("cpu")
        config = SimpleNamespace(pad_token_id=0)
        generation_config = SimpleNamespace(num_beams=4)

        def __init__(self):
            self.shapes = []

        def generate(self, input_ids, attention_mask, num_return_sequences):
            self.shapes.append(tuple(input_ids.shape))
            return input_ids

    model = Recorder()
    sources = [[5] * 20] * 50 + [[6] * 1001] + [[7] * 20] * 50
    assert translate_ids(model, sources, max_tokens=200) == sources
    assert model.shapes == [(1, 1001), *[(10, 20)] * 10]


def test_a_string_gives_a_string_and_any_iterable_of_strings_a_list(model, tokenizer):
    expected = translate(model, tokenizer, SENTENCES)
    assert translate(model, tokenizer, SENTENCES[0]) == expected[0]
    assert translate(model, tokenizer, "") == ""
    assert translate(model, tokenizer, (sentence for sentence in SENTENCES)) == expected
    assert translate(model, tokenizer, Dataset.from_dict({"text": SENTENCES})["text"]) == expected


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (None, "expects a string or an iterable of strings, got NoneType"),
        (7, "expects a string or an iterable of strings, got int"),
        (b"a dog", "sentence 0, counted from 0, is int"),
        (["a dog", None], "sentence 1, counted from 0, is NoneType"),
    ],
)
def test_anything_else_is_a_one_line_error(model, tokenizer, sentences, message):
    with pytest.raises(TypeError, match=message):
        translate(model, tokenizer, sentences)


def test_several_translations_per_sentence_are_refused_with_the_way_to_get_them(model, tokenizer):
    with pytest.raises(ValueError, match="has nbest"):
        translate(model, tokenizer, SENTENCES, num_beams=2, num_return_sequences=2)


@pytest.mark.parametrize("position_embedding", ["sinusoidal", "learned"])
def test_a_sentence_with_more_tokens_than_positions_is_empty_with_one_warning(
    small_model, tokenizer, position_embedding
):
    model = small_model(vocab_size=len(tokenizer), position_embedding=position_embedding, max_position_embeddings=12)
    words = by_length(tokenizer)
    with pytest.warns(UserWarning, match="Not translated") as warned:
        found = translate(model, tokenizer, ["cats", words[13], "", words[13], words[12]], max_new_tokens=3)
    assert found[1] == found[2] == found[3] == ""
    assert found[0] == translate(model, tokenizer, "cats", max_new_tokens=3)
    assert found[4]
    (warning,) = warned
    assert "1 (13 tokens, more than 12); 3 (13 tokens, more than 12)" in str(warning.message)


def test_tags_count_towards_the_limit(small_model):
    tokenizer = train_tokenizer(SENTENCES * 3, 300)
    add_tags(tokenizer, ["<2de>"])
    model = small_model(vocab_size=len(tokenizer), max_position_embeddings=12, language_pairs=["en-de"])
    words = by_length(tokenizer)
    translations = Translator(model, tokenizer).translate([words[11], words[12]], max_new_tokens=3)
    assert [each.problem for each in translations] == [None, "13 tokens, more than 12"]


def test_a_lower_limit_of_the_tokenizer_counts(model):
    tokenizer = train_tokenizer(SENTENCES * 3, 300)
    tokenizer.model_max_length = 5
    with pytest.warns(UserWarning, match="0 .* more than 5"):
        assert translate(model, tokenizer, "two men sit on a bench and talk") == ""


def test_split_sentences_translates_a_text_sentence_by_sentence(model, tokenizer):
    model.config.source_lang, model.config.target_lang = "en", "de"
    one, two = "A dog runs.", "Two men sit on a bench."
    first, second = translate(model, tokenizer, [one, two])
    texts = [f"{one} {two}", f"  {one}\n\n{two}\n", " ", ""]
    expected = [f"{first} {second}", f"  {first}\n\n{second}\n", "", ""]
    assert translate(model, tokenizer, texts, split_sentences=True) == expected
    assert translate(model, tokenizer, texts[0], split_sentences=True) == expected[0]


def test_split_sentences_translates_texts_longer_than_the_positions(model, tokenizer):
    text = "A dog runs. " * 40
    assert len(tokenizer(text)["input_ids"]) > model.config.max_position_embeddings
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = translate(model, tokenizer, text, split_sentences=True)
    assert found == f"{translate(model, tokenizer, 'A dog runs.')} " * 40


def test_a_long_sentence_inside_a_text_is_named_and_stays_as_it_is(model, tokenizer):
    long = "cats and dogs " * 30
    with pytest.warns(UserWarning, match=r"0 \(sentence 2: .* tokens, more than 64\)"):
        found = translate(model, tokenizer, f"A dog runs. C{long.strip()}. Cats.", split_sentences=True)
    one, other = translate(model, tokenizer, ["A dog runs.", "Cats."])
    assert found == f"{one} C{long.strip()}. {other}"


def test_placeholders_of_users_stay_in_texts_that_are_split(model, tokenizer):
    text = "A dog ACME-12 runs."
    settings = {"split_sentences": True, "max_new_tokens": 8}
    assert translate(model, tokenizer, text, placeholders=r"ACME-\d+", **settings).count("ACME-12") == 1
    assert "ACME-12" not in translate(model, tokenizer, text, **settings)
    with pytest.raises(UserError, match="placeholders requires split_sentences=True"):
        translate(model, tokenizer, text, placeholders="x")


def test_n_best_lists_of_a_split_text_join_the_hypotheses_of_equal_rank(model, tokenizer):
    translator = Translator(model, tokenizer)
    settings = {"nbest": 2, "scores": True, "num_beams": 2}
    one, two = translator.translate(["A dog runs.", "Cats."], **settings)
    (text,) = translator.translate(["A dog runs. Cats."], split_sentences=True, **settings)
    for rank in range(2):
        assert text.hypotheses[rank].text == f"{one.hypotheses[rank].text} {two.hypotheses[rank].text}"
        assert text.hypotheses[rank].score == pytest.approx(one.hypotheses[rank].score + two.hypotheses[rank].score)


def test_languages_that_the_model_does_not_have_are_errors(small_model, tokenizer):
    model = small_model(vocab_size=len(tokenizer), source_lang="en", target_lang="de")
    assert translate(model, tokenizer, "cats", source_lang="en", target_lang="de", max_new_tokens=2)
    for wrong in ({"source_lang": "fr"}, {"target_lang": "fr"}):
        with pytest.raises(ValueError, match=r"not (from|into) 'fr'"):
            translate(model, tokenizer, "cats", **wrong)


@pytest.mark.parametrize("position_embedding", ["sinusoidal", "learned"])
def test_an_alignment_has_a_source_word_for_each_word_and_does_not_depend_on_the_batch(
    small_model, tokenizer, position_embedding
):
    model = small_model(vocab_size=len(tokenizer), position_embedding=position_embedding)
    pairs = [("a dog runs.", "cats"), ("cats", "two men, sit on 2 benches"), ("two men sit", ""), ("a", "cats " * 40)]
    together = Translator(model, tokenizer).align(pairs)
    assert [len(links) for links in together] == [1, 7, 0, 40]
    for (source, _), found in zip(pairs, together, strict=True):
        linked = {i for sources in found for i in sources}
        assert {
            i for i, (start, end) in enumerate(words(source)) if source[start:end].isalnum()
        } <= linked or not found
        assert linked <= set(range(len(words(source))))
    assert together == [Translator(model, tokenizer).align([pair])[0] for pair in pairs]
    assert model.config._attn_implementation == "sdpa"


def test_the_model_is_left_alone_if_nothing_is_to_be_aligned(model, tokenizer, monkeypatch):
    # a server joins sentences in another thread than the one in which the model translates
    translator = Translator(model, tokenizer)
    model.train()
    for method in ("set_attn_implementation", "eval", "train"):
        monkeypatch.setattr(model, method, None)
    assert translator.align([]) == []


@pytest.mark.parametrize("method", ["translate", "align"])
def test_a_failed_translation_leaves_the_model_in_training_mode(model, tokenizer, monkeypatch, method):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "attention", stop, raising=False)
    translator = Translator(model, tokenizer)
    arguments = {"translate": (["a dog"],), "align": ([("a dog", "a dog")],)}
    settings = {"translate": {"progress": stop, "max_new_tokens": 3}, "align": {}}
    model.train()
    try:
        with pytest.raises(KeyboardInterrupt):
            getattr(translator, method)(*arguments[method], **settings[method])
        assert model.training
    finally:
        model.eval()
