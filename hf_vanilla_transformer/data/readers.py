"""Read parallel text from files, as rows or as a dataset on disk.

Supported formats: Moses pairs, .jsonl, .tsv and .csv, uncompressed or as .gz or .zst; .parquet; and the folders that
`translate --output_dir` writes.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError

from ..files import CORPUS_MANIFEST, checksum
from . import formats
from .formats import COMPRESSIONS, READERS, DataError, Row

VERSION = checksum(Path(__file__)) + checksum(Path(formats.__file__))  # in cache keys: changed code reads text again
TEXT_PAIR = Features({"source": Value("string"), "target": Value("string")})
DIRECTED_PAIR = Features({**TEXT_PAIR, "source_lang": Value("string"), "target_lang": Value("string")})


def check_languages(languages: tuple[str, str]) -> None:
    """Check that source and target language differ.

    Raises:
        DataError: if they are the same.
    """
    if languages[0] == languages[1]:
        raise DataError(f"Source and target language are both {languages[0]!r}; give two, named as in the text.")


def text_files(path: str, languages: tuple[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the format of parallel text, a key of `READERS` or ".parquet", and its files: two for a Moses pair.

    Raises:
        DataError: if a file is missing or empty, or the languages are the same.
    """
    check_languages(languages)
    if Path(path, CORPUS_MANIFEST).is_file():
        return ".jsonl", _translated_files(path)
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


def read_translation_manifest(folder: str | Path) -> dict[str, Any]:
    """Return the manifest of a folder of translations, even if it is not finished.

    Raises:
        DataError: if it is damaged.
    """
    file = Path(folder, CORPUS_MANIFEST)
    try:
        manifest = json.loads(file.read_text("utf-8"))
        {**manifest["settings"]}  # must be a mapping
        spans_are_valid = all(len(span) == 4 and set(map(type, span)) == {int} for span in manifest["spans"])
        if spans_are_valid and (not manifest["whole"] or all(isinstance(part, str) for part in manifest["parts"])):
            return manifest
    except (ValueError, TypeError, LookupError):
        pass
    raise DataError(f"{file} is damaged; translate again into a new folder.")


def _translated_files(folder: str) -> tuple[str, ...]:
    """Return the files of a finished folder of translations.

    Raises:
        DataError: if it is not finished, contains no pairs, or a file is missing.
    """
    manifest = read_translation_manifest(folder)
    if not manifest["whole"]:
        raise DataError(f"{folder} is not finished; run the command that created it again to finish it.")
    if manifest["settings"].get("format") != "jsonl":
        raise DataError(f"{folder} contains no sources; translate with --output_format jsonl.")
    files = tuple(str(Path(folder, name)) for name in manifest["parts"])
    for file in files:
        if not Path(file).is_file():
            raise DataError(f"{file} is missing; translate again into a new folder.")
    return files


def file_stamps(files: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """Return the size in bytes and the modification time in nanoseconds of each file, to detect changes."""
    return tuple((Path(file).stat().st_size, Path(file).stat().st_mtime_ns) for file in files)


def names_and_stamps(files: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return the name of each file, without its folder, and its stamp, to record them."""
    return [(Path(file).name, *stamp) for file, stamp in zip(files, file_stamps(files), strict=True)]


def read_rows(path: str, source_lang: str, target_lang: str) -> tuple[Iterator[Row], tuple[str, ...]]:
    """Return an iterator over the pairs of a file or Moses prefix, in constant memory, and the files they come from.

    Raises:
        DataError: as `load_pairs`; the iterator raises it as well.
    """
    languages = (source_lang, target_lang)
    format, files = text_files(path, languages)
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
    format: str, files: tuple[str, ...], languages: tuple[str, ...], stamps: tuple, version: str
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
    # ValueError: raised by pyarrow for a truncated file and by datasets for an empty one
    except (ValueError, DatasetGenerationError) as error:
        raise DataError(f"{path} cannot be read: {error.__cause__ or error}") from None


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
    format, files = text_files(path, languages)
    if format != ".parquet":
        return _load_rows(path, format, files, languages, TEXT_PAIR)
    pairs = select_languages(_read_parquet(path), path, languages)
    if not len(pairs):
        raise DataError(f"{path} contains no sentence pairs.")
    return pairs


def load_directed_pairs(path: str, directions: tuple[str, ...]) -> dict[str, Dataset]:
    """Read JSON lines that name their languages: "source", "target", "source_lang" and "target_lang".

    Args:
        directions: the expected directions, such as "en-de".

    Returns:
        For each direction that occurs, a dataset with the string columns "source" and "target".

    Raises:
        DataError: as `load_pairs`, and if a line has another direction.
    """
    _, files = text_files(path, ("source", "target"))
    rows = _load_rows(path, "directed .jsonl", files, directions, DIRECTED_PAIR)
    columns = rows.select_columns(["source_lang", "target_lang"])
    found = np.array([f"{row['source_lang']}-{row['target_lang']}" for row in columns])
    rows = rows.select_columns(["source", "target"])
    return {name: rows.select(np.flatnonzero(found == name)) for name in directions if (found == name).any()}


def _load_rows(
    path: str, format: str, files: tuple[str, ...], languages: tuple[str, ...], features: Features
) -> Dataset:
    """Return what a reader yields, as a dataset that is cached on disk."""
    arguments: dict[str, Any] = {"format": format, "files": files, "languages": languages}
    arguments |= {"stamps": file_stamps(files), "version": VERSION}
    try:
        return Dataset.from_generator(_read_rows, features=features, gen_kwargs=arguments)
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, DataError):
            raise error.__cause__ from None
        raise DataError(f"{path} cannot be read: {error.__cause__ or error}") from None
