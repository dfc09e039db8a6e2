"""Read parallel text from files or the Hub, as rows or as a data set on disk.

Text comes as a Moses pair, .jsonl, .tsv or .csv, plain, .gz or .zst, as .parquet, or as a data set of the Hub.
"""

import csv
import gzip
import io
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

from ..files import checksum

if TYPE_CHECKING:
    pass

VERSION = checksum(Path(__file__))  # part of the cache keys, so that a changed reader reads again
MAX_LINE_BYTES = 1 << 20
COMPRESSIONS = (".gz", ".zst")
TEXT_PAIR = Features({"source": Value("string"), "target": Value("string")})
Row = dict[str, str]


class DataError(ValueError):
    """Parallel text that cannot be used; the message says what is wrong, where, and what to do."""


def decode_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """Yield the lines of a binary file without their ends.

    Only a newline ends one: a stray U+2028 or form feed must not shift the two sides of parallel text apart.

    Args:
        name: of the file, for errors.

    Raises:
        DataError: for a line that is not UTF-8, or longer than `MAX_LINE_BYTES`.
    """
    for number in itertools.count(1):
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            raise DataError(f"{name}, line {number}: longer than {MAX_LINE_BYTES:,} bytes; that is no sentence.")
        try:
            text = line.rstrip(b"\r\n").decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number}: not UTF-8 ({error.reason} at byte {error.start}); convert the text."
            ) from None
        yield text.removeprefix("\ufeff") if number == 1 else text  # Windows' mark of UTF-8 is no text


def read_lines(path: str) -> Iterator[str]:
    """Yield the lines of a file, plain or compressed, as `decode_lines` does."""
    try:
        with _open(path) as file:
            yield from decode_lines(file, path)
    except (EOFError, OSError, zlib.error) as error:
        if not path.endswith(COMPRESSIONS):
            raise
        raise DataError(f"{path} is not a whole compressed file ({error}); fetch it again.") from None


def _open(path: str) -> Any:
    """The bytes of a file, plain or compressed."""
    if path.endswith(".gz"):
        return gzip.open(path)
    return io.BufferedReader(pa.input_stream(path, compression="zstd")) if path.endswith(".zst") else open(path, "rb")


def _moses_rows(files: tuple[str, ...], languages: tuple[str, str]) -> Iterator[Row]:
    """Line i of the first file with line i of the second."""
    source, target = map(read_lines, files)
    number = 0
    for number, left in enumerate(source, start=1):
        right = next(target, None)
        if right is None:
            longer = number + sum(1 for _ in source)
            raise DataError(f"{files[0]} has {longer} lines but {files[1]} has {number - 1}; they must pair up.")
        yield {"source": left, "target": right}
    rest = sum(1 for _ in target)
    if rest:
        raise DataError(f"{files[0]} has {number} lines but {files[1]} has {number + rest}; they must pair up.")


def _json_rows(files: tuple[str, ...], languages: tuple[str, str]) -> Iterator[Row]:
    """Lines `{"translation": {"en": ..., "de": ...}}`, or the inner object alone; blank lines are passed over."""
    for number, line in enumerate(read_lines(files[0]), start=1):
        if not line.strip():
            continue
        where = f"{files[0]}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON ({error}).") from None
        if isinstance(row, dict) and isinstance(row.get("translation"), dict):
            row = row["translation"]
        if not isinstance(row, dict):
            raise DataError(f'{where}: not an object like {{"translation": {{"en": "...", "de": "..."}}}}.')
        texts = []
        for language in languages:
            if language not in row:
                raise DataError(f"{where}: no {language!r}; it has {', '.join(row) or 'nothing'}.")
            text = row[language] or ""
            if not isinstance(text, str):
                raise DataError(f"{where}: {language!r} is not text.")
            texts.append(text.encode("utf-8", "replace").decode())  # JSON can spell halves of characters
        yield dict(zip(("source", "target"), texts, strict=True))


def _table_rows(path: str, rows: Iterator[tuple[int, list[str]]], languages: tuple[str, str]) -> Iterator[Row]:
    """The two languages' columns of numbered rows, the first of which is the header."""
    _, header = next(rows, (1, []))
    for language in languages:
        if header.count(language) != 1:
            count = f"{header.count(language)} columns" if language in header else "no column"
            raise DataError(f"{path} has {count} {language!r}; its header has {', '.join(header) or 'nothing'}.")
    source, target = map(header.index, languages)
    for number, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: {len(row)} fields, but the header has {len(header)}.")
        yield {"source": row[source], "target": row[target]}


def _tsv_rows(files: tuple[str, ...], languages: tuple[str, str]) -> Iterator[Row]:
    """Tab-separated lines under a header such as `en<TAB>de`. A quotation mark is text like any other."""
    rows = ((number, line.split("\t")) for number, line in enumerate(read_lines(files[0]), start=1))
    return _table_rows(files[0], rows, languages)


def _csv_rows(files: tuple[str, ...], languages: tuple[str, str]) -> Iterator[Row]:
    """Comma-separated lines under a header such as `en,de`, with the usual quoting; empty lines are passed over."""
    reader = csv.reader((line + "\n" for line in read_lines(files[0])), strict=True)
    try:
        yield from _table_rows(files[0], ((reader.line_num, row) for row in reader if row), languages)
    except csv.Error as error:
        raise DataError(f"{files[0]}, line {reader.line_num}: not CSV ({error}).") from None


READERS: dict[str, Callable[[tuple[str, ...], tuple[str, str]], Iterator[Row]]] = {
    ".jsonl": _json_rows,
    ".tsv": _tsv_rows,
    ".csv": _csv_rows,
    "moses": _moses_rows,
}


def check_languages(languages: tuple[str, str]) -> None:
    """See that source and target are two languages.

    Raises:
        DataError: if they are one.
    """
    if languages[0] == languages[1]:
        raise DataError(f"Source and target language are both {languages[0]!r}: give two as the text names them.")


def _files_of(path: str, languages: tuple[str, str]) -> tuple[str, tuple[str, ...]]:
    """The format of parallel text and its files, the prefix of a Moses pair being two.

    Raises:
        DataError: if one is missing or empty, or the languages are one.
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
            hint = "" if format != "moses" else f"; a prefix {path} needs one ending in each language"
            raise DataError(f"There is no file {file}{hint}.")
        if Path(file).stat().st_size == 0:
            raise DataError(f"{file} is empty.")
    return format, files


def stamps_of(files: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """Size and time of each file, which tell whether it has changed."""
    return tuple((Path(file).stat().st_size, Path(file).stat().st_mtime_ns) for file in files)


def read_rows(path: str, source_lang: str, target_lang: str) -> tuple[Iterator[Row], tuple[str, ...]]:
    """The pairs of a file or Moses prefix one by one, in constant memory, and the files they come from.

    Raises:
        DataError: as `load_pairs` does, while reading as well.
    """
    languages = (source_lang, target_lang)
    format, files = _files_of(path, languages)
    if format != ".parquet":
        return READERS[format](files, languages), files
    batches = (batch for batch in _columns(_read_parquet(path), path, languages).iter(1000))
    rows = (
        {"source": source, "target": target}
        for batch in batches
        for source, target in zip(batch["source"], batch["target"], strict=True)
    )
    return rows, files


def _read_rows(
    format: str, files: tuple[str, ...], languages: tuple[str, str], stamps: tuple, version: str
) -> Iterator[Row]:
    """`stamps` and `version` only make the cache notice changed files and changed readers."""
    empty = True
    for row in READERS[format](files, languages):
        empty = False
        yield row
    if empty:
        raise DataError(f"{files[0]} has no pair of sentences.")


def _columns(dataset: Dataset, origin: str, languages: tuple[str, str]) -> Dataset:
    """The two languages of a data set, from its column "translation" or from columns of their names."""
    check_languages(languages)
    if "translation" in dataset.column_names:
        dataset = dataset.select_columns("translation").flatten()
        dataset = dataset.rename_columns({name: name.removeprefix("translation.") for name in dataset.column_names})
    for language in languages:
        if language not in dataset.column_names:
            raise DataError(f"{origin} has no {language!r}; it has {', '.join(dataset.column_names)}.")
        if getattr(dataset.features[language], "dtype", None) not in ("string", "large_string"):
            raise DataError(f"{origin}: {language!r} is not text.")
    dataset = dataset.select_columns(list(languages))
    return dataset.rename_columns(dict(zip(languages, ("source", "target"), strict=True)))


def _read_parquet(path: str) -> Dataset:
    try:
        if not pq.read_metadata(path).num_rows:
            raise DataError(f"{path} has no pair of sentences.")
        return Dataset.from_parquet(path)
    except DataError:
        raise
    except ValueError as error:  # what pyarrow and datasets raise for a torn and for an empty file
        raise DataError(f"{path} cannot be read: {error}") from None


def load_pairs(path: str, source_lang: str, target_lang: str) -> Dataset:
    """Reads parallel text, UTF-8: a .jsonl, .tsv, .csv or .parquet file, or else the Moses pair of this prefix.

    The prefix P means P.en and P.de, one sentence a line. All but .parquet may end in .gz or .zst as well.

    Returns:
        A data set with the string columns "source" and "target", cached on disk.

    Raises:
        DataError: if a file is missing, empty, not UTF-8 or not of its format (with the line), has no such language,
            or the two of a pair differ in length.
    """
    languages = (source_lang, target_lang)
    format, files = _files_of(path, languages)
    try:
        if format == ".parquet":
            pairs = _columns(_read_parquet(path), path, languages)
        else:
            settings = {"format": format, "files": files, "languages": languages, "stamps": stamps_of(files)}
            settings["version"] = VERSION
            pairs = Dataset.from_generator(_read_rows, features=TEXT_PAIR, gen_kwargs=settings)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, DataError):
            raise error.__cause__ from None
        raise DataError(f"{path} cannot be read: {error.__cause__ or error}") from None
    if not len(pairs):
        raise DataError(f"{path} has no pair of sentences.")
    return pairs


def load_hub_pairs(
    name: str, config_name: str | None, source_lang: str, target_lang: str, splits: tuple[str, ...]
) -> dict[str, Dataset]:
    """Reads a data set of the Hub, or a folder of one, such as ("wmt/wmt14", "de-en").

    Returns:
        Those of `splits` that it has, each with the string columns "source" and "target".

    Raises:
        DataError: if it has none of the splits, not these languages, or needs a program of its own to be read.
    """
    origin = f"{name} ({config_name})" if config_name else name
    try:
        dataset = load_dataset(name, config_name)
    except (RuntimeError, DatasetGenerationError) as error:
        raise DataError(f"The data set {origin} cannot be read: {error.__cause__ or error}") from None
    found = {
        split: _columns(dataset[split], f"{origin}, {split},", (source_lang, target_lang))
        for split in splits
        if split in dataset
    }
    if not found:
        raise DataError(f"{origin} has no split {' or '.join(splits)}; it has {', '.join(dataset)}.")
    return found


class HubRows:
    """The train split of a data set on the Hub, streamed."""

    def __init__(self, name: str, config_name: str | None, languages: tuple[str, str]):
        self.rows, self.languages = load_dataset(name, config_name, split="train", streaming=True), languages
        if Path(name).is_dir():  # identified by its name and content, not by its path
            files = sorted(str(file) for file in Path(name).rglob("*") if file.is_file())
            self.origin: list[Any] = [Path(name).resolve().name, config_name, *stamps_of(files)]
        else:
            self.origin = [name, config_name]

    def __iter__(self) -> Iterator[Row]:
        for row in self.rows:
            texts = row.get("translation", row)
            yield {
                side: texts[language] or ""
                for side, language in zip(("source", "target"), self.languages, strict=True)
            }
