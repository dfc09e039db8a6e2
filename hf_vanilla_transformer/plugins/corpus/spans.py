"""Cut text in one language into spans of lines, which can be read independently of each other.

Formats: plain text with one sentence per line, JSON lines, both also compressed as .gz or .zst, and .parquet.
"""

import glob
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ...data.formats import (
    COMPRESSIONS,
    MAX_LINE_BYTES,
    NOT_LINES,
    DataError,
    decode_line,
    ending_of,
    json_object,
    json_texts,
    open_parquet,
    open_text,
    parquet_objects,
)

_BLOCK = 1 << 20
_LINES_CHECKED = 10  # before a job starts


class Span(NamedTuple):
    """Consecutive lines of a file, or consecutive rows of a Parquet file.

    Args:
        file: path of the file.
        offset: where they start: in bytes of the decompressed text, or in rows.
        first: number of the first line, from 1.
        lines: number of lines.
    """

    file: str
    offset: int
    first: int
    lines: int


def find_files(patterns: Iterable[str]) -> list[str]:
    """Return the files that the patterns name, such as "corpus/*.jsonl.zst", with those of one pattern sorted.

    Raises:
        DataError: if a pattern names no file, or one whose format cannot be cut.
    """
    files: list[str] = []
    for pattern in patterns:
        # a file whose name has brackets is that file
        matching = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))
        found = [path for path in matching if Path(path).is_file()]
        if not found:
            raise DataError(f"There is no file {pattern}.")
        files += found
    for file in files:
        if ending_of(file) not in (".jsonl", ".parquet") and ending_of(file).lower() in NOT_LINES:
            raise DataError(f"{file} is not plain text: give plain text, .jsonl or .parquet.")
    return files


def cut(file: str, lines_per_span: int) -> list[Span]:
    """Return the spans of a file, all but the last of `lines_per_span` lines; an empty file has none.

    Raises:
        DataError: if the file is damaged.
        OSError: if it cannot be read.
    """
    if ending_of(file) == ".parquet":
        with open_parquet(file) as parquet:
            lines = parquet.metadata.num_rows
        offsets = list(range(0, lines, lines_per_span))
    else:
        lines, offsets = _line_offsets(file, lines_per_span)
    firsts = range(0, lines, lines_per_span)
    return [
        Span(file, offset, first + 1, min(lines_per_span, lines - first))
        for offset, first in zip(offsets, firsts, strict=True)
    ]


def _line_offsets(file: str, step: int) -> tuple[int, list[int]]:
    """Return the number of lines of a text file, and the offset of every `step`-th line, from the first on."""
    lines = position = last = 0
    offsets = [0]
    with open_text(file) as text:
        while block := text.read(_BLOCK):
            newlines = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            # Newline i of the block ends line number lines + i + 1, from 1.
            offsets += (position + 1 + newlines[-(lines + 1) % step :: step]).tolist()
            lines += len(newlines)
            position += len(block)
            last = block[-1]
    # The last line may lack its newline.
    if position and last != ord("\n"):
        lines += 1
    return lines, offsets[: -(-lines // step)]


def read_span(span: Span, language: str) -> tuple[list[str], list[str]]:
    """Return the sentences of a span, and a message for each line that is not usable; its sentence is then empty.

    Args:
        language: key of the text in JSON lines and Parquet, as `source.TextFile` expects it.

    Raises:
        DataError: if the file has become damaged, or a Parquet file has no such column of text.
    """
    if ending_of(span.file) == ".parquet":
        return _read_parquet(span, language), []
    sentences = []
    problems = []
    as_json = ending_of(span.file) == ".jsonl"
    # in bytes: what precedes an offset is never decoded
    with open_text(span.file) as text:
        _skip(text, span.offset, compressed=span.file.endswith(COMPRESSIONS))
        for number, line in zip(range(span.first, span.first + span.lines), _lines(text), strict=False):
            try:
                sentence = decode_line(line, span.file, number)
                if as_json and sentence.strip():
                    where = f"{span.file}, line {number}"
                    [sentence] = json_texts(where, json_object(where, sentence), (language,))
            except DataError as error:
                sentence = ""
                problems.append(str(error))
            sentences.append(sentence)
    if len(sentences) < span.lines:
        raise DataError(f"{span.file} has become shorter: it ends before line {span.first + span.lines - 1}.")
    return sentences, problems


def check_start(span: Span, language: str) -> None:
    """Check that the first lines of a span have text in a language.

    Raises:
        DataError: as `read_span`, or if none of them is usable.
    """
    sentences, problems = read_span(span._replace(lines=min(span.lines, _LINES_CHECKED)), language)
    if problems and not any(sentences):
        raise DataError(problems[0])


def _skip(text: BinaryIO, offset: int, compressed: bool) -> None:
    # Zstandard streams cannot seek, so that what comes before is decompressed and thrown away.
    if not compressed:
        text.seek(offset)
    while compressed and offset:
        offset -= len(text.read(min(offset, _BLOCK))) or offset


def _lines(text: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, of each at most the first `MAX_LINE_BYTES` + 1 bytes."""
    while line := text.readline(MAX_LINE_BYTES + 1):
        yield line
        # the rest of a line that is too long, which must not count as lines
        while line and len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = text.readline(MAX_LINE_BYTES + 1)


def _read_parquet(span: Span, language: str) -> list[str]:
    """Return the sentences of a span of a Parquet file, of which only the row groups in question are read."""
    with open_parquet(span.file) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    ends = list(accumulate(sizes))
    first = bisect_right(ends, span.offset)
    last = bisect_right(ends, span.offset + span.lines - 1)
    groups = range(len(sizes))[first : last + 1]
    # within the groups that are read
    start = span.offset - sum(sizes[:first])
    rows = islice(parquet_objects(span.file, (language,), groups), start, start + span.lines)
    numbered = enumerate(rows, start=span.first)
    return [json_texts(f"{span.file}, row {number}", row, (language,))[0] for number, row in numbered]
