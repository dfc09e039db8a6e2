"""Cutting text in one language into spans, and reading spans that contain unusable lines."""

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer.data.formats import MAX_LINE_BYTES, DataError
from hf_vanilla_transformer.plugins.corpus import spans
from hf_vanilla_transformer.plugins.corpus.spans import cut, find_files, read_span


def read_all(file, lines_per_span: int, language: str = "en") -> list[str]:
    return [sentence for span in cut(str(file), lines_per_span) for sentence in read_span(span, language)[0]]


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(st.sampled_from("ab \r\n\u2028é"), max_size=60),
    step=st.integers(1, 7),
    block=st.integers(1, 9),
    packed=st.booleans(),
)
def test_spans_contain_every_line_once_and_in_order(text, step, block, packed, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / ("lines.txt.gz" if packed else "lines.txt")
    with gzip.open(file, "wb") if packed else file.open("wb") as output:
        output.write(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "_BLOCK", block)
        found = cut(str(file), step)
        sentences = read_all(file, step)
    assert sentences == [line.decode().rstrip("\r\n") for line in io.BytesIO(text.encode())]
    assert [span.lines for span in found[:-1]] == [step] * (len(found) - 1)
    assert [span.first for span in found] == list(range(1, len(sentences) + 1, step))


def test_zstandard_files_are_cut_like_plain_ones(tmp_path):
    lines = [f"line {i}" for i in range(1000)]
    with pa.output_stream(str(tmp_path / "text.zst"), compression="zstd") as output:
        output.write("\n".join(lines).encode())
    assert read_all(tmp_path / "text.zst", 300) == lines


def test_unusable_lines_are_empty_and_named(tmp_path):
    lines = [b"good", b"\xff", b"x" * (3 * MAX_LINE_BYTES), b"good again"]
    (tmp_path / "text").write_bytes(b"\n".join(lines))
    first, second = cut(str(tmp_path / "text"), 2)
    assert read_span(first, "en")[0] == ["good", ""]
    sentences, [problem] = read_span(second, "en")
    assert sentences == ["", "good again"]
    assert problem.startswith(f"{tmp_path / 'text'}, line 3: longer than")


def test_json_lines_may_be_pairs_blank_or_unusable(tmp_path):
    lines = ['{"en": "one"}', "", '{"translation": {"en": "two", "de": "zwei"}}', "{", '{"de": "drei"}', '{"en": 4}']
    (tmp_path / "text.jsonl").write_text("\n".join([*lines, '{"en": null}']))
    [span] = cut(str(tmp_path / "text.jsonl"), 100)
    sentences, problems = read_span(span, "en")
    assert sentences == ["one", "", "two", "", "", "", ""]
    assert [problem.partition(", ")[2].partition(":")[0] for problem in problems] == ["line 4", "line 5", "line 6"]


@pytest.mark.parametrize("nested", [False, True])
def test_parquet_files_are_cut_across_row_groups(nested, tmp_path):
    english = [f"sentence {i}" if i % 5 else None for i in range(20)]
    rows = [{"en": text, "de": "x"} for text in english]
    table = pa.table({"translation": rows}) if nested else pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "text.parquet", row_group_size=6)
    for step in (1, 4, 6, 7, 50):
        assert read_all(tmp_path / "text.parquet", step) == [text or "" for text in english]
    with pytest.raises(DataError, match=r"has no column '(translation\.)?fr'; its columns are"):
        read_all(tmp_path / "text.parquet", 7, "fr")


def test_a_map_and_views_of_strings_are_text_of_parquet_files(tmp_path):
    english = [f"sentence {i}" if i % 5 else None for i in range(20)]
    translations = [{"en": text, "de": "x"} for text in english]
    maps = pa.array([[*row.items()] for row in translations], pa.map_(pa.string(), pa.string()))
    columns = {"map": {"translation": maps}, "view": {"en": pa.array(english, pa.string_view())}}
    for name, table in columns.items():
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet", row_group_size=6)
        for step in (1, 7):
            assert read_all(tmp_path / f"{name}.parquet", step) == [text or "" for text in english]
    with pytest.raises(DataError, match=r"map\.parquet, row 1: no 'fr' among the keys \(en, de\)"):
        read_all(tmp_path / "map.parquet", 7, "fr")


def test_a_file_that_is_damaged_or_has_shrunk_is_an_error(tmp_path):
    packed = gzip.compress(json.dumps(list(range(1000))).encode())
    (tmp_path / "text.gz").write_bytes(packed[:-20])
    with pytest.raises(DataError, match=r"text\.gz is truncated"):
        cut(str(tmp_path / "text.gz"), 10)
    (tmp_path / "text.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"text\.parquet cannot be read"):
        cut(str(tmp_path / "text.parquet"), 10)
    (tmp_path / "text").write_text("one\ntwo\nthree\n")
    [span] = cut(str(tmp_path / "text"), 10)
    (tmp_path / "text").write_text("one\ntwo\n")
    with pytest.raises(DataError, match="has become shorter: it ends before line 3"):
        read_span(span, "en")


def test_patterns_name_files_in_order(tmp_path):
    for name in ("b.txt", "a.txt", "c.tsv", "[odd].txt", "d.JSONL", "e.json", "f.xlsx", "g.CSV.gz"):
        (tmp_path / name).touch()
    names = [file.rpartition("/")[2] for file in find_files([f"{tmp_path}/[odd].txt", f"{tmp_path}/?.txt"])]
    assert names == ["[odd].txt", "a.txt", "b.txt"]
    with pytest.raises(DataError, match=r"There is no file .*\.jsonl"):
        find_files([f"{tmp_path}/*.jsonl"])
    for name in ("c.tsv", "d.JSONL", "e.json", "f.xlsx", "g.CSV.gz"):
        with pytest.raises(DataError, match=f"{name} is not plain text"):
            find_files([f"{tmp_path}/{name}"])
