"""Read a file of another program, in a process of its own: `python -m ...reader_process ARGUMENTS`.

Spreadsheets, translation memories, catalogues and annotations come from anywhere. Whatever a damaged or hostile file
does to its parser happens in this process, whose memory and time are limited; `importing.py` starts it. Each line of
its output is a JSON list: what it is, and its content.

    ["note", "encoding: cp1252"]       for the user
    ["pair", "dog", "mbwa"]            a pair in the two languages
    ["markup"]                         inline tags were removed from a text of the next pair
    ["dropped", "fuzzy"]               why an entry of the file is left out
    ["error", "line 3: not JSON"]      the last line, if the file cannot be used
"""

import gzip
import io
import json
import signal
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...data.foreign_files import (
    ANNOTATIONS,
    CATALOGUES,
    JSON,
    MEMORIES,
    SHEETS,
    TABLES,
    ExchangeError,
    code_pages,
    decode,
    reason,
)
from .tables import Side, json_pairs, sheet_pairs, table_pairs
from .translation_files import Line, annotation_pairs, catalogue_pairs, memory_pairs, well_formed, xliff_pairs

_MAX_BYTES = 1 << 29  # of an unpacked file; larger text is plain text, which `train` reads directly
_BASE_MEMORY = 200 << 20
_QUOTED = 60  # characters of a line


def format_of(path: str) -> str:
    """Return the ending of a file's name that tells its format, in lower case and without .gz."""
    return Path(path.lower().removesuffix(".gz")).suffix


def _unpack(path: str) -> bytes:
    """Return the content of a file, uncompressed or compressed as .gz.

    Raises:
        ExchangeError: if it is larger than `_MAX_BYTES`, or damaged.
    """
    try:
        with gzip.open(path) if path.lower().endswith(".gz") else open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ExchangeError(f"truncated or not a .gz file ({reason(error)}); download it again") from None
    if len(content) > _MAX_BYTES:
        raise ExchangeError(f"larger than {_MAX_BYTES >> 20} MiB; split it")
    return content


def _unpacked_size(content: bytes) -> int:
    """Return the size of a spreadsheet in bytes as its archive states it; one that is no archive (.xls) is not packed.

    An archive that states less than it holds gets too little memory to be read.

    Raises:
        ExchangeError: if it is larger than `_MAX_BYTES`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError):
        return len(content)
    if size > _MAX_BYTES:
        raise ExchangeError(f"larger than {_MAX_BYTES >> 20} MiB when unpacked; split it")
    return size


def _aligned_lines(texts: Sequence[str]) -> Iterator[Line]:
    """Yield the lines of two texts, aligned."""
    source, target = (text.removesuffix("\n").split("\n") for text in texts)
    if len(source) != len(target):
        raise ExchangeError(f"the two files have {len(source):,} and {len(target):,} lines")
    for pair in zip(source, target, strict=True):
        yield ["pair", *pair]


def _example(content: bytes, encoding: str, languages: Sequence[str]) -> str:
    """Return a line of a file, in its encoding and in the next likely one, by which the user sees which is right."""
    others = [page for page in code_pages(languages) if page != encoding and not encoding.startswith("utf")]
    for number, line in enumerate(io.BytesIO(content) if others else (), start=1):
        texts = [line.decode(page, "replace").strip() for page in (encoding, others[0])]
        differences = (place for place, characters in enumerate(zip(*texts, strict=False)) if len(set(characters)) > 1)
        if texts[0] != texts[1]:
            start = max(0, next(differences, 0) - _QUOTED // 2)
            text, different = (text[start : start + _QUOTED] for text in texts)
            return f"; line {number} is {text!r}, and would be {different!r} in {others[0]} (--encoding)"
    return ""


def read(
    paths: Sequence[str], languages: tuple[str, str], columns: Sequence[str], encoding: str | None
) -> Iterator[Line]:
    """Yield the lines of output for a file, or for two that are aligned line by line.

    Args:
        columns: what tells the columns of a table or the tiers of an ELAN file, if it is not the languages.

    Raises:
        ExchangeError: if it cannot be used.
    """
    contents = [_unpack(path) for path in paths]
    content = contents[0]
    kind = format_of(paths[0])
    _limit_memory(_unpacked_size(content) if kind in SHEETS else sum(map(len, contents)))

    sides = [Side(*names) for names in zip(languages, columns or (None, None), strict=True)]
    if len(paths) == 2 or kind in (*TABLES, *JSON):
        texts = []
        for path, content in zip(paths, contents, strict=True):
            text, used = decode(content, encoding, languages)
            # some releases of Python read no table with NUL in it
            texts.append(text.removeprefix("\ufeff").replace("\0", "\ufffd"))
            if used != "utf-8":
                which = f" of {Path(path).name}" if len(paths) == 2 else ""
                example = "" if encoding else _example(content, used, languages)
                yield ["note", f"encoding{which}: {used}{example}"]
        if len(paths) == 2:
            yield from _aligned_lines(texts)
        elif kind in TABLES:
            yield from table_pairs(texts[0], sides)
        else:
            yield from json_pairs(texts[0], kind == ".jsonl", sides)
    elif kind in SHEETS:
        yield from sheet_pairs(content, sides)
    elif kind in CATALOGUES:
        yield from catalogue_pairs(content, encoding, languages)
    else:
        content, notes = well_formed(content, languages)
        yield from notes
        if kind in ANNOTATIONS:
            yield from annotation_pairs(content, columns or languages)
        elif kind in MEMORIES:
            yield from memory_pairs(content, languages)
        else:
            yield from xliff_pairs(content, languages)


def _limit_memory(size: int) -> None:
    """Limit the memory of this process to ten times the unpacked size of the file, and its time as well."""
    try:
        import resource
    except ImportError:  # on Windows
        return
    seconds = 20 + (size >> 17)
    for limit, value in ((resource.RLIMIT_DATA, _BASE_MEMORY + 10 * size), (resource.RLIMIT_CPU, seconds)):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
    # a parser that runs out of memory may wait for a lock indefinitely, and use no time of the processor
    signal.alarm(2 * seconds)


def lines(
    paths: Sequence[str], languages: tuple[str, str], columns: Sequence[str], encoding: str | None
) -> Iterator[Line]:
    """Yield the lines of output as `read` does, and an error as the last one."""
    try:
        yield from read(paths, languages, columns, encoding)
        return
    except (ExchangeError, ImportError) as error:
        problem = str(error)
    except MemoryError:
        problem = "needs too much memory: it is damaged or must be split"
    except Exception as error:
        # a damaged file makes each parser raise errors of its own, of any class
        problem = f"damaged or not {format_of(paths[0])} ({reason(error)})"
    yield ["error", problem]


def main() -> None:
    """Write the lines of the file that the arguments name."""
    for line in lines(**json.loads(sys.argv[1])):
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
