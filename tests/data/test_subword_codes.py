"""Merges and segmentations, compared with the published algorithm and with subword-nmt itself."""

import io
import json
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data.bpe_dropout import BpeDropout
from hf_vanilla_transformer.data.formats import DataError
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.subword_codes import learn_codes, read_codes

TEXTS = [text for phrase in splits()["train"][:1500] for text in (phrase.en, phrase.de)]
WORDS = Counter(word for text in TEXTS for word in text.split())


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 700, "subword-nmt")


def merges_of(tokenizer) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]]


def as_subword_nmt(tokens: list[str]) -> list[str]:
    """Return tokens as `subword-nmt apply-bpe` prints them, which marks all but the last of a word."""
    return [token.removesuffix("</w>") if token.endswith("</w>") else f"{token}@@" for token in tokens]


def merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    for i in range(len(word) - 1):
        if word[i : i + 2] == pair:
            return (*word[:i], "".join(pair), *merged(word[i + 2 :], pair))
    return word


def learned_by_definition(words: Counter[str], number: int) -> list[tuple[str, str]]:
    """Sennrich et al. 2016, algorithm 1: merge the most frequent pair; of several, the last in alphabetical order."""
    split = {(*word[:-1], f"{word[-1]}</w>"): count for word, count in words.items()}
    merges = []
    while len(merges) < number:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in split.items():
            for pair in pairwise(word):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if pairs[best] < 2:
            break
        merges.append(best)
        split = {merged(word, best): count for word, count in split.items()}
    return merges


@pytest.mark.parametrize("texts", [TEXTS[:150], ["aaaa aaa aa baaab", "ab aba abab ba"]])
def test_merges_are_learned_in_the_published_order(texts):
    words = Counter(word for text in texts for word in text.split())
    symbols = {symbol for word in words for symbol in (*word[:-1], f"{word[-1]}</w>")}
    expected = learned_by_definition(words, 100)
    for number in (1, len(expected)):
        size = len(symbols | set(map("".join, expected[:number])))
        assert learn_codes(words, size) == expected[:number]


def test_nothing_is_learned_from_words_that_are_too_long_for_a_sentence():
    assert learn_codes(Counter({"ab": 2, "cd" * 200: 9}), 10) == [("a", "b</w>")]


def test_the_vocabulary_has_the_size_asked_for(tokenizer):
    assert sorted(tokenizer.get_vocab().values()) == list(range(700))
    with pytest.raises(ValueError, match=r"vocab_size must be at least 7, got 6\."):
        train_tokenizer(["a b ab"], 6, "subword-nmt")
    # a pair that occurs once is not merged
    assert len(train_tokenizer(["a b ab"], 8, "subword-nmt")) == 7


def test_segmentation_is_that_of_the_best_merges_first(tokenizer):
    ranks = {pair: rank for rank, pair in enumerate(merges_of(tokenizer))}
    for text in TEXTS[:300]:
        expected: list[str] = []
        for word in text.split():
            symbols = (*word[:-1], f"{word[-1]}</w>")
            while pairs := [pair for pair in pairwise(symbols) if pair in ranks]:
                symbols = merged(symbols, min(pairs, key=ranks.__getitem__))
            expected += symbols
        assert tokenizer.tokenize(text) == expected
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == " ".join(text.split())


def test_an_unknown_character_leaves_the_rest_of_its_word(tokenizer):
    assert tokenizer.decode(tokenizer("Hund漢e Hund")["input_ids"], skip_special_tokens=True) == "Hunde Hund"


def test_no_text_is_merged_into_a_special_token():
    tokenizer = train_tokenizer(["<s>a <s>a </s>b"] * 9, 300, "subword-nmt")
    assert min(tokenizer("<s>a </s>b")["input_ids"][:-1]) > 3


def test_codes_in_a_file_replace_those_of_the_text(tokenizer, tmp_path):
    file = tmp_path / "codes"
    file.write_text("".join(["#version: 0.2\n", *(f"{a} {b}\n" for a, b in merges_of(tokenizer))]), encoding="utf-8")
    read = train_tokenizer(TEXTS, 300, "subword-nmt", codes=str(file))
    assert read.get_vocab().keys() == tokenizer.get_vocab().keys()
    assert list(map(read.tokenize, TEXTS[:100])) == list(map(tokenizer.tokenize, TEXTS[:100]))


@pytest.mark.parametrize(
    ("content", "message"),
    [("a b\n", "is not a file of BPE codes: its first line"), ("#version: 0.2\na b\nab\n", "line 3: expected two")],
)
def test_a_file_of_something_else_is_named(content, message, tmp_path):
    (tmp_path / "codes").write_text(content)
    with pytest.raises(DataError, match=f"codes.*{message}"):
        read_codes(str(tmp_path / "codes"))


def test_codes_and_segmentations_are_those_of_the_package(tokenizer):
    learn_bpe = pytest.importorskip("subword_nmt.learn_bpe").learn_bpe
    apply_bpe = pytest.importorskip("subword_nmt.apply_bpe").BPE
    merges = merges_of(tokenizer)
    codes = io.StringIO()
    learn_bpe(io.StringIO("".join(f"{text}\n" for text in TEXTS)), codes, len(merges))
    assert codes.getvalue().splitlines()[1:] == [" ".join(pair) for pair in merges]
    bpe = apply_bpe(io.StringIO(codes.getvalue()))
    for text in TEXTS:
        assert as_subword_nmt(tokenizer.tokenize(text)) == bpe.process_line(text).split()

    # and the mean number of tokens per word with dropout, within 1 %
    random.seed(0)
    segmented = sum(len(bpe.process_line(text, 0.1).split()) for text in TEXTS)
    rows = [np.array(ids[:-1]) for ids in tokenizer(TEXTS)["input_ids"]]
    dropouts = [BpeDropout(tokenizer, 0.1, seed) for seed in range(4)]
    means = [sum(map(len, dropout(rows, np.arange(len(rows)), 0))) for dropout in dropouts]
    assert np.mean(means) / segmented == pytest.approx(1, abs=0.01)
