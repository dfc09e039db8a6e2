import pytest
from datasets import Dataset

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data.cleaning import Cleaning, tokenize_pairs
from hf_vanilla_transformer.data.phrases import splits

langid = pytest.importorskip("py3langid")
from hf_vanilla_transformer.data.languages import check_known, is_other_language  # noqa: E402

PAIRS = [
    ("A dog runs across the green meadow.", "Ein Hund läuft über die grüne Wiese."),
    ("A dog runs across the green meadow.", "A dog runs across the green meadow."),  # not translated
    ("Un chien court dans la prairie verte.", "Ein Hund läuft über die grüne Wiese."),
    ("42", "42"),  # too short to tell
]


def test_pairs_in_other_languages_are_dropped_and_counted():
    pairs = Dataset.from_dict({"source": [p[0] for p in PAIRS], "target": [p[1] for p in PAIRS]})
    tokenizer = train_tokenizer([text for pair in PAIRS for text in pair], 300)
    tokens, drops = tokenize_pairs(pairs, tokenizer, 256, Cleaning(256, 4.0, ("en", "de")))
    assert (len(tokens), dict(drops)) == (2, {"language": 2})
    tokens, drops = tokenize_pairs(pairs, tokenizer, 256, Cleaning(256, 4.0))
    assert (len(tokens), dict(drops)) == (4, {})


def test_almost_no_ordinary_sentence_is_mistaken():
    phrases = splits()["test"][:500]
    for language in ("en", "de"):
        mistaken = [text for phrase in phrases if is_other_language(text := getattr(phrase, language), language)]
        assert len(mistaken) < 5, mistaken


def test_unknown_language_codes_are_refused():
    check_known("en", "de")
    with pytest.raises(ValueError, match="cannot identify 'eng'"):
        check_known("en", "eng")
