import os
from pathlib import Path

import datasets
import pytest
from datasets import Dataset

from hf_vanilla_transformer.data import DataError, describe_drops, load_pairs, tokenize_pairs

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def prefix(tmp_path):
    return str(tmp_path / "text")


def write(prefix: str, en: str | bytes, de: str | bytes) -> None:
    for language, text in (("en", en), ("de", de)):
        Path(f"{prefix}.{language}").write_bytes(text if isinstance(text, bytes) else text.encode())


def read(prefix: str) -> list[tuple[str, str]]:
    pairs = load_pairs(prefix, "en", "de")
    return list(zip(pairs["source"], pairs["target"], strict=True))


class WordTokenizer:
    """Word lengths as ids, 100 more on the target side."""

    def __call__(self, text=None, text_target=None):
        shift, texts = (0, text) if text is not None else (100, text_target)
        return {"input_ids": [[*(shift + len(word) for word in line.split()), 2] for line in texts]}


def tokenize(rows: list[tuple[str, str]], max_tokens: int):
    source, target = zip(*rows, strict=True)
    return tokenize_pairs(Dataset.from_dict({"source": source, "target": target}), WordTokenizer(), max_tokens)


def test_lines_pair_up_in_order(prefix):
    write(prefix, "one\ntwo\n\nfour\n", "eins\nzwei\ndrei\nvier\n")
    assert read(prefix) == [("one", "eins"), ("two", "zwei"), ("", "drei"), ("four", "vier")]


def test_source_and_target_are_the_named_languages(prefix):
    write(prefix, "one\n", "eins\n")
    assert load_pairs(prefix, "de", "en")[0] == {"source": "eins", "target": "one"}


def test_the_last_line_needs_no_newline(prefix):
    write(prefix, "one\ntwo", "eins\nzwei\n")
    assert read(prefix) == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize(("en", "de"), [(5, 2), (2, 5), (3, 2), (2, 3)])
def test_unequal_lengths_name_both_files_and_both_counts(prefix, en, de):
    write(prefix, "a\n" * en, "b\n" * de)
    with pytest.raises(DataError) as error:
        load_pairs(prefix, "en", "de")
    assert f"{prefix}.en has {en} lines" in str(error.value)
    assert f"{prefix}.de has {de}" in str(error.value)


@pytest.mark.parametrize("missing", ["en", "de"])
def test_a_missing_file_is_named(prefix, missing):
    write(prefix, "a\n", "b\n")
    Path(f"{prefix}.{missing}").unlink()
    with pytest.raises(DataError) as error:
        load_pairs(prefix, "en", "de")
    assert f"{prefix}.{missing}" in str(error.value)


@pytest.mark.parametrize(("en", "de", "empty"), [("", "b\n", "en"), ("a\n", "", "de"), ("", "", "en")])
def test_an_empty_file_is_named(prefix, en, de, empty):
    write(prefix, en, de)
    with pytest.raises(DataError) as error:
        load_pairs(prefix, "en", "de")
    assert f"{prefix}.{empty} is empty" in str(error.value)


@pytest.mark.parametrize("language", ["en", "de"])
def test_invalid_utf8_names_file_and_line(prefix, language):
    bad, good = b"a\nb\nGr\xf6\xdfe\nd\n", b"a\nb\nc\nd\n"
    write(prefix, *((bad, good) if language == "en" else (good, bad)))
    with pytest.raises(DataError) as error:
        load_pairs(prefix, "en", "de")
    assert f"{prefix}.{language}, line 3" in str(error.value)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x0b", "\x0c", "\x85", "\x1c", "\r"])
def test_only_a_newline_ends_a_line(prefix, separator):
    write(prefix, f"one{separator}more\ntwo\n", "eins\nzwei\n")
    assert read(prefix) == [(f"one{separator}more", "eins"), ("two", "zwei")]


def test_windows_line_ends_are_stripped(prefix):
    write(prefix, "one\r\ntwo\r\n", "eins\nzwei\n")
    assert read(prefix) == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize(("new", "seconds"), [("uno\n", 1), ("three\n", 0)], ids=["same size", "same time"])
@pytest.mark.parametrize("language", ["en", "de"])
def test_a_changed_file_is_read_again(prefix, language, new, seconds):
    write(prefix, "one\n", "one\n")
    assert read(prefix) == [("one", "one")]
    file = Path(f"{prefix}.{language}")
    before = file.stat().st_mtime_ns
    file.write_text(new)
    os.utime(file, ns=(before, before + seconds * 10**9))
    assert read(prefix) == [(new.strip(), "one") if language == "en" else ("one", new.strip())]


def test_unchanged_files_are_served_from_the_cache(prefix, own_cache):
    write(prefix, "one\n", "eins\n")
    files = [load_pairs(prefix, "en", "de").cache_files for _ in range(2)]
    assert files[0] == files[1]
    assert own_cache in Path(files[0][0]["filename"]).parents


def test_multi30k_is_read_as_its_files_say():
    folder = SHARED / "multi30k" / "tok"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    sides = [(folder / f"val.{language}").read_bytes().decode().split("\n") for language in ("en", "de")]
    assert [side.pop() for side in sides] == ["", ""]
    pairs = read(str(folder / "val"))
    assert len(pairs) == 1014
    assert pairs == list(zip(*sides, strict=True))


def test_ids_and_lengths_are_the_tokenizers():
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


def test_many_pairs_keep_their_order():
    rows = [("a" * i, "b" * i) if i % 7 else ("", "b") for i in range(1, 2501)]
    tokens, drops = tokenize(rows, 10)
    assert drops == {"blank side": 2500 // 7}
    assert tokens["input_ids"][:] == [[i, 2] for i in range(1, 2501) if i % 7]


def test_nothing_left_is_an_error_that_counts_the_drops():
    with pytest.raises(DataError, match=r"3: 2 blank side, 1 too long"):
        tokenize([("", "b"), ("a", " "), ("a a a", "b")], 3)


def test_drops_are_described_most_frequent_first():
    assert describe_drops(tokenize([("", "b"), ("a", "b")], 3)[1]) == "1 blank side"
    assert describe_drops(tokenize([("a", "b")], 3)[1]) == "none"
