"""Damage files that `import` reads, and check what becomes of them."""

import contextlib
import gzip
import io
import json
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

from import_files import WRITERS

from hf_vanilla_transformer.data.foreign_files import SHEETS
from hf_vanilla_transformer.data.formats import DataError
from hf_vanilla_transformer.plugins.importing import importing, reader_process
from hf_vanilla_transformer.plugins.importing.importing import Import

PAIRS = [(f"the dog {i} runs", f"der Hund {i} läuft") for i in range(6)]
Edit = tuple[int, int, bytes]  # a place, the number of bytes to remove there, and those to insert


def _content(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        WRITERS[name](Path(folder, name), PAIRS)
        return Path(folder, name).read_bytes()


FILES = {name: _content(name) for name in WRITERS}


def damaged(content: bytes, edits: Iterable[Edit], member: int = 0) -> bytes:
    """Return a file after some edits, inside its compression if it has one.

    Args:
        member: of an archive, which of its files is edited; 0 is the archive itself.
    """
    if content.startswith(b"\x1f\x8b"):
        return gzip.compress(damaged(gzip.decompress(content), edits, member), 1)
    if member and zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        name = sorted(files)[member % len(files)]
        files[name] = damaged(files[name], edits)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for name, inner in files.items():
                archive.writestr(name, inner)
        return packed.getvalue()
    for place, removed, inserted in edits:
        place %= len(content) + 1
        content = content[:place] + inserted + content[place + removed :]
    return content


def _lines(paths: list[str], job: Import) -> Iterator[list]:
    """Yield what the process that reads a file writes, without starting it."""
    try:
        for line in reader_process.lines(paths, job.languages, job.columns, job.encoding):
            yield json.loads(json.dumps(line))
    except BaseException as error:
        # a panic of Rust ends the process of a reader
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{paths[0]}: cannot be read.") from None


@contextlib.contextmanager
def _in_this_process() -> Iterator[None]:
    """Read files in this process, which is faster, without the limits of a reader's process."""
    with mock.patch.object(importing, "_lines", _lines), mock.patch.object(reader_process, "_limit_memory"):
        yield


def check_import(path: Path, content: bytes) -> None:
    """Check that a file is pairs of single lines, or one line of error that names it, and not much longer than it."""
    path.write_bytes(content)
    job = Import(("en", "de"))
    size = 0
    message = str(path)
    # a few damaged bytes make a spreadsheet of gigabytes, for which there are the limits
    with contextlib.nullcontext() if reader_process.format_of(str(path)) in SHEETS else _in_this_process():
        try:
            for pair in job.pairs([str(path)]):
                assert all(len(text.splitlines()) == 1 for text in pair), pair
                size += len("".join(pair).encode("utf-8"))
        except DataError as error:
            message = str(error)
    assert str(path) in message
    assert len(message.splitlines()) == 1
    assert len(message) < 1000
    assert size <= 1000 * max(len(content), 1)
