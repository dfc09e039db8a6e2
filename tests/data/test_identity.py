"""The identity of a file of text: its content and the ending that says how to read it."""

import hashlib
import os

import pytest

from hf_vanilla_transformer.data import formats
from hf_vanilla_transformer.data.formats import identify

SIZES = {"small": formats._LARGE, "large": 1}  # from how many bytes on a file is large


@pytest.fixture(params=SIZES)
def size(request, monkeypatch):
    monkeypatch.setattr(formats, "_LARGE", SIZES[request.param])


def replace(file, content: bytes) -> None:
    """Put another file in the place of one, with the same modification time."""
    time = file.stat().st_mtime_ns
    new = file.with_name("new")
    new.write_bytes(content)
    os.utime(new, ns=(time, time))
    new.replace(file)


@pytest.mark.usefixtures("size")
def test_one_changed_byte_anywhere_in_a_file_changes_its_identity(tmp_path):
    file = tmp_path / "text.en"
    content = bytearray(b"a line\n" * 500_000)
    file.write_bytes(content)
    found = {identify(str(file))}
    for position in (0, len(content) // 2, len(content) - 2):
        changed = bytearray(content)
        changed[position] ^= 1
        replace(file, changed)
        found.add(identify(str(file)))
    assert len(found) == 4


@pytest.mark.usefixtures("size")
def test_names_and_times_do_not_matter(tmp_path):
    file = tmp_path / "text.en"
    file.write_bytes(b"a line\n")
    before = identify(str(file))
    os.utime(file, (1, 1))
    assert identify(str(file)) == before
    assert identify(str(file.rename(tmp_path / "other.sw"))) == before
    assert before == hashlib.blake2b(b"a line\n", digest_size=16).hexdigest()


def test_the_ending_matters_where_it_says_how_to_read_a_file(tmp_path):
    found = set()
    for name in ("text.csv", "text.tsv", "text.jsonl", "text.parquet", "text.en", "text.v2.de", "text"):
        (tmp_path / name).write_bytes(b"en,de\n")
        found.add(identify(str(tmp_path / name)))
    assert len(found) == 5
    (tmp_path / "packed.csv.gz").write_bytes(b"en,de\n")
    assert identify(str(tmp_path / "packed.csv.gz")) == identify(str(tmp_path / "text.csv"))


def test_a_process_reads_a_large_file_only_once_while_it_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_LARGE", 1)
    read = []
    monkeypatch.setattr(formats, "checksum", lambda file: read.append(file) or str(len(read)))
    file = tmp_path / "text.en"
    file.write_bytes(b"a line\n")
    assert [identify(str(file)), identify(str(file))] == ["1", "1"]
    replace(file, b"b line\n")
    assert [identify(str(file)), identify(str(file))] == ["2", "2"]
