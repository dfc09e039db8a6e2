"""The rules for text that the pipeline and `Translator` share."""

# ruff: noqa: RUF001

import logging
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.model.text_rules_vanilla_transformer import (
    Directions,
    is_blank,
    max_source_tokens,
    normalise,
)

NO_LIMIT = SimpleNamespace(model_max_length=10**30)


def test_a_single_direction_has_no_tag_and_refuses_other_languages_on_either_side():
    directions = Directions(VanillaTransformerConfig(source_lang="en", target_lang="de"))
    assert directions.resolve() == ("en", "de") == directions.resolve("en", "de")
    assert directions.tag() is None
    with pytest.raises(ValueError, match="translates from en, not from 'fr'"):
        directions.resolve("fr")
    with pytest.raises(ValueError, match="translates into de, not into 'fr'"):
        directions.tag("en", "fr")


def test_unknown_languages_accept_any_and_known_sides_are_still_checked():
    assert Directions(VanillaTransformerConfig()).resolve("sw", "ha") == ("sw", "ha")
    half = Directions(VanillaTransformerConfig(target_lang="de"))
    assert half.resolve("sw") == ("sw", "de")
    with pytest.raises(ValueError, match="into de"):
        half.resolve("sw", "ha")


def test_several_directions_need_a_target_and_warn_of_untrained_combinations(caplog):
    directions = Directions(VanillaTransformerConfig(language_pairs=["en-de", "fr-en"], source_lang=None))
    assert directions.tag("en", "de") == "<2de>"
    with pytest.raises(ValueError, match="choose one as the target language"):
        directions.resolve("en")
    with pytest.raises(ValueError, match="translates from en, fr, not from 'it'"):
        directions.resolve("it", "de")
    assert not caplog.messages
    with caplog.at_level(logging.WARNING):
        assert directions.resolve("fr", "de") == ("fr", "de")
    assert "was not trained to translate from fr to de" in caplog.text


def test_models_of_other_classes_have_unknown_directions():
    assert Directions(SimpleNamespace()).resolve(None, "de") == (None, "de")


@pytest.mark.parametrize(
    ("positions", "own", "expected"), [(64, 10**30, 64), (64, 32, 32), (64, 128, 64), (None, 512, 512)]
)
def test_the_lower_limit_of_model_and_tokenizer_decides(positions, own, expected):
    config = SimpleNamespace(max_position_embeddings=positions)
    assert max_source_tokens(config, SimpleNamespace(model_max_length=own)) == expected


def test_a_model_without_any_limit_gets_a_default():
    assert max_source_tokens(SimpleNamespace(), NO_LIMIT) == 1024


def test_white_space_of_any_kind_is_blank():
    assert is_blank(" \t\u3000\u00a0\n")
    assert is_blank("\u200b\ufeff \u200e\xad")


@pytest.mark.parametrize(
    "text",
    [
        "a dog, two cats",
        "می\u200cخواهم PDF\u200cها",  # half spaces of Persian
        "क्\u200dष र्\u200c",
        "ශ්\u200dරී",
        "ភាសា\u200bខ្មែរ",  # a border between words
        "👩\u200d🚀 ❤️\u200d🔥 🏴\u200d☠️",
    ],
)
def test_characters_that_mean_something_are_kept(text):
    assert normalise(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" \ta\xa0dog\u3000\u202fruns\u2028\n", "a dog runs"),
        ("\ufeff\u200eShalom \u2068Ann\u2069\u200f", "Shalom Ann"),
        ("beau\xadti\u200dful\u200c \u200ddo\u2060g\u200b", "beautiful dog"),
        ("сло\xadво λέ\u200dξη 你\u200b好 1\u200c2", "слово λέξη 你好 12"),
    ],
)
def test_white_space_and_characters_that_mean_nothing_are_normalised(text, expected):
    assert normalise(text) == expected


@given(st.text(st.sampled_from("ab 1.\t\xa0\xad\u061c\u200b\u200c\u200d\u200e\u2060بक❤\ufe0f👩"), max_size=12))
@settings(max_examples=300, deadline=None)
def test_a_normal_text_stays_as_it_is(text):
    assert normalise(normalise(text)) == normalise(text)
