"""Tokenising and cleaning: which pairs are dropped, and for which reason."""

from collections import Counter

import pytest
from datasets import Dataset

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data import cleaning, formats, source
from hf_vanilla_transformer.data.cleaning import Cleaning, clean_batch, describe_drops, portions, tokenize_pairs
from hf_vanilla_transformer.data.formats import DataError
from hf_vanilla_transformer.data.source import TextFile

pytestmark = pytest.mark.usefixtures("datasets_cache")
CLEANING = Cleaning(max_sentence_tokens=256, max_length_ratio=4.0)


class WordTokenizer:
    """Maps each word to its length, plus 100 for target text."""

    def __call__(self, text=None, text_target=None, verbose=True):
        shift, texts = (0, text) if text is not None else (100, text_target)
        return {"input_ids": [[*(shift + len(word) for word in line.split()), 2] for line in texts]}


def tokenize(rows: list[tuple[str, str]], max_tokens: int, cleaning: Cleaning | None = None):
    source, target = zip(*rows, strict=True)
    pairs = Dataset.from_dict({"source": source, "target": target})
    return tokenize_pairs(pairs, WordTokenizer(), max_tokens, cleaning)


def test_ids_and_lengths_are_those_of_the_tokenizer():
    tokens, drops = tokenize([("a bb", "ccc"), ("dddd", "e e e")], 10)
    assert tokens.to_dict() == {
        "input_ids": [[1, 2, 2], [4, 2]],
        "labels": [[103, 2], [101, 101, 101, 2]],
        "source_length": [3, 2],
        "target_length": [2, 4],
    }
    assert not drops


def test_blank_and_too_long_pairs_are_dropped_and_counted():
    rows = [
        ("a", "b"),
        ("", "b"),
        ("a a a a", "b"),
        ("aa aa aa", "bb bb bb"),
        ("a", " \t"),
        ("a", "b b b b"),
        ("a", ""),
        ("aaa", "bbb"),
    ]
    tokens, drops = tokenize(rows, 4)
    assert drops == {"blank side": 3, "too long": 2}
    assert tokens["input_ids"][:] == [[1, 2], [2, 2, 2, 2], [3, 2]]
    assert tokens["labels"][:] == [[101, 2], [102, 102, 102, 2], [103, 2]]
    assert tokens["source_length"][:] == tokens["target_length"][:] == [2, 4, 2]


def test_the_order_of_many_pairs_is_preserved():
    rows = [("a" * i, "b" * i) if i % 7 else ("", "b") for i in range(1, 2501)]
    tokens, drops = tokenize(rows, 10)
    assert drops == {"blank side": 2500 // 7}
    assert tokens["input_ids"][:] == [[i, 2] for i in range(1, 2501) if i % 7]


def test_dropping_every_pair_is_an_error_with_the_counts():
    with pytest.raises(DataError, match=r"3 in total: 2 blank side, 1 too long"):
        tokenize([("", "b"), ("a", " "), ("a a a", "b")], 3)


def test_drops_are_described_most_frequent_first():
    assert describe_drops(tokenize([("", "b"), ("a", "b")], 3)[1]) == "1 blank side"
    assert describe_drops(tokenize([("a", "b")], 3)[1]) == "none"
    assert describe_drops(Counter({"too long": 1, "markup": 2_000})) == "2,000 markup, 1 too long"


def test_cleaning_counts_the_dropped_pairs_by_reason():
    rows = [
        ("a good pair", "ein gutes paar"),
        ("", "b"),
        ("a a a a a a", "b b b b b b"),
        ("a", "b b b b b"),
        ("see <a href='x'>this</a>", "siehe das hier"),
        ("some text", "&lt; b &gt; etwas text"),
        ("a good pair", "ein gutes paar"),
        ("a good pair", "ein anderes paar"),
        ("", "b"),
    ]
    tokens, drops = tokenize(rows, 100, Cleaning(max_sentence_tokens=6, max_length_ratio=2.5))
    assert drops == {"blank side": 2, "too long": 1, "length ratio": 1, "markup": 2, "duplicate": 1}
    assert tokens["labels"][:] == [[103, 105, 104, 2], [103, 107, 104, 2]]


def test_without_cleaning_only_unusable_pairs_are_dropped():
    rows = [("a", "b b b b b b"), ("<b>", "<b>"), ("x", "y"), ("x", "y"), ("", "")]
    tokens, drops = tokenize(rows, 7)
    assert drops == {"blank side": 1}
    assert len(tokens) == 4


@pytest.mark.parametrize("text", ["a < b and c > d", "i &lt; 3 you", "2 <3 > 1", "1 < x", "a &amp; b", "x <= y >= z"])
def test_comparison_signs_are_not_markup(text):
    assert not tokenize([(text, text)], 100, CLEANING)[1]


@pytest.mark.parametrize(
    "text",
    ["<br>", "a <br/> b", "</p>", "<!-- x", "&lt;i&gt;", "&lt; / div &gt;", '<td class="a">', "< img src = x >"],
)
def test_tags_are_markup(text):
    assert tokenize([(f"{text} text", "text"), ("a", "b")], 100, CLEANING)[1] == {"markup": 1}


def test_the_result_does_not_depend_on_the_number_of_processes(tmp_path, monkeypatch):
    (tmp_path / "text.tsv").write_text("en\tde\n" + "".join(f"{'a' * (i % 37 + 1)} {i}\tb {i}\n" for i in range(60)))
    pairs = TextFile(("en", "de"), str(tmp_path / "text.tsv")).pairs()
    expected = tokenize_pairs(pairs, WordTokenizer(), 100)[0].to_dict()
    monkeypatch.setattr("hf_vanilla_transformer.data.cleaning.MIN_PAIRS_PER_PROCESS", 10)
    monkeypatch.setattr("hf_vanilla_transformer.data.cleaning.available_cores", lambda: 2)
    pairs = TextFile(("en", "de"), str(tmp_path / "text.tsv")).pairs()
    assert tokenize_pairs(pairs, WordTokenizer(), 99)[0].to_dict() == expected  # 99: not from the cache


def test_every_pair_of_the_wmt_sample_is_kept_or_counted(wmt_sample):
    lines = [(wmt_sample / f"train.{language}").read_bytes().decode().split("\n")[:-1] for language in ("en", "de")]
    blank = [i for i, pair in enumerate(zip(*lines, strict=True)) if not all(side.strip() for side in pair)]
    pairs = set(zip(*lines, strict=True))
    text = TextFile(("en", "de"), str(wmt_sample / "train"))
    tokens, drops = tokenize_pairs(text.pairs(), WordTokenizer(), 50, CLEANING)
    assert drops["blank side"] == len(blank) > 0
    assert drops["too long"] > 0
    assert len(tokens) + drops.total() == 10_000
    assert 0 < drops["duplicate"] <= 10_000 - len(pairs)


def test_changed_code_does_not_use_the_cache_of_the_old_code(tmp_path, monkeypatch):
    (tmp_path / "text.tsv").write_text("en\tde\na dog\tein hund\n")
    text = TextFile(("en", "de"), str(tmp_path / "text.tsv"))
    assert text.pairs()["source"][:] == ["a dog"]
    monkeypatch.setitem(formats.READERS, ".tsv", lambda files, languages: iter([{"source": "new", "target": "neu"}]))
    assert text.pairs()["source"][:] == ["a dog"]  # from the cache, as the code has not changed
    monkeypatch.setattr(source, "VERSION", "later")
    assert text.pairs()["source"][:] == ["new"]
    tokenizer = train_tokenizer([""], 260)
    fingerprints = {}
    for version in ("later", "later still"):
        monkeypatch.setattr(cleaning, "VERSION", version)
        fingerprints[version] = tokenize_pairs(text.pairs(), tokenizer, 100)[0]._fingerprint
    assert len(set(fingerprints.values())) == 2


@pytest.mark.parametrize("ratio", [0.0, 0.9, float("nan")])
def test_a_ratio_that_would_drop_every_pair_or_none_is_rejected(ratio):
    with pytest.raises(ValueError, match="max_length_ratio must be at least 1, got"):
        Cleaning(256, ratio)


def test_no_more_text_is_tokenised_at_once_than_the_limit_and_tokens_of_long_sides_are_not_kept(monkeypatch):
    tokenizer = train_tokenizer(["a dog runs"] * 5, 300)
    texts = ["a dog", "x" * 90, "a dog runs", "x" * 300, "a"]
    expected = tokenizer(texts)["input_ids"]
    sizes = []

    def count(texts=None, text_target=None, **settings):
        sizes.append(sum(map(len, texts or text_target)))
        return tokenizer(texts, text_target=text_target, **settings)

    monkeypatch.setattr(cleaning, "_CHARACTERS_TOKENISED", 100)
    rows = clean_batch({"source": texts, "target": texts}, count, 50, None)
    assert sizes == [95, 10, 300, 1] * 2
    assert rows["source_length"] == rows["target_length"] == list(map(len, expected))
    assert rows["input_ids"] == rows["labels"] == [ids if len(ids) <= 50 else [] for ids in expected]


def test_portions_keep_the_order_and_both_limits():
    assert list(portions("abcdefg", lambda _: 2, 6)) == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    assert list(portions("abc", lambda _: 9, 6)) == [["a"], ["b"], ["c"]]
    assert list(portions("abcde", lambda _: 0, 6, 2)) == [["a", "b"], ["c", "d"], ["e"]]
    assert list(portions("", len, 6)) == []
