"""Find the files of parallel text and read them row by row.

Formats: pairs named as for Moses or OpenNMT, .jsonl, .tsv and .csv, uncompressed or as .gz or .zst; .parquet; and the
folders of JSON lines that `translate --output_dir` writes.
"""

import csv
import io
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import UserError
from ..files import CORPUS_MANIFEST, JsonObject, checksum, inside, read_json
from .foreign_files import FORMATS, SEPARATORS, ExchangeError, decode
from .languages import base_code

# Without a limit, a binary file given by mistake would be read into memory as one line.
MAX_LINE_BYTES = 1 << 20
_MAX_EXPANSION = 1000  # how many times as large as its file a text may be; usual compression saves 5 to 50 times
_MIN_EXPANDED = 1 << 27  # bytes of a text that may be any number of times as large as its file
_BYTES_READ = 1 << 26  # of expanded text at a time
_TRANSLATE_AGAIN = "translate again into a new folder"
_DIRECTED_KEYS = ("source", "target", "source_lang", "target_lang")
COMPRESSIONS = (".gz", ".zst")
# Reading so many bytes takes longer than a tick of the clock of a file system, so that a later write changes the state
_LARGE = 1 << 26
# Suffixes of files that are not lines of plain text; in lower case, since others are not recognised as formats.
NOT_LINES = {*FORMATS, ".parquet"} - {".txt"}
Row = dict[str, str]


class DataError(UserError):
    """Raised for parallel text that cannot be used; the message says what is wrong, where, and what to do."""


def decode_lines(file: BinaryIO, name: str) -> Iterator[str]:
    """Yield the lines of a binary file, without line endings.

    Only a newline ends a line: a stray U+2028 or form feed must not misalign the two sides of parallel text.

    Args:
        name: name of the file, for error messages.

    Raises:
        DataError: if a line is not UTF-8 or is longer than `MAX_LINE_BYTES`.
    """
    # One byte more than allowed tells a line that is too long from one of the maximum length.
    for number, line in enumerate(iter(partial(file.readline, MAX_LINE_BYTES + 1), b""), start=1):
        yield decode_line(line, name, number)


def decode_line(line: bytes, name: str, number: int) -> str:
    """Return a line, of which at most `MAX_LINE_BYTES` + 1 bytes were read, as text without its ending.

    Raises:
        DataError: as `decode_lines`.
    """
    if len(line) > MAX_LINE_BYTES:
        problem = f"longer than {MAX_LINE_BYTES:,} bytes; expected one sentence per line"
        raise DataError(f"{name}, line {number}: {problem}.")
    try:
        text = line.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        advice = "convert it to UTF-8, as `vanilla-transformer import` does"
        problem = f"not UTF-8 ({error.reason} at byte {error.start}){_other_encoding(name)}; {advice}"
        raise DataError(f"{name}, line {number}: {problem}.") from None
    # Only the first line can have a byte order mark; later on, U+FEFF is a character of the text.
    return text.removeprefix("\ufeff") if number == 1 else text


@lru_cache
def _other_encoding(path: str) -> str:
    """Return the likely encoding of a file that is not UTF-8, for error messages, or "" if none is recognised."""
    # of a Moses pair; a table may have any languages
    languages = () if ending_of(path) in READERS else (ending_of(path).removeprefix("."),)
    with suppress(ExchangeError, ImportError, OSError), open_text(path) as file:
        _, encoding = decode(file.read(1 << 18), None, languages)
        if encoding != "utf-8":
            return f" but probably {encoding}"
    return ""


def read_lines(path: str) -> Iterator[str]:
    """Yield the lines of a file, uncompressed or compressed, as `decode_lines` does.

    Raises:
        DataError: as `decode_lines`, and if a compressed file is truncated or damaged.
    """
    with open_text(path) as file:
        yield from decode_lines(file, path)


def ending_of(path: str) -> str:
    """Return the ending of a file's name, before that of a compression if it has one."""
    return Path(path.removesuffix(Path(path).suffix) if path.endswith(COMPRESSIONS) else path).suffix


@contextmanager
def open_text(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressing it if its name ends in .gz or .zst.

    Raises:
        DataError: if a compressed file turns out to be truncated or damaged.
    """
    if not path.endswith(COMPRESSIONS):
        with open(path, "rb") as file:
            yield file
        return
    try:
        # pyarrow knows the compression by the ending; its streams have no `readline`, which the buffer adds.
        with io.BufferedReader(pa.input_stream(path)) as file:
            yield file
    except OSError as error:
        # An error of the operating system has a number, and is not about what the file contains.
        if error.errno is not None:
            raise
        problem = f"is truncated or not a {Path(path).suffix} file ({error})"
        raise DataError(f"{path} {problem}; download it again.") from None


def _moses_rows(files: tuple[str, ...], languages: tuple[str, ...]) -> Iterator[Row]:
    """Yield line i of the first file together with line i of the second."""
    for source, target in itertools.zip_longest(*map(read_lines, files)):
        if source is None or target is None:
            # Both are read again from the start: counting on would need the state of both iterators.
            counts = [sum(1 for _ in read_lines(file)) for file in files]
            difference = f"{files[0]} has {counts[0]} lines but {files[1]} has {counts[1]}"
            raise DataError(f"{difference}; they must be aligned line by line.")
        yield {"source": source, "target": target}


def _json_rows(files: tuple[str, ...], languages: tuple[str, ...]) -> Iterator[Row]:
    """Yield the pairs of lines `{"en": ..., "de": ...}`, alone or under the key "translation"; skip blank lines."""
    for file in files:
        for where, row in _json_objects(file):
            yield dict(zip(("source", "target"), json_texts(where, row, languages), strict=True))


def _directed_json_rows(files: tuple[str, ...], languages: tuple[str, ...]) -> Iterator[Row]:
    """Yield the pairs of lines `{"source": ..., "target": ..., "source_lang": ..., "target_lang": ...}`.

    Args:
        languages: the directions that are expected, such as "en-de".
    """
    for where, row in _json_objects(files[0]):
        # All directions are read at once and cached together: each one then selects its rows.
        texts = dict(zip(_DIRECTED_KEYS, json_texts(where, row, _DIRECTED_KEYS), strict=True))
        direction = f"{texts['source_lang']}-{texts['target_lang']}"
        if direction not in languages:
            raise DataError(f"{where}: the direction {direction} is not among --language_pairs {' '.join(languages)}.")
        yield texts


def names_languages(path: str) -> bool:
    """Return whether a file is JSON lines whose first object names its languages, for `_directed_json_rows`."""
    if ending_of(path) != ".jsonl" or not Path(path).is_file():
        return False
    _, row = next(_json_objects(path), ("", {}))
    return "source_lang" in row and "target_lang" in row


def _json_objects(path: str) -> Iterator[tuple[str, dict]]:
    """Yield the file and line of each object, and the object; skip blank lines."""
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, json_object(where, line)


def json_object(where: str, line: str) -> dict:
    """Return the object in a line of JSON.

    Args:
        where: file and line, for error messages.

    Raises:
        DataError: if it is not an object.
    """
    try:
        row = json.loads(line)
    # A line of thousands of brackets exceeds the depth of recursion.
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error}).") from None
    if not isinstance(row, dict):
        raise DataError(f'{where}: not an object like {{"translation": {{"en": "...", "de": "..."}}}}.')
    return row


def json_texts(where: str, row: dict, keys: tuple[str, ...]) -> list[str]:
    """Return the texts under `keys` in an object, or in the object under its key "translation".

    Args:
        where: file and line, for error messages.

    Raises:
        DataError: if a key is missing, or its value is not a string.
    """
    inner = row.get("translation", row)
    # as for the texts below
    if inner is None and not any(key in row for key in keys):
        return [""] * len(keys)
    if isinstance(inner, dict):
        row = inner
    texts = []
    for key in keys:
        if key not in row:
            raise DataError(f"{where}: no {key!r} among the keys ({', '.join(row) or 'none'}).")
        # null is an empty text, whose pair is dropped and counted; 0, false and [] are mistakes.
        text = "" if row[key] is None else row[key]
        if not isinstance(text, str):
            raise DataError(f"{where}: the value of {key!r} is not a string.")
        # JSON can escape lone surrogates, which no tokenizer and no file accepts.
        texts.append(text.encode("utf-8", "replace").decode())
    return texts


def open_parquet(path: str, content: BinaryIO | None = None) -> pq.ParquetFile:
    """Open a Parquet file. Equal texts that it stores once are one text in memory as well, until they are used.

    Args:
        path: its name.
        content: the file, if it is open already.

    Raises:
        DataError: if it is none.
    """
    try:
        schema = pq.read_metadata(content or path).schema
        columns = [schema.column(i) for i in range(len(schema.names))]
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        return pq.ParquetFile(content or path, read_dictionary=texts)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def parquet_objects(path: str, languages: tuple[str, ...], groups: Sequence[int] | None = None) -> Iterator[dict]:
    """Yield the rows of a Parquet file as the objects that `json_texts` takes, of which only the languages are read.

    Args:
        groups: the row groups to read; by default all.

    Raises:
        DataError: if a column is missing, or the file is damaged, or expands to far more text than its size.
    """
    with open_parquet(path) as file:
        columns = {column.name: column.type for column in file.schema_arrow}
        wanted = list(languages)
        batch_size = 1 << 16
        nested = columns.get("translation", pa.null())
        if pa.types.is_map(nested):
            # its keys are in the rows, and its texts are expanded for all rows of a batch at once
            wanted = ["translation"]
            batch_size = 64
        elif pa.types.is_struct(nested):
            columns = {f"translation.{part.name}": part.type for part in nested}
            wanted = [f"translation.{language}" for language in languages]
        for column in wanted:
            if column not in columns:
                raise DataError(f"{path} has no column {column!r}; its columns are {', '.join(columns)}.")
        try:
            numbers = range(file.num_row_groups) if groups is None else groups
            # one at a time, as Arrow joins no nested columns of several
            batches = (batch for number in numbers for batch in file.iter_batches(batch_size, [number], wanted))
            for batch in _expanded(batches, path, Path(path).stat().st_size):
                yield from batch.to_pylist(maps_as_pydicts="strict")
        except (pa.ArrowException, OSError, KeyError) as error:
            # KeyError: a map with a key twice
            raise DataError(f"{path} cannot be read: {error}") from None


def parquet_batches(path: str, content: BinaryIO, groups: Sequence[int] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield all columns of a Parquet file in batches of bounded size.

    Args:
        path: its name.
        content: the file, which may be on the Hub.
        groups: the row groups to read; by default all.

    Raises:
        DataError: if it cannot be read, or expands to far more text than its size.
    """
    with open_parquet(path, content) as file:
        try:
            numbers = range(file.num_row_groups) if groups is None else groups
            batches = (batch for number in numbers for batch in file.iter_batches(64, [number]))
            yield from _expanded(batches, path, content.seek(0, io.SEEK_END))
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read: {error}") from None


def _expanded(batches: Iterable[pa.RecordBatch], path: str, size: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in batches of bounded size, in which equal texts are repeated.

    Args:
        size: of the file, in bytes.

    Raises:
        DataError: if they are more text than a file of this size has.
    """
    most = max(_MIN_EXPANDED, _MAX_EXPANSION * size)
    largest = max(_MIN_EXPANDED, size)
    total = 0
    for batch in batches:
        plain = pa.schema([field.with_type(_without_dictionary(field.type)) for field in batch.schema])
        for part in _parts(batch):
            length = _expanded_bytes(part)
            total += length
            if total > most:
                problem = f"repeats its texts so often that they exceed {most:,} bytes"
                raise DataError(f"{path} {problem}; remove the repetitions.")
            # one row cannot be divided
            if length > largest:
                raise DataError(f"{path} has a row with more than {largest:,} bytes; divide or remove it.")
            yield part.cast(plain)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in parts of bounded size."""
    if batch.num_rows == 1 or _expanded_bytes(batch) <= _BYTES_READ:
        yield batch
    else:
        middle = batch.num_rows // 2
        yield from _parts(batch.slice(0, middle))
        yield from _parts(batch.slice(middle))


def _expanded_bytes(column: pa.Array | pa.RecordBatch) -> int:
    """Return the number of bytes of a column or a batch in which equal texts are repeated."""
    if isinstance(column, pa.RecordBatch):
        return sum(map(_expanded_bytes, column.columns))
    if pa.types.is_struct(column.type):
        return sum(map(_expanded_bytes, column.flatten()))
    if pa.types.is_map(column.type):
        sides = (pa.ListArray.from_arrays(column.offsets, side) for side in (column.keys, column.items))
        return sum(map(_expanded_bytes, sides))
    if pa.types.is_nested(column.type):
        # a list
        return _expanded_bytes(column.flatten())
    if pa.types.is_dictionary(column.type):
        return pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    return column.nbytes


def _without_dictionary(type: pa.DataType) -> pa.DataType:
    """Return the type of a column in which every text is written out."""
    if pa.types.is_dictionary(type):
        return type.value_type
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(_without_dictionary(field.type)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(_without_dictionary(type.key_type), _without_dictionary(type.item_type))
    if pa.types.is_list(type):
        return pa.list_(_without_dictionary(type.value_type))
    return type


def _parquet_rows(files: tuple[str, ...], languages: tuple[str, ...]) -> Iterator[Row]:
    """Yield the pairs of a Parquet file: columns named after the languages, or a struct or map "translation"."""
    for number, row in enumerate(parquet_objects(files[0], languages), start=1):
        source, target = json_texts(f"{files[0]}, row {number}", row, languages)
        yield {"source": source, "target": target}


def _table_rows(files: tuple[str, ...], languages: tuple[str, ...]) -> Iterator[Row]:
    """Yield the pairs of a table below a header such as `en,de`; skip empty lines.

    A .csv file has commas and the usual quoting; in a .tsv file, quotation marks have no meaning.
    """
    path = files[0]
    numbered = enumerate(read_lines(path), start=1)
    rows = _csv_records(path) if ending_of(path) == ".csv" else ((i, line.split("\t")) for i, line in numbered if line)
    _, header = next(rows, (1, []))
    for language in languages:
        if header.count(language) != 1:
            count = f"{header.count(language)} columns" if language in header else "no column"
            names = ", ".join(header) or "none"
            separators = [mark for mark in SEPARATORS if mark in names]
            if len(header) == 1 and separators:
                names += f", perhaps separated by {separators[0]!r}: `vanilla-transformer import` reads such a table"
            raise DataError(f"{path} has {count} {language!r}; its columns are {names}.")
    source, target = map(header.index, languages)
    for number, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: the header has {len(header)} fields, but this line {len(row)}.")
        yield {"source": row[source], "target": row[target]}


def _csv_records(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the records of a CSV file that are not empty, each with the number of its first line."""
    # The module's own limit, 128 KiB, is below that of a line.
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    # A quoted field may contain line breaks, so a record can have several lines.
    number = 1
    try:
        for record in reader:
            if record:
                yield number, record
            number = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {number}: not valid CSV ({error}); a quotation mark may be missing.") from None


READERS: dict[str, Callable[[tuple[str, ...], tuple[str, ...]], Iterator[Row]]] = {
    ".jsonl": _json_rows,
    "directed .jsonl": _directed_json_rows,
    ".tsv": _table_rows,
    ".csv": _table_rows,
    ".parquet": _parquet_rows,
    "moses": _moses_rows,
}


def check_languages(languages: tuple[str, str]) -> None:
    """Check that source and target language differ.

    Raises:
        DataError: if they are the same.
    """
    if languages[0] == languages[1]:
        raise DataError(f"Source and target language are both {languages[0]!r}; give two, named as in the text.")


def _existing(file: str) -> str:
    """Return the file, or its compressed form if only that exists."""
    return next((file + end for end in ("", *COMPRESSIONS) if Path(file + end).is_file()), file)


def _advice(path: str, languages: tuple[str, str]) -> str:
    """Return what to do with a folder, or with a file whose name is none of a format read here."""
    format = ending_of(path).lower()
    name = Path(path).name
    if Path(path).is_dir():
        return f"{name} is a folder: give the prefix of two files in it, such as {Path(path, 'train')}"
    if ending_of(path).removeprefix(".") in languages:
        return f"give {path.rpartition(ending_of(path))[0]}, the prefix of {name} and its translation"
    if format in READERS:
        return f"write the ending of {name} in lower case"
    if format in FORMATS:
        return f"`vanilla-transformer import {name}` converts it to Moses files"
    return f"{name} is not text: save it as a table or plain text, and give it to `vanilla-transformer import`"


def _other_languages(path: str) -> str:
    """Return which files of a Moses pair with this prefix there are in other languages, or "" if there is no pair."""
    name = Path(path).name
    endings = {ending_of(file.name) for file in Path(path).parent.glob("*") if file.name.startswith(f"{name}.")}
    files = sorted(f"{name}{ending}" for ending in endings if base_code(ending.removeprefix(".")))
    advice = "give their languages as --source_lang and --target_lang"
    return f", but there are {' and '.join(files)}: {advice}" if len(files) > 1 else ""


def find_files(path: str, languages: tuple[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the format of parallel text, a key of `READERS`, and its files: two for a Moses pair.

    Raises:
        DataError: if a file is missing or empty, or the languages are the same.
    """
    check_languages(languages)
    if Path(path, CORPUS_MANIFEST).is_file():
        return ".jsonl", _translated_files(path)

    # Without a known suffix, `path` is the prefix of a Moses pair, or the source of a pair named as OpenNMT does.
    format = ending_of(path)
    name = Path(path).name
    if format in READERS:
        files: tuple[str, ...] = (path,)
    else:
        format = "moses"
        plain = [f"{path}.{language}" for language in languages]
        if name.startswith("src-") and Path(path).is_file():
            plain = [path, str(Path(path).with_name(name.replace("src-", "tgt-", 1)))]
        files = tuple(map(_existing, plain))

    for file in files:
        if not Path(file).is_file():
            if format != "moses":
                raise DataError(f"There is no file {file}.")
            meaning = f"{path} stands for {' and '.join(plain)}{_other_languages(path)}"
            hint = _advice(path, languages) if Path(path).exists() and path not in files else meaning
            raise DataError(f"There is no file {file}; {hint}.")
        if Path(file).stat().st_size == 0:
            raise DataError(f"{file} is empty.")
    return format, files


def read_translation_manifest(folder: str | Path) -> JsonObject:
    """Return the manifest of a folder of translations, even if it is not finished.

    Raises:
        DataError: if it is damaged.
    """
    always = {"spans": [(int, int, int, int)]}
    return read_checked(Path(folder, CORPUS_MANIFEST), always, {"parts": [str]}, _TRANSLATE_AGAIN)


def read_checked(file: Path, always: dict, finished: dict, advice: str) -> JsonObject:
    """Return the manifest of a job, even if the job has not finished.

    Args:
        always, finished: what every manifest, and that of a finished job, must have besides "settings" and "whole", in
            the words of `matches`.
        advice: what to do if it does not.

    Raises:
        DataError: if it does not.
    """
    with suppress(ValueError):
        manifest = read_json(file)
        required = {"settings": dict, "whole": bool, **always}
        if matches(manifest, required) and (not manifest["whole"] or matches(manifest, finished)):
            return manifest
    raise DataError(f"{file} is damaged; {advice}.")


def finished_files(folder: str, manifest: JsonObject, key: str, advice: str) -> list[Path]:
    """Return the files that the manifest of a job names under `key`, after checking that it has finished.

    Args:
        advice: what to do if a file is missing.

    Raises:
        ValueError: if it has not finished, or a file is missing or outside the folder.
    """
    if not manifest["whole"]:
        raise DataError(f"{folder} is not finished; run the command that created it again to finish it.")
    files = [inside(folder, name) for name in manifest[key]]
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is missing; {advice}.")
    return files


def matches(value: object, expected: object) -> bool:
    """Return whether a value of JSON has the expected type or content.

    Args:
        expected: a type; an object with some of the keys, or with `str` for keys of any name; `[item]` for a list of
            any length, or a tuple of the items of one.
    """
    if isinstance(expected, type):
        # exactly, because true and false are instances of int
        return type(value) is expected
    if isinstance(expected, dict) and isinstance(value, dict):
        by_key = dict.fromkeys(value, expected[str]) if str in expected else expected
        return all(key in value and matches(value[key], item) for key, item in by_key.items())
    if isinstance(expected, (list, tuple)) and isinstance(value, list):
        items = expected * len(value) if isinstance(expected, list) else expected
        return len(value) == len(items) and all(map(matches, value, items))
    return False


def _translated_files(folder: str) -> tuple[str, ...]:
    """Return the files of a finished folder of translations.

    Raises:
        ValueError: as `finished_files`, or if it contains no pairs.
    """
    manifest = read_translation_manifest(folder)
    files = finished_files(folder, manifest, "parts", _TRANSLATE_AGAIN)
    if manifest["settings"].get("format") != "jsonl":
        raise DataError(f"{folder} contains no sources; translate with --output_format jsonl.")
    return tuple(map(str, files))


def identify(file: str) -> str:
    """Return the identity of a file of text: the ending that says how to read it, if any, and its digest.

    The digest is of the whole file, so that no change goes unnoticed. A core reads about 1 GB per second, far more
    than it tokenises. Text for which that is too long has been prepared: its manifest holds the digests of its shards.

    Raises:
        OSError: if it cannot be read.
    """
    status = Path(file).stat()
    # With the time of the last change (ctime), which no program can set, unlike that of the last modification
    state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    digest = _digest_once(file, state) if status.st_size >= _LARGE else checksum(Path(file))
    ending = ending_of(file)
    return f"{ending} {digest}" if ending in READERS else digest


@lru_cache
def _digest_once(file: str, state: tuple[int, ...]) -> str:
    """Return the digest of a large file, which a process reads only once while its state is the same."""
    return checksum(Path(file))
