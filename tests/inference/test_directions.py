"""Models of several directions translate alike with every runtime."""

import pytest
from export_models import NEEDS_ONNX, PHRASES
from transformers import AutoTokenizer

from hf_vanilla_transformer import Translator, translate
from hf_vanilla_transformer.data.tokenizer import add_tags
from hf_vanilla_transformer.inference.attention import Explorer
from hf_vanilla_transformer.inference.comparison import score_translations
from hf_vanilla_transformer.inference.exports import load_export
from hf_vanilla_transformer.inference.translator import check_same_directions
from hf_vanilla_transformer.model.text_rules_vanilla_transformer import Directions

PAIRS = ["en-de", "en-fr"]


@pytest.fixture
def multilingual(save_model, phrase_tokenizer):
    """A random model of two directions, its tokenizer and its folder."""
    model, folder = save_model(
        vocab_size=len(phrase_tokenizer) + 2, language_pairs=PAIRS, length_normalization="length"
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    add_tags(tokenizer, ["<2de>", "<2fr>"])
    tokenizer.save_pretrained(folder)
    return model, tokenizer, str(folder)


@pytest.mark.parametrize("backend", ["ctranslate2", pytest.param("onnx", marks=[pytest.mark.slow, NEEDS_ONNX])])
def test_exports_translate_in_every_direction(multilingual, backend):
    model, tokenizer, folder = multilingual
    settings = {"num_beams": 1, "max_new_tokens": 15}
    exported = load_export(folder, backend)
    outputs = {}
    for language in ("de", "fr"):
        outputs[language] = translate(exported, exported.tokenizer, PHRASES, target_lang=language, **settings)
        assert outputs[language] == translate(model, tokenizer, PHRASES, target_lang=language, **settings)
    assert outputs["de"] != outputs["fr"]
    with pytest.raises(ValueError, match="translates into de, fr, not into"):
        translate(exported, exported.tokenizer, PHRASES, target_lang="nl")


def test_scores_depend_on_the_target_language(multilingual):
    model, tokenizer, _ = multilingual
    texts = (PHRASES[:3], PHRASES[3:6])
    german, french = (
        score_translations(Translator(model, tokenizer), *texts, target_lang=name) for name in ("de", "fr")
    )
    assert [tokens for _, tokens in german] == [tokens for _, tokens in french]
    assert all(one != other for (one, _), (other, _) in zip(german, french, strict=True))


def test_blank_sentences_stay_blank_in_every_direction(multilingual):
    model, tokenizer, _ = multilingual
    assert translate(model, tokenizer, ["", " "], target_lang="de") == ["", ""]


def test_the_page_translates_in_the_chosen_direction(multilingual):
    model, tokenizer, folder = multilingual
    explorer = Explorer.load(folder)
    assert explorer.translator.directions.targets == ["de", "fr"]
    for language in explorer.translator.directions.targets:
        _, text, ids = explorer.translate(PHRASES[0], 1, 0.6, language)[0]
        assert text == translate(model, tokenizer, [PHRASES[0]], target_lang=language, num_beams=1)[0]
        tokens = explorer.attention(PHRASES[0], ids, language)["tokens"]["source"]
        assert tokens[0] == f"<2{language}>"


def test_models_of_different_directions_are_not_compared(multilingual, save_model):
    single, _ = save_model(source_lang=None, target_lang=None)
    with pytest.raises(ValueError, match="different directions: A: en-de, en-fr; B: unknown languages"):
        check_same_directions({"A": Directions(multilingual[0].config), "B": Directions(single.config)})
