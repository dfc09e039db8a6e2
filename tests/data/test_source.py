"""Reading parallel text: file formats, errors that name file and line, and the cache."""

import csv
import gzip
import json
import os
from collections import deque
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from hf_vanilla_transformer.data.formats import DataError
from hf_vanilla_transformer.data.source import HubDataset, TextFile

pytestmark = pytest.mark.usefixtures("datasets_cache")


@pytest.fixture
def prefix(tmp_path):
    return str(tmp_path / "text")


def write(prefix: str, en: str | bytes, de: str | bytes) -> None:
    for language, text in (("en", en), ("de", de)):
        Path(f"{prefix}.{language}").write_bytes(text if isinstance(text, bytes) else text.encode())


def read(prefix: str) -> list[tuple[str, str]]:
    pairs = TextFile(("en", "de"), prefix).pairs()
    return list(zip(pairs["source"], pairs["target"], strict=True))


def test_lines_are_paired_in_order(prefix):
    write(prefix, "one\ntwo\n\nfour\n", "eins\nzwei\ndrei\nvier\n")
    assert read(prefix) == [("one", "eins"), ("two", "zwei"), ("", "drei"), ("four", "vier")]


def test_source_and_target_are_the_named_languages(prefix):
    write(prefix, "one\n", "eins\n")
    assert TextFile(("de", "en"), prefix).pairs()[0] == {"source": "eins", "target": "one"}


def test_the_last_line_needs_no_newline(prefix):
    write(prefix, "one\ntwo", "eins\nzwei\n")
    assert read(prefix) == [("one", "eins"), ("two", "zwei")]


@pytest.mark.parametrize(("en", "de"), [(5, 2), (2, 5), (3, 2), (2, 3)])
def test_files_of_unequal_length_are_named_with_their_line_counts(prefix, en, de):
    write(prefix, "a\n" * en, "b\n" * de)
    with pytest.raises(DataError) as error:
        TextFile(("en", "de"), prefix).pairs()
    assert f"{prefix}.en has {en} lines" in str(error.value)
    assert f"{prefix}.de has {de}" in str(error.value)


@pytest.mark.parametrize("missing", ["en", "de"])
def test_a_missing_file_is_named(prefix, missing):
    write(prefix, "a\n", "b\n")
    Path(f"{prefix}.{missing}").unlink()
    with pytest.raises(DataError) as error:
        TextFile(("en", "de"), prefix).pairs()
    assert f"{prefix}.{missing}" in str(error.value)


@pytest.mark.parametrize(("en", "de", "empty"), [("", "b\n", "en"), ("a\n", "", "de"), ("", "", "en")])
def test_an_empty_file_is_named(prefix, en, de, empty):
    write(prefix, en, de)
    with pytest.raises(DataError) as error:
        TextFile(("en", "de"), prefix).pairs()
    assert f"{prefix}.{empty} is empty" in str(error.value)


def test_equal_source_and_target_languages_are_rejected(tmp_path):
    (tmp_path / "text.en").write_text("a\n")
    Dataset.from_dict({"en": ["a"], "de": ["b"]}).to_parquet(tmp_path / "text.parquet")
    for name in ("text", "text.parquet"):
        with pytest.raises(DataError, match="both 'en'"):
            TextFile(("en", "en"), str(tmp_path / name)).pairs()


@pytest.mark.parametrize("language", ["en", "de"])
def test_invalid_utf8_names_file_and_line(prefix, language):
    bad, good = b"a\nb\nGr\xf6\xdfe\nd\n", b"a\nb\nc\nd\n"
    write(prefix, *((bad, good) if language == "en" else (good, bad)))
    with pytest.raises(DataError) as error:
        TextFile(("en", "de"), prefix).pairs()
    assert f"{prefix}.{language}, line 3" in str(error.value)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x0b", "\x0c", "\x85", "\x1c", "\r"])
def test_only_a_newline_ends_a_line(prefix, separator):
    write(prefix, f"one{separator}more\ntwo\n", "eins\nzwei\n")
    assert read(prefix) == [(f"one{separator}more", "eins"), ("two", "zwei")]


def test_windows_line_endings_are_stripped(prefix):
    write(prefix, "one\r\ntwo\r\n", "eins\nzwei\n")
    assert read(prefix) == [("one", "eins"), ("two", "zwei")]


def test_a_byte_order_mark_is_skipped(tmp_path, prefix):
    (tmp_path / "text.tsv").write_bytes("\ufeffen\tde\none\teins\n".encode())
    assert read(str(tmp_path / "text.tsv")) == [("one", "eins")]
    (tmp_path / "text.tsv").write_bytes(b"en\tde\n\none\teins\n\n")
    assert read(str(tmp_path / "text.tsv")) == [("one", "eins")]
    write(prefix, "\ufeffone\n", "eins\n")
    assert read(prefix) == [("one", "eins")]


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


def test_unchanged_files_are_read_from_the_cache(prefix, datasets_cache):
    write(prefix, "one\n", "eins\n")
    files = [TextFile(("en", "de"), prefix).pairs().cache_files for _ in range(2)]
    assert files[0] == files[1]
    assert datasets_cache in Path(files[0][0]["filename"]).parents


def test_multi30k_is_read_line_by_line(multi30k):
    sides = [(multi30k / f"val.{language}").read_bytes().decode().split("\n") for language in ("en", "de")]
    assert [side.pop() for side in sides] == ["", ""]
    pairs = read(str(multi30k / "val"))
    assert len(pairs) == 1014
    assert pairs == list(zip(*sides, strict=True))


ROWS = [("one", "eins"), ('say "two"', "zwei\u2028 , bitte"), ("", "drei"), ("vier\\n, 4", "„vier“")]


def save(path: Path, format: str) -> str:
    """Write ROWS with an independent writer and return the path to load."""
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
def test_every_format_yields_the_same_pairs(format, tmp_path):
    assert read(save(tmp_path / "text", format)) == ROWS


def test_a_moses_pair_may_be_compressed(tmp_path):
    for language, side in zip(("en", "de"), zip(*ROWS, strict=True), strict=True):
        (tmp_path / f"text.{language}.gz").write_bytes(gzip.compress("\n".join(side).encode()))
    assert read(str(tmp_path / "text")) == ROWS


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        ("text.en text.eo", ", but there are text.en and text.eo: give their languages as --source_lang and"),
        ("text.fr.gz text.de text.log1 text2.en other.en", ", but there are text.de and text.fr: give"),
        ("text.pt_BR text.cs", ", but there are text.cs and text.pt_BR: give"),
        ("text.eo", None),
        ("text.en text.md5sums", None),
    ],
)
def test_a_pair_in_other_languages_is_named(tmp_path, names, advice):
    for name in names.split():
        (tmp_path / name).write_text("a\n")
    with pytest.raises(DataError, match=r"There is no file .*text\.(en|de); .* stands for") as error:
        read(str(tmp_path / "text"))
    assert advice in str(error.value) if advice else str(error.value).endswith("text.de.")


def test_a_pair_may_be_named_as_opennmt_does(tmp_path):
    sources, targets = ("".join(f"{line}\n" for line in side) for side in zip(*ROWS, strict=True))
    (tmp_path / "src-train.txt").write_text(sources, encoding="utf-8")
    with pytest.raises(DataError, match=r"no file .*tgt-train.txt; .*src-train.txt stands for .*src-.* and .*tgt-"):
        read(str(tmp_path / "src-train.txt"))
    (tmp_path / "tgt-train.txt").write_text(targets, encoding="utf-8")
    assert read(str(tmp_path / "src-train.txt")) == ROWS
    # a prefix may begin like that
    write(str(tmp_path / "src-old"), "one", "eins")
    assert read(str(tmp_path / "src-old")) == [("one", "eins")]


def test_json_and_parquet_may_omit_the_translation_key(tmp_path):
    (tmp_path / "text.jsonl").write_text('{"en": "one", "de": null, "score": 1}\n\n{"de": "b\\ud800", "en": "a"}\n')
    assert read(str(tmp_path / "text.jsonl")) == [("one", ""), ("a", "b?")]
    Dataset.from_dict({"en": ["one"], "fr": ["un"], "de": ["eins"]}).to_parquet(tmp_path / "text.parquet")
    assert read(str(tmp_path / "text.parquet")) == [("one", "eins")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", b'{"en": "a", "de": "b"}\n{"en": "a"\n', "t.jsonl, line 2: not valid JSON"),
        ("t.jsonl", b"[" * 100_000, "t.jsonl, line 1: not valid JSON"),
        ("t.jsonl", b'["a", "b"]\n', "t.jsonl, line 1: not an object"),
        ("t.jsonl", b'{"translation": {"en": "a", "fr": "b"}}\n', "t.jsonl, line 1: no 'de' among the keys (en, fr)"),
        ("t.jsonl", b'{"en": "a", "de": 5}\n', "t.jsonl, line 1: the value of 'de' is not a string"),
        ("t.jsonl", b'{"en": "a", "de": 0}\n', "t.jsonl, line 1: the value of 'de' is not a string"),
        (
            "t.jsonl",
            b'{"en": "a", "de": "b"}\n{"en": false, "de": "b"}\n',
            "line 2: the value of 'en' is not a string",
        ),
        ("t.jsonl", b'{"en": [], "de": "b"}\n', "t.jsonl, line 1: the value of 'en' is not a string"),
        ("t.jsonl", b'{"en": "a", "de": NaN}\n', "t.jsonl, line 1: the value of 'de' is not a string"),
        ("t.jsonl", b'{"en": {"text": "a"}, "de": "b"}\n', "t.jsonl, line 1: the value of 'en' is not a string"),
        ("t.jsonl", b'{"translation": ["a", "b"]}\n', "t.jsonl, line 1: no 'en' among the keys (translation)"),
        ("t.jsonl", b'{"en": ' + b"9" * 5000 + b', "de": "b"}\n', "t.jsonl, line 1: not valid JSON"),
        ("t.jsonl", b'{"en": "a", "de": "b"}\n{"en": "\xff", "de": "b"}\n', "t.jsonl, line 2: not UTF-8"),
        ("t.tsv", b"en\tde\na\tb\nc\n", "t.tsv, line 3: the header has 2 fields, but this line 1"),
        ("t.tsv", b"en\tfr\na\tb\n", "t.tsv has no column 'de'; its columns are en, fr"),
        ("t.tsv", b"en\tde\na\t\xe4\n", "t.tsv, line 2: not UTF-8"),
        ("t.tsv", b"en\tde\n", "t.tsv contains no sentence pairs"),
        ("t.csv", b'en,de\na,b\n"c,d\n', "t.csv, line 3: not valid CSV"),
        ("t.csv", b'en,de\n"c,d\n' + b"a,b\n" * 300_000, "t.csv, line 2: not valid CSV"),
        ("t.csv", b'en,de\n"a\nb",c\n"a\nb",c,d\n', "t.csv, line 4: the header has 2 fields, but this line 3"),
        ("t.csv", b"en,de\na,b,c\n", "t.csv, line 2: the header has 2 fields, but this line 3"),
        ("t.csv", b"en,de\n\xff,b\n", "t.csv, line 2: not UTF-8"),
        ("t.tsv.gz", gzip.compress(b"en\tde\na\tb\n" * 9, mtime=0)[:-9], "t.tsv.gz is truncated or not a .gz file"),
        ("t.tsv.gz", b"en\tde\n", "t.tsv.gz is truncated or not a .gz file"),
        ("t.tsv.zst", b"en\tde\n", "t.tsv.zst is truncated or not a .zst file"),
        ("t.tsv.gz", gzip.compress(b"en\tde\n" + bytes(2**26)), "t.tsv.gz, line 2: longer than 1,048,576 bytes"),
        ("t.parquet", b"PAR1 but no more", "t.parquet cannot be read"),
        ("t.csv", b"", "t.csv is empty"),
    ],
)
def test_a_malformed_file_is_reported_with_file_and_problem(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        TextFile(("en", "de"), str(tmp_path / name)).pairs()
    assert message in str(error.value)


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_a_header_with_a_duplicate_language_is_rejected(tmp_path, ending):
    separator = "," if ending == "csv" else "\t"
    path = tmp_path / f"text.{ending}"
    path.write_text("".join(separator.join(row) + "\n" for row in (["en", "de", "en"], ["a", "b", "c"])))
    with pytest.raises(DataError, match="2 columns 'en'"):
        TextFile(("en", "de"), str(path)).pairs()


def test_a_missing_parquet_file_or_column_is_named(tmp_path):
    with pytest.raises(DataError, match=r"There is no file .*t\.parquet\.$"):
        TextFile(("en", "de"), str(tmp_path / "t.parquet")).pairs()
    Dataset.from_dict({"en": ["a"], "fr": ["b"], "ids": [[1]]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="has no column 'de'; its columns are en, fr, ids"):
        TextFile(("en", "de"), str(tmp_path / "t.parquet")).pairs()
    with pytest.raises(DataError, match=r"t\.parquet, row 1: the value of 'ids' is not a string"):
        TextFile(("en", "ids"), str(tmp_path / "t.parquet")).pairs()


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
@pytest.mark.parametrize("nested", [False, True])
def test_parquet_text_of_any_type_of_string_is_read(kind, nested, tmp_path):
    sides = [["one", "two", None], ["eins", "zwei", "drei"]]
    values = [pa.array(side, pa.string()) for side in sides]
    arrays = [each.dictionary_encode() if pa.types.is_dictionary(kind) else each.cast(kind) for each in values]
    table = {"en": arrays[0], "de": arrays[1], "id": pa.array([1, 2, 3])}
    if nested:
        table = {"translation": pa.StructArray.from_arrays(arrays, ["en", "de"])}
    pq.write_table(pa.table(table), tmp_path / "text.parquet")
    assert read(str(tmp_path / "text.parquet")) == [("one", "eins"), ("two", "zwei"), ("", "drei")]


def test_a_column_of_text_may_be_called_translation(tmp_path):
    pq.write_table(pa.table({"source": ["one", "two"], "translation": ["eins", None]}), tmp_path / "text.parquet")
    pairs = TextFile(("source", "translation"), str(tmp_path / "text.parquet")).pairs()
    assert pairs[:] == {"source": ["one", "two"], "target": ["eins", ""]}


def test_parquet_translations_may_be_a_map(tmp_path):
    kind = pa.map_(pa.string(), pa.string())
    rows = [{"de": "eins", "en": "one"}, None, {"de": "zwei", "en": None}, {"en": "three", "fr": "trois"}]
    table = pa.table({"translation": pa.array([row and [*row.items()] for row in rows], kind)})
    pq.write_table(table.slice(0, 3), tmp_path / "text.parquet")
    assert read(str(tmp_path / "text.parquet")) == [("one", "eins"), ("", ""), ("", "zwei")]
    pq.write_table(table, tmp_path / "text.parquet")
    with pytest.raises(DataError, match=r"text\.parquet, row 4: no 'de' among the keys \(en, fr\)"):
        read(str(tmp_path / "text.parquet"))
    pq.write_table(pa.table({"translation": pa.array([[("en", "a"), ("en", "b")]], kind)}), tmp_path / "twice.parquet")
    with pytest.raises(DataError, match=r"twice\.parquet cannot be read"):
        read(str(tmp_path / "twice.parquet"))


def test_an_empty_parquet_file_is_named(tmp_path):
    path = str(tmp_path / "text.parquet")
    Dataset.from_dict({"en": ["a"], "de": ["b"]}).select([]).to_parquet(path)
    with pytest.raises(DataError, match=r"text.parquet contains no sentence pairs"):
        TextFile(("en", "de"), path).pairs()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("words.json", "`vanilla-transformer import words.json` converts it to Moses files"),
        ("words.xlsx", "`vanilla-transformer import words.xlsx` converts it to Moses files"),
        ("memory.tmx", "`vanilla-transformer import memory.tmx` converts it to Moses files"),
        ("words.TSV", "write the ending of words.TSV in lower case"),
        ("train.en", "give .*/train, the prefix of train.en and its translation"),
        ("train.en.gz", "give .*/train, the prefix of train.en.gz and its translation"),
        ("train.de.zst", "give .*/train, the prefix of train.de.zst and its translation"),
        ("words.docx", "words.docx is not text: save it as a table or plain text"),
    ],
)
def test_a_file_of_another_kind_says_what_to_do_with_it(name, advice, tmp_path):
    (tmp_path / name).write_text("en\tde\n")
    with pytest.raises(DataError, match=advice):
        TextFile(("en", "de"), str(tmp_path / name)).pairs()


SENTENCES = {
    "cp1251": ["Маленькая собака бежит по саду.", "Дети играют в мяч на улице.", "Женщина читает книгу дома."],
    "cp1252": ["Zwei Männer stehen müde am Fluss.", "Die Straße führt über eine Brücke.", "Ein Mädchen hört zu."],
    "utf-16": ["Zwei Männer stehen müde am Fluss.", "\u4e2d\u6587", "Маленькая собака"],
}


def test_a_folder_of_text_says_to_give_a_prefix_in_it(tmp_path):
    (tmp_path / "data").mkdir()
    write(str(tmp_path / "data" / "train"), "one", "eins")
    with pytest.raises(DataError, match=r"data is a folder: give the prefix of two files in it, such as .*data/train"):
        TextFile(("en", "de"), str(tmp_path / "data")).pairs()


@pytest.mark.parametrize("encoding", SENTENCES)
@pytest.mark.parametrize("ending", [".tsv", ".jsonl", ".csv", ".de"])
def test_text_in_another_encoding_says_which(encoding, ending, tmp_path):
    rows = [("A dog runs", sentence) for sentence in SENTENCES[encoding]]
    text = "".join(f"{target}\n" for _, target in rows)
    if ending == ".jsonl":
        text = "".join(json.dumps({"en": en, "de": de}, ensure_ascii=False) + "\n" for en, de in rows)
    elif ending != ".de":
        text = "".join({".tsv": "\t", ".csv": ","}[ending].join(row) + "\n" for row in [("en", "de"), *rows])
    content = text.encode(encoding)
    (tmp_path / f"text{ending}").write_bytes(content)
    (tmp_path / "text.en").write_text("A dog runs\n" * 3)
    with pytest.raises(DataError, match=r"line [12]: not UTF-8 .* but probably [\w-]+; convert it") as error:
        list(TextFile(("en", "de"), str(tmp_path / f"text{ending}".removesuffix(".de"))))
    assert content.decode(str(error.value).split("probably ")[1].split(";")[0]) == text


def test_a_tab_separated_file_with_commas_says_so(tmp_path):
    (tmp_path / "t.tsv").write_text("en,de\na,b\n")
    with pytest.raises(DataError, match=r"t.tsv has no column 'en'; its columns are en,de, perhaps separated by ','"):
        TextFile(("en", "de"), str(tmp_path / "t.tsv")).pairs()


@pytest.mark.parametrize("fault", ["file", "parent", "read-only"])
def test_a_cache_folder_that_cannot_be_used_is_named_with_what_to_do(fault, prefix, tmp_path, monkeypatch):
    write(prefix, "one\n", "eins\n")
    (tmp_path / "taken").touch()
    cache = {"file": "taken", "parent": "taken/cache", "read-only": "/proc/self"}[fault]
    if fault == "read-only" and not Path(cache).is_dir():
        pytest.skip("This system has no folder that is read-only even for root.")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / cache)
    with pytest.raises(OSError, match=rf"The cache folder .*{cache} cannot be used \(.*HF_DATASETS_CACHE"):
        TextFile(("en", "de"), prefix).pairs()
    (tmp_path / "set").mkdir()
    Dataset.from_dict({"en": ["a"], "de": ["b"]}).to_parquet(tmp_path / "set" / "train.parquet")
    with pytest.raises(OSError, match=rf"The cache folder .*{cache} cannot be used"):
        HubDataset(("en", "de"), str(tmp_path / "set")).pairs()


def test_a_table_with_another_separator_says_which(tmp_path):
    (tmp_path / "t.csv").write_text("en;de\na;b\n")
    with pytest.raises(DataError, match=r"t.csv has no column 'en'; its columns are en;de.* separated by ';'"):
        TextFile(("en", "de"), str(tmp_path / "t.csv")).pairs()


def _repeated(kind: str, count: int, text: str) -> pa.Table:
    """Return a table of many rows, all of one text that is stored once."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([text]))
    if kind == "columns":
        return pa.table({"en": texts, "de": texts})
    if kind == "struct":
        return pa.table({"translation": pa.StructArray.from_arrays([texts, texts], ["en", "de"])})
    both = pa.DictionaryArray.from_arrays(pa.array([0] * 2 * count, pa.int32()), pa.array([text]))
    keys = pa.array(["en", "de"] * count)
    return pa.table({"translation": pa.MapArray.from_arrays(range(0, 2 * count + 1, 2), keys, both)})


@pytest.mark.parametrize("kind", ["columns", "struct", "map"])
def test_a_parquet_file_that_repeats_a_text_is_refused_before_it_fills_the_memory(kind, tmp_path):
    file = tmp_path / "bomb.parquet"
    pq.write_table(_repeated(kind, 20_000, "x" * 1_000_000), file, compression="zstd")
    assert file.stat().st_size < 3000
    rows = iter(TextFile(("en", "de"), str(file)))
    # of 2 MB each
    with pytest.raises(DataError, match=r"bomb\.parquet repeats its texts so often that they exceed 134,217,728"):
        deque(islice(rows, 100), maxlen=0)


def test_a_row_whose_map_repeats_a_text_is_refused_before_it_is_written_out(tmp_path):
    keys = ["en", "de", *map(str, range(20_000))]
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * len(keys), pa.int32()), pa.array(["x" * 1_000_000]))
    row = pa.MapArray.from_arrays(pa.array([0, len(keys)], pa.int32()), keys, texts)
    pq.write_table(pa.table({"translation": row}), tmp_path / "bomb.parquet", compression="zstd")
    with pytest.raises(DataError, match=r"bomb\.parquet repeats its texts so often that they exceed 134,217,728"):
        list(TextFile(("en", "de"), str(tmp_path / "bomb.parquet")))


@pytest.mark.parametrize("kind", ["columns", "struct", "map"])
def test_texts_that_a_parquet_file_stores_once_are_read_as_often_as_they_occur(kind, tmp_path):
    file = tmp_path / "repeated.parquet"
    pq.write_table(_repeated(kind, 300, "a dog"), file)
    assert list(TextFile(("en", "de"), str(file))) == [{"source": "a dog", "target": "a dog"}] * 300
