"""Read parallel text from files, as rows or as a dataset on disk.

Supported formats: Moses pairs, .jsonl, .tsv and .csv, uncompressed or as .gz or .zst; .parquet.
"""

import csv
import gzip
import io
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError

from ..files import checksum

VERSION = checksum(Path(__file__))  # part of the cache keys, so that changed code reads the text again
MAX_LINE_BYTES = 1 << 20
COMPRESSIONS = (".gz", ".zst")
TEXT_PAIR = Features({"source": Value("string"), "target": Value("string")})
Row = dict[str, str]


class DataError(ValueError):
    """Raised for parallel text that cannot be used; the message says what is wrong, where, and what to do."""


def decode_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """Yield the lines of a binary file, without line endings.

    Only a newline ends a line: a stray U+2028 or form feed must not misalign the two sides of parallel text.

    Args:
        name: name of the file, for error messages.

    Raises:
        DataError: if a line is not UTF-8 or is longer than `MAX_LINE_BYTES`.
    """
    for number in itertools.count(1):
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            raise DataError(
                f"{name}, line {number}: longer than {MAX_LINE_BYTES:,} bytes; expected one sentence per line."
            )
        try:
            text = line.rstrip(b"\r\n").decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number}: not UTF-8 ({error.reason} at byte {error.start}); convert it to UTF-8."
            ) from None
        yield text.removeprefix("\ufeff") if number == 1 else text  # skip the byte order mark


def read_lines(path: str) -> Iterator[str]:
    """Yield the lines of a file, uncompressed or compressed, as `decode_lines` does.

    Raises:
        DataError: as `decode_lines`, and if a compressed file is truncated or damaged.
    """
    try:
        with _open(path) as file:
            yield from decode_lines(file, path)
    except (EOFError, OSError, zlib.error) as error:
        if not path.endswith(COMPRESSIONS):
            raise
        raise DataError(
            f"{path} is truncated or not a {Path(path).suffix} file ({error}); download it again."
        ) from None


def _open(path: str) -> BinaryIO:
    """Open a file for reading, decompressing it if its name ends in .gz or .zst."""
    if path.endswith(".gz"):
        return cast(BinaryIO, gzip.open(path))
    return io.BufferedReader(pa.input_stream(path, compression="zstd")) if path.endswith(".zst") else open(path, "rb")


def _moses_rows(files: tuple[str, ...], languages: tuple[str, str]) -> Iterator[Row]:
    """Yield line i of the first file together with line i of the second."""
    source, target = map(read_lines, files)
    number = 0
    for number, source_line in enumerate(source, start=1):
        target_line = next(target, None)
        if target_line is None:
            raise _unequal_lengths(files, number + sum(1 for _ in source), number - 1)
        yield {"source": source_line, "target": target_line}
    rest = sum(1 for _ in target)
    if rest:
        raise _unequal_lengths(files, number, number + rest)


def _unequal_lengths(files: tuple[str, ...], source_lines: int, target_lines: int) -> DataError:
    return DataError(
        f"{files[0]} has {source_lines} lines but {files[1]} has {target_lines}; they must be aligned line by line."
    )


def _json_rows(files: tuple[str, ...], languages: tuple[str, str]) -> Iterator[Row]:
    """Yield the pairs of lines `{"en": ..., "de": ...}`, alone or under the key "translation"; skip blank lines."""
    for number, line in enumerate(read_lines(files[0]), start=1):
        if not line.strip():
            continue
        where = f"{files[0]}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not valid JSON ({error}).") from None
        if isinstance(row, dict) and isinstance(row.get("translation"), dict):
            row = row["translation"]
        if not isinstance(row, dict):
            raise DataError(f'{where}: not an object like {{"translation": {{"en": "...", "de": "..."}}}}.')
        texts = []
        for language in languages:
            if language not in row:
                raise DataError(f"{where}: no {language!r} among the keys ({', '.join(row) or 'none'}).")
            text = row[language] or ""
            if not isinstance(text, str):
                raise DataError(f"{where}: the value of {language!r} is not a string.")
            texts.append(text.encode("utf-8", "replace").decode())  # JSON can escape lone surrogates
        yield dict(zip(("source", "target"), texts, strict=True))


def _table_rows(path: str, rows: Iterator[tuple[int, list[str]]], languages: tuple[str, str]) -> Iterator[Row]:
    """Yield the columns of the two languages from numbered rows, the first of which is the header."""
    _, header = next(rows, (1, []))
    for language in languages:
        if header.count(language) != 1:
            count = f"{header.count(language)} columns" if language in header else "no column"
            raise DataError(f"{path} has {count} {language!r}; its columns are {', '.join(header) or 'none'}.")
    source, target = map(header.index, languages)
    for number, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: {len(row)} fields, but the header has {len(header)}.")
        yield {"source": row[source], "target": row[target]}


def _tsv_rows(files: tuple[str, ...], languages: tuple[str, str]) -> Iterator[Row]:
    """Yield the pairs of tab-separated lines below a header such as `en<TAB>de`. Quotation marks have no meaning."""
    rows = ((number, line.split("\t")) for number, line in enumerate(read_lines(files[0]), start=1))
    return _table_rows(files[0], rows, languages)


def _csv_rows(files: tuple[str, ...], languages: tuple[str, str]) -> Iterator[Row]:
    """Yield the pairs of CSV lines, with the usual quoting, below a header such as `en,de`; skip empty lines."""
    reader = csv.reader((line + "\n" for line in read_lines(files[0])), strict=True)
    try:
        yield from _table_rows(files[0], ((reader.line_num, row) for row in reader if row), languages)
    except csv.Error as error:
        raise DataError(f"{files[0]}, line {reader.line_num}: not valid CSV ({error}).") from None


READERS: dict[str, Callable[[tuple[str, ...], tuple[str, str]], Iterator[Row]]] = {
    ".jsonl": _json_rows,
    ".tsv": _tsv_rows,
    ".csv": _csv_rows,
    "moses": _moses_rows,
}


def check_languages(languages: tuple[str, str]) -> None:
    """Check that source and target language differ.

    Raises:
        DataError: if they are the same.
    """
    if languages[0] == languages[1]:
        raise DataError(f"Source and target language are both {languages[0]!r}; give two, named as in the text.")


def _find_files(path: str, languages: tuple[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the format of parallel text, a key of `READERS` or ".parquet", and its files: two for a Moses pair.

    Raises:
        DataError: if a file is missing or empty, or the languages are the same.
    """
    check_languages(languages)
    format = Path(path[: -len(Path(path).suffix)] if Path(path).suffix in COMPRESSIONS else path).suffix
    if format in READERS or format == ".parquet":
        files: tuple[str, ...] = (path,)
    else:
        format = "moses"
        plain = [f"{path}.{language}" for language in languages]
        files = tuple(
            next((f"{file}{end}" for end in ("", *COMPRESSIONS) if Path(f"{file}{end}").is_file()), file)
            for file in plain
        )
    for file in files:
        if not Path(file).is_file():
            hint = f"; the prefix {path} stands for {' and '.join(plain)}" if format == "moses" else ""
            raise DataError(f"There is no file {file}{hint}.")
        if Path(file).stat().st_size == 0:
            raise DataError(f"{file} is empty.")
    return format, files


def file_stamps(files: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """Return the size in bytes and the modification time in nanoseconds of each file, to detect changes."""
    return tuple((Path(file).stat().st_size, Path(file).stat().st_mtime_ns) for file in files)


def read_rows(path: str, source_lang: str, target_lang: str) -> tuple[Iterator[Row], tuple[str, ...]]:
    """Return an iterator over the pairs of a file or Moses prefix, in constant memory, and the files they come from.

    Raises:
        DataError: as `load_pairs`; the iterator raises it as well.
    """
    languages = (source_lang, target_lang)
    format, files = _find_files(path, languages)
    if format != ".parquet":
        return READERS[format](files, languages), files
    batches = (batch for batch in select_languages(_read_parquet(path), path, languages).iter(1000))
    rows = (
        {"source": source, "target": target}
        for batch in batches
        for source, target in zip(batch["source"], batch["target"], strict=True)
    )
    return rows, files


def _read_rows(
    format: str, files: tuple[str, ...], languages: tuple[str, str], stamps: tuple, version: str
) -> Iterator[Row]:
    """Yield the rows of `files`; `stamps` and `version` only make the cache notice changed files and changed code."""
    empty = True
    for row in READERS[format](files, languages):
        empty = False
        yield row
    if empty:
        raise DataError(f"{files[0]} contains no sentence pairs.")


def select_languages(dataset: Dataset, origin: str, languages: tuple[str, str]) -> Dataset:
    """Return the two languages of a dataset, from its column "translation" or from columns named after them.

    Args:
        origin: where the dataset is from, for error messages.
    """
    check_languages(languages)
    if "translation" in dataset.column_names:
        dataset = dataset.select_columns("translation").flatten()
        dataset = dataset.rename_columns({name: name.removeprefix("translation.") for name in dataset.column_names})
    for language in languages:
        if language not in dataset.column_names:
            raise DataError(f"{origin} has no column {language!r}; its columns are {', '.join(dataset.column_names)}.")
        if getattr(dataset.features[language], "dtype", None) not in ("string", "large_string"):
            raise DataError(f"{origin}: column {language!r} does not contain text.")
    dataset = dataset.select_columns(list(languages))
    return dataset.rename_columns(dict(zip(languages, ("source", "target"), strict=True)))


def _read_parquet(path: str) -> Dataset:
    try:
        if not pq.read_metadata(path).num_rows:
            raise DataError(f"{path} contains no sentence pairs.")
        return Dataset.from_parquet(path)
    except DataError:
        raise
    except ValueError as error:  # raised by pyarrow for a truncated file and by datasets for an empty one
        raise DataError(f"{path} cannot be read: {error}") from None


def load_pairs(path: str, source_lang: str, target_lang: str) -> Dataset:
    """Read parallel text in UTF-8: a .jsonl, .tsv, .csv or .parquet file, or a Moses pair.

    Any other path is the prefix of a Moses pair: `P` stands for P.en and P.de, with one sentence per line. All formats
    but .parquet may also be compressed, with the additional ending .gz or .zst.

    Returns:
        A dataset with the string columns "source" and "target", cached on disk.

    Raises:
        DataError: if a file is missing, empty, not UTF-8 or malformed (the message names the line), lacks a language,
            or the two files of a Moses pair differ in length.
    """
    languages = (source_lang, target_lang)
    format, files = _find_files(path, languages)
    try:
        if format == ".parquet":
            pairs = select_languages(_read_parquet(path), path, languages)
        else:
            arguments: dict[str, Any] = {"format": format, "files": files, "languages": languages}
            arguments |= {"stamps": file_stamps(files), "version": VERSION}
            pairs = Dataset.from_generator(_read_rows, features=TEXT_PAIR, gen_kwargs=arguments)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, DataError):
            raise error.__cause__ from None
        raise DataError(f"{path} cannot be read: {error.__cause__ or error}") from None
    if not len(pairs):
        raise DataError(f"{path} contains no sentence pairs.")
    return pairs
