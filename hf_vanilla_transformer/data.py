"""Parallel text: from files or the Hub to the token ids that training reads, through `datasets` (Arrow, on disk).

Text comes as a Moses pair, .jsonl, .tsv or .csv, plain, .gz or .zst, as .parquet, or as a data set of the Hub.
Cleaning drops what no model should learn from, and counts it by reason.
"""

import csv
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

from .files import checksum

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VERSION = checksum(Path(__file__))  # of the readers and of the cleaning, in the key of every cache of what they made
PAIRS_A_PROCESS = 50_000  # fewer are tokenised sooner than another process has started

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


# Why a pair is dropped, in the order in which the reasons are tried; the last is found once all pairs are there
DROPS = ("blank side", "too long", "length ratio", "markup", "duplicate")
_MARKUP = re.compile(  # a comment or a tag, its attributes with "=": not "a < b and c > d"
    r"(?:<|&lt;)(?:!--|\s?/?\s?[a-zA-Z][\w:-]*(?:\s+[\w:-]+\s?=[^<>]*?)?\s?/?\s?(?:>|&gt;))"
)


@dataclass(frozen=True)
class Cleaning:
    """What training text must be like beside filled on both sides. All is counted in tokens, with `</s>`.

    Duplicate pairs and pairs with HTML or XML tags, also escaped ones, go as well.
    """

    max_sentence_tokens: int
    max_length_ratio: float


def tokenize_batch(
    batch: dict[str, list[Any]],
    tokenizer: "PreTrainedTokenizerBase",
    max_tokens: int,
    cleaning: Cleaning | None,
    version: str = VERSION,
) -> dict[str, list[Any]]:
    """What `tokenize_pairs` does to some pairs: ids, lengths, "drop" (a place in `DROPS`, or -1) and a digest.

    `version` only makes the cache notice a change of this function.
    """
    longest = min(max_tokens, cleaning.max_sentence_tokens) if cleaning else max_tokens

    def reason(texts: tuple[str, str], lengths: tuple[int, int]) -> str | None:
        if not (texts[0].strip() and texts[1].strip()):
            return "blank side"
        if max(lengths) > longest:
            return "too long"
        if cleaning and max(lengths) > cleaning.max_length_ratio * min(lengths):
            return "length ratio"
        return "markup" if cleaning and any(map(_MARKUP.search, texts)) else None

    texts = [(source or "", target or "") for source, target in zip(batch["source"], batch["target"], strict=True)]
    sources, targets = zip(*texts, strict=True)
    rows = {"input_ids": tokenizer(list(sources))["input_ids"]}
    rows["labels"] = tokenizer(text_target=list(targets))["input_ids"]
    rows["source_length"], rows["target_length"] = (list(map(len, rows[name])) for name in ("input_ids", "labels"))
    lengths = zip(rows["source_length"], rows["target_length"], strict=True)
    reasons = map(reason, texts, lengths)
    rows["drop"] = [-1 if found is None else DROPS.index(found) for found in reasons]
    digests = (hashlib.blake2b("\0".join(pair).encode(), digest_size=8).digest() for pair in texts)
    rows["digest"] = [int.from_bytes(digest, "big", signed=True) for digest in digests]
    return rows


def tokenize_pairs(
    pairs: Dataset, tokenizer: "PreTrainedTokenizerBase", max_tokens: int, cleaning: Cleaning | None = None
) -> tuple[Dataset, Counter[str]]:
    """Turns text into ids: "input_ids" and "labels", both ending in `</s>`, with their lengths in tokens.

    It runs once, on all cores; `datasets` keeps the result.

    Args:
        max_tokens: the most tokens of a batch's side; a longer sentence fits in none and is dropped.
        cleaning: for training text; without it, as validation text wants, only unusable pairs are dropped.

    Returns:
        The pairs kept, and how many were dropped for each of `DROPS`.

    Raises:
        DataError: if nothing is left.
    """
    processes = min(os.cpu_count() or 1, len(pairs) // PAIRS_A_PROCESS)
    tokens = pairs.map(
        partial(tokenize_batch, tokenizer=tokenizer, max_tokens=max_tokens, cleaning=cleaning, version=VERSION),
        batched=True,
        remove_columns=pairs.column_names,
        num_proc=processes if processes > 1 else None,
        desc="Tokenising",
    )
    found = tokens.select_columns(["drop", "digest"]).with_format("numpy")
    drop, digest = np.array(found["drop"][:]), found["digest"][:]
    tokens = tokens.remove_columns(["drop", "digest"])
    if cleaning:
        filled = np.flatnonzero(drop < 0)
        first = np.unique(digest[filled], return_index=True)[1]
        drop[np.delete(filled, first)] = DROPS.index("duplicate")
    drops = Counter({name: count for i, name in enumerate(DROPS) if (count := int((drop == i).sum()))})
    if not drops:
        return tokens, drops
    kept = np.flatnonzero(drop < 0)
    if not len(kept):
        raise DataError(f"No pair is left of {len(drop):,}: {describe_drops(drops)}.")
    return tokens.select(kept), drops


def describe_drops(drops: Counter[str]) -> str:
    """The counts of `tokenize_pairs` for people: "12 blank side, 3 too long", or "none"."""
    return ", ".join(f"{count:,} {reason}" for reason, count in drops.most_common()) or "none"
