"""Parallel text: from files to the token ids that training reads, through `datasets` (Arrow, memory-mapped)."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from datasets.exceptions import DatasetGenerationError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class DataError(ValueError):
    """Parallel text that cannot be used; the message says what is wrong, where, and what to do."""


def _lines(path: Path) -> Iterator[str]:
    """The file's lines. Only a newline ends one: a stray U+2028 or form feed must not shift the two sides apart."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.rstrip(b"\r\n").decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start}); convert the file."
                ) from None


def _moses_pairs(files: tuple[str, str], stamps: tuple[tuple[int, int], ...]) -> Iterator[dict[str, str]]:
    """Line i of the first file with line i of the second. `stamps` only make the cache notice a changed file."""
    source, target = (_lines(Path(file)) for file in files)
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


def load_pairs(path: str, source_lang: str, target_lang: str) -> Dataset:
    """Reads the Moses pair `path`.`source_lang` and `path`.`target_lang`, one sentence a line, UTF-8.

    Returns:
        A data set with the string columns "source" and "target", cached on disk.

    Raises:
        DataError: if a file is missing, empty or not UTF-8 (with the line), or the two differ in length.
    """
    files = (f"{path}.{source_lang}", f"{path}.{target_lang}")
    for file in files:
        if not Path(file).is_file():
            raise DataError(f"There is no file {file}; a prefix {path} needs one ending in each language.")
        if Path(file).stat().st_size == 0:
            raise DataError(f"{file} is empty.")
    stamps = tuple((Path(file).stat().st_size, Path(file).stat().st_mtime_ns) for file in files)
    try:
        return Dataset.from_generator(_moses_pairs, gen_kwargs={"files": files, "stamps": stamps})
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, DataError):
            raise error.__cause__ from None
        raise


def tokenize_pairs(
    pairs: Dataset, tokenizer: "PreTrainedTokenizerBase", max_tokens: int
) -> tuple[Dataset, Counter[str]]:
    """Turns text into ids: "input_ids" and "labels", both ending in `</s>`, with their lengths in tokens.

    Returns:
        The pairs kept, and how many were dropped for each reason: a blank side, or a side longer than `max_tokens`,
        which no batch could hold.

    Raises:
        DataError: if nothing is left.
    """

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        sources, targets = tokenizer(batch["source"])["input_ids"], tokenizer(text_target=batch["target"])["input_ids"]
        rows: dict[str, list[Any]] = {
            "input_ids": sources,
            "labels": targets,
            "source_length": [len(source) for source in sources],
            "target_length": [len(target) for target in targets],
            "dropped": [],
        }
        for source, target, *ids in zip(batch["source"], batch["target"], sources, targets, strict=True):
            blank, long = not (source.strip() and target.strip()), max(map(len, ids)) > max_tokens
            rows["dropped"].append("blank side" if blank else "too long" if long else "")
        return rows

    tokens = pairs.map(tokenize, batched=True, remove_columns=pairs.column_names, desc="Tokenising")
    reasons = tokens["dropped"][:]
    tokens = tokens.remove_columns("dropped")
    drops = Counter(reason for reason in reasons if reason)
    if not drops:
        return tokens, drops
    kept = [i for i, reason in enumerate(reasons) if not reason]
    if not kept:
        raise DataError(f"No pair is left of {len(reasons)}: {describe_drops(drops)}.")
    return tokens.select(kept), drops


def describe_drops(drops: Counter[str]) -> str:
    """The counts of `tokenize_pairs` for people: "12 blank side, 3 too long", or "none"."""
    return ", ".join(f"{count:,} {reason}" for reason, count in drops.most_common()) or "none"
