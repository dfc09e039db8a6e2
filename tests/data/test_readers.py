import csv
import gzip
import json
import os
from pathlib import Path

import datasets
import pytest
from corpora import MULTI30K, NO_MULTI30K, ROOT
from datasets import Dataset

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data import cleaning, readers
from hf_vanilla_transformer.data.cleaning import Cleaning, describe_drops, tokenize_pairs
from hf_vanilla_transformer.data.readers import DataError, load_hub_pairs, load_pairs

CLEANING = Cleaning(max_sentence_tokens=256, max_length_ratio=4.0)
SHARED = ROOT.parent / "shared" / "data"


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


def tokenize(rows: list[tuple[str, str]], max_tokens: int, cleaning: Cleaning | None = None):
    source, target = zip(*rows, strict=True)
    pairs = Dataset.from_dict({"source": source, "target": target})
    return tokenize_pairs(pairs, WordTokenizer(), max_tokens, cleaning)


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
    if not MULTI30K.is_dir():
        pytest.skip(NO_MULTI30K)
    sides = [(MULTI30K / f"val.{language}").read_bytes().decode().split("\n") for language in ("en", "de")]
    assert [side.pop() for side in sides] == ["", ""]
    pairs = read(str(MULTI30K / "val"))
    assert len(pairs) == 1014
    assert pairs == list(zip(*sides, strict=True))


ROWS = [("one", "eins"), ('say "two"', "zwei\u2028 , bitte"), ("", "drei"), ("vier\\n, 4", "„vier“")]


def save(path: Path, format: str) -> str:
    """Writes ROWS with an independent writer; gives the path to load."""
    path = path.with_suffix(f".{format.removesuffix('.gz')}")
    if format.startswith("jsonl"):
        text = "".join(json.dumps({"translation": {"de": de, "en": en}}) + "\n" for en, de in ROWS)
    elif format.startswith("tsv"):
        text = "\n".join("\t".join(row) for row in [("id", "en", "de"), *(("7", *row) for row in ROWS)])
    elif format.startswith("csv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("de", "en"), *((de, en) for en, de in ROWS)])
        text = path.read_bytes().decode()
    else:
        Dataset.from_dict({"translation": [{"en": en, "de": de} for en, de in ROWS]}).to_parquet(path)
        return str(path)
    if format.endswith(".gz"):
        path = Path(f"{path}.gz")
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_bytes(text.encode())
    return str(path)


@pytest.mark.parametrize("format", ["jsonl", "jsonl.gz", "tsv", "tsv.gz", "csv", "csv.gz", "parquet"])
def test_every_format_gives_the_same_pairs(format, tmp_path):
    assert read(save(tmp_path / "text", format)) == ROWS


def test_a_moses_pair_may_be_compressed(tmp_path):
    for language, side in zip(("en", "de"), zip(*ROWS, strict=True), strict=True):
        (tmp_path / f"text.{language}.gz").write_bytes(gzip.compress("\n".join(side).encode()))
    assert read(str(tmp_path / "text")) == ROWS


def test_a_json_line_may_be_the_bare_object_and_parquet_have_plain_columns(tmp_path):
    (tmp_path / "text.jsonl").write_text('{"en": "one", "de": null, "score": 1}\n\n{"de": "b\\ud800", "en": "a"}\n')
    assert read(str(tmp_path / "text.jsonl")) == [("one", ""), ("a", "b?")]
    Dataset.from_dict({"en": ["one"], "fr": ["un"], "de": ["eins"]}).to_parquet(tmp_path / "text.parquet")
    assert read(str(tmp_path / "text.parquet")) == [("one", "eins")]


def test_windows_mark_of_utf8_is_no_text(tmp_path, prefix):
    (tmp_path / "text.tsv").write_bytes("\ufeffen\tde\none\teins\n".encode())
    assert read(str(tmp_path / "text.tsv")) == [("one", "eins")]
    write(prefix, "\ufeffone\n", "eins\n")
    assert read(prefix) == [("one", "eins")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", b'{"en": "a", "de": "b"}\n{"en": "a"\n', "t.jsonl, line 2: not JSON"),
        ("t.jsonl", b"[" * 100_000, "t.jsonl, line 1: not JSON"),
        ("t.jsonl", b'["a", "b"]\n', "t.jsonl, line 1: not an object"),
        ("t.jsonl", b'{"translation": {"en": "a", "fr": "b"}}\n', "t.jsonl, line 1: no 'de'; it has en, fr"),
        ("t.jsonl", b'{"en": "a", "de": 5}\n', "t.jsonl, line 1: 'de' is not text"),
        ("t.jsonl", b'{"en": "a", "de": "b"}\n{"en": "\xff", "de": "b"}\n', "t.jsonl, line 2: not UTF-8"),
        ("t.tsv", b"en\tde\na\tb\nc\n", "t.tsv, line 3: 1 fields, but the header has 2"),
        ("t.tsv", b"en\tfr\na\tb\n", "t.tsv has no column 'de'; its header has en, fr"),
        ("t.tsv", b"en\tde\na\t\xe4\n", "t.tsv, line 2: not UTF-8"),
        ("t.tsv", b"en\tde\n", "t.tsv has no pair of sentences"),
        ("t.csv", b'en,de\na,b\n"c,d\n', "t.csv, line 3: not CSV"),
        ("t.csv", b"en,de\na,b,c\n", "t.csv, line 2: 3 fields, but the header has 2"),
        ("t.csv", b"en,de\n\xff,b\n", "t.csv, line 2: not UTF-8"),
        ("t.tsv.gz", gzip.compress(b"en\tde\na\tb\n" * 9)[:-9], "t.tsv.gz is not a whole compressed file"),
        ("t.tsv.gz", b"en\tde\n", "t.tsv.gz is not a whole compressed file"),
        ("t.tsv.zst", b"en\tde\n", "t.tsv.zst is not a whole compressed file"),
        ("t.tsv.gz", gzip.compress(b"en\tde\n" + bytes(2**26)), "t.tsv.gz, line 2: longer than 1,048,576 bytes"),
        ("t.parquet", b"PAR1 but no more", "t.parquet cannot be read"),
        ("t.csv", b"", "t.csv is empty"),
    ],
)
def test_a_file_that_is_not_its_format_is_a_clear_error(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        load_pairs(str(tmp_path / name), "en", "de")
    assert message in str(error.value)


def test_a_missing_language_of_a_parquet_file_and_of_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"There is no file .*t\.parquet\.$"):
        load_pairs(str(tmp_path / "t.parquet"), "en", "de")
    Dataset.from_dict({"en": ["a"], "fr": ["b"], "ids": [[1]]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="has no 'de'; it has en, fr, ids"):
        load_pairs(str(tmp_path / "t.parquet"), "en", "de")
    with pytest.raises(DataError, match="'ids' is not text"):
        load_pairs(str(tmp_path / "t.parquet"), "en", "ids")


@pytest.fixture
def hub_data_set(tmp_path):
    """A data set in the Hub's layout, with the feature that WMT's have and two configurations."""
    translation = datasets.Features({"translation": datasets.Translation(languages=["de", "en"])})
    for config, splits in {"de-en": ("train", "validation", "test"), "small": ("train",)}.items():
        for split in splits:
            rows = {"translation": [{"de": f"{split} eins", "en": f"{split} one"}]}
            (tmp_path / "set" / config).mkdir(parents=True, exist_ok=True)
            Dataset.from_dict(rows, features=translation).to_parquet(tmp_path / f"set/{config}/{split}.parquet")
    configs = "".join(f"- config_name: {name}\n  data_dir: {name}\n" for name in ("de-en", "small"))
    (tmp_path / "set" / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    return str(tmp_path / "set")


def test_a_hub_data_set_gives_the_splits_it_has(hub_data_set):
    pairs = load_hub_pairs(hub_data_set, "de-en", "en", "de", ("train", "validation"))
    assert {name: split[0] for name, split in pairs.items()} == {
        name: {"source": f"{name} one", "target": f"{name} eins"} for name in ("train", "validation")
    }
    assert list(load_hub_pairs(hub_data_set, "small", "en", "de", ("train", "validation"))) == ["train"]


def test_a_hub_data_set_without_split_or_language_says_what_it_has(hub_data_set):
    with pytest.raises(DataError, match=r"\(small\) has no split test; it has train"):
        load_hub_pairs(hub_data_set, "small", "en", "de", ("test",))
    with pytest.raises(DataError, match=r"\(de-en\), train, has no 'fr'; it has de, en"):
        load_hub_pairs(hub_data_set, "de-en", "en", "fr", ("train",))


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


def test_cleaning_drops_and_counts_every_kind_of_dirt():
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


def test_only_what_is_unusable_is_dropped_without_cleaning():
    rows = [("a", "b b b b b b"), ("<b>", "<b>"), ("x", "y"), ("x", "y"), ("", "")]
    tokens, drops = tokenize(rows, 7)
    assert drops == {"blank side": 1}
    assert len(tokens) == 4


@pytest.mark.parametrize("text", ["a < b and c > d", "i &lt; 3 you", "2 <3 > 1", "1 < x", "a &amp; b", "x <= y >= z"])
def test_comparisons_are_no_markup(text):
    assert not tokenize([(text, text)], 100, CLEANING)[1]


@pytest.mark.parametrize(
    "text",
    ["<br>", "a <br/> b", "</p>", "<!-- x", "&lt;i&gt;", "&lt; / div &gt;", '<td class="a">', "< img src = x >"],
)
def test_tags_are_markup(text):
    assert tokenize([(f"{text} text", "text"), ("a", "b")], 100, CLEANING)[1] == {"markup": 1}


def test_many_processes_give_what_one_gives(tmp_path, monkeypatch):
    (tmp_path / "text.tsv").write_text("en\tde\n" + "".join(f"{'a' * (i % 37 + 1)} {i}\tb {i}\n" for i in range(60)))
    pairs = load_pairs(str(tmp_path / "text.tsv"), "en", "de")
    alone = tokenize_pairs(pairs, WordTokenizer(), 100)[0].to_dict()
    monkeypatch.setattr("hf_vanilla_transformer.data.cleaning.PAIRS_PER_PROCESS", 10)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    apart = tokenize_pairs(load_pairs(str(tmp_path / "text.tsv"), "en", "de"), WordTokenizer(), 99)[0].to_dict()
    assert apart == alone


def test_the_wmt_sample_is_cleaned():
    folder = SHARED / "wmt"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    lines = [(folder / f"train.{language}").read_bytes().decode().split("\n")[:-1] for language in ("en", "de")]
    blank = [i for i, pair in enumerate(zip(*lines, strict=True)) if not all(side.strip() for side in pair)]
    pairs = set(zip(*lines, strict=True))
    tokens, drops = tokenize_pairs(load_pairs(str(folder / "train"), "en", "de"), WordTokenizer(), 50, CLEANING)
    assert drops["blank side"] == len(blank) > 0
    assert drops["too long"] > 0
    assert len(tokens) + drops.total() == 10_000
    assert 0 < drops["duplicate"] <= 10_000 - len(pairs)


def test_changed_readers_and_cleaning_do_not_take_what_the_old_ones_cached(tmp_path, own_cache, monkeypatch):
    (tmp_path / "text.tsv").write_text("en\tde\na dog\tein hund\n")
    path = str(tmp_path / "text.tsv")
    assert load_pairs(path, "en", "de")["source"][:] == ["a dog"]
    monkeypatch.setitem(readers.READERS, ".tsv", lambda files, languages: iter([{"source": "new", "target": "neu"}]))
    assert load_pairs(path, "en", "de")["source"][:] == ["a dog"]  # from the cache, as for unchanged code
    monkeypatch.setattr(readers, "VERSION", "later")
    pairs = load_pairs(path, "en", "de")
    assert pairs["source"][:] == ["new"]
    tokenizer = train_tokenizer([""], 260)
    lengths = {}
    for version in ("later", "later still"):
        monkeypatch.setattr(cleaning, "VERSION", version)
        lengths[version] = tokenize_pairs(pairs, tokenizer, 100)[0]._fingerprint
    assert len(set(lengths.values())) == 2


def test_one_language_on_both_sides_is_refused(tmp_path):
    (tmp_path / "text.en").write_text("a\n")
    datasets.Dataset.from_dict({"en": ["a"], "de": ["b"]}).to_parquet(tmp_path / "text.parquet")
    for name in ("text", "text.parquet"):
        with pytest.raises(DataError, match="both 'en'"):
            load_pairs(str(tmp_path / name), "en", "en")
    with pytest.raises(DataError, match="both 'en'"):
        load_hub_pairs(str(tmp_path), None, "en", "en", ("train",))


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_a_header_that_names_a_language_twice_is_refused(tmp_path, ending):
    separator = "," if ending == "csv" else "\t"
    path = tmp_path / f"text.{ending}"
    path.write_text("".join(separator.join(row) + "\n" for row in (["en", "de", "en"], ["a", "b", "c"])))
    with pytest.raises(DataError, match="2 columns 'en'"):
        load_pairs(str(path), "en", "de")


def test_an_empty_parquet_file_is_named(tmp_path):
    path = str(tmp_path / "text.parquet")
    datasets.Dataset.from_dict({"en": ["a"], "de": ["b"]}).select([]).to_parquet(path)
    with pytest.raises(DataError, match=r"text.parquet has no pair of sentences"):
        load_pairs(path, "en", "de")
