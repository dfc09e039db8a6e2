"""Turn parallel text into token ids, dropping pairs that are unusable or unfit for training, and count the drops."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..errors import UserError
from ..files import checksum
from .cores import available_cores
from .formats import DataError
from .languages import is_other_language

Item = TypeVar("Item")
VERSION = checksum(Path(__file__))  # part of the cache keys, so that changed code cleans the text again
_CHARACTERS_TOKENISED = 1 << 20  # at a time; a tokenizer needs some 150 bytes for each
_BYTES_READ = 1 << 26  # of text at a time
MIN_PAIRS_PER_PROCESS = 50_000  # fewer pairs are tokenised in less time than it takes to start a process
# The reasons to drop a pair, in the order in which they are checked; duplicates are found last, among all pairs.
DROP_REASONS = ("blank side", "too long", "length ratio", "markup", "language", "excluded", "duplicate")
# A comment, or a tag whose attributes have "=": does not match "a < b and c > d".
_MARKUP = re.compile(r"(?:<|&lt;)(?:!--|\s?/?\s?[a-zA-Z][\w:-]*(?:\s+[\w:-]+\s?=[^<>]*?)?\s?/?\s?(?:>|&gt;))")


@dataclass(frozen=True)
class Cleaning:
    """Limits for training pairs. Lengths are in tokens, including `</s>`.

    Duplicate pairs and pairs with HTML or XML tags, escaped or not, are also dropped.

    Args:
        max_sentence_tokens: maximum length of either side.
        max_length_ratio: maximum ratio of the longer side to the shorter.
        languages: source and target language, if pairs in other languages are to be dropped.

    Raises:
        ValueError: if the ratio is below 1, which would drop every pair, or not a number.
    """

    max_sentence_tokens: int
    max_length_ratio: float
    languages: tuple[str, str] | None = None

    def __post_init__(self):
        # "Not at least 1" rather than "below 1": the latter would let NaN pass.
        if not self.max_length_ratio >= 1:
            raise UserError(f"max_length_ratio must be at least 1, got {self.max_length_ratio}.")


def clean_batch(
    batch: dict[str, list],
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int,
    cleaning: Cleaning | None,
    excluded: Collection[str] = (),
) -> dict[str, list]:
    """Tokenise and check a batch of pairs, for `tokenize_pairs` and `preparation.prepare`.

    Args:
        batch: lists of equal length under "source" and "target".
        max_tokens, cleaning: as in `tokenize_pairs`.
        excluded: sentences whose pairs are dropped; white space around a side is ignored.

    Returns:
        "input_ids" and "labels", empty if too long; their lengths as "source_length" and "target_length"; and "drop",
        an index into `DROP_REASONS` or -1.
    """
    max_length = min(max_tokens, cleaning.max_sentence_tokens) if cleaning else max_tokens

    def drop_reason(texts: tuple[str, str], lengths: tuple[int, int]) -> str | None:
        if not (texts[0].strip() and texts[1].strip()):
            return "blank side"
        if max(lengths) > max_length:
            return "too long"
        if cleaning and max(lengths) > cleaning.max_length_ratio * min(lengths):
            return "length ratio"
        if cleaning and any(map(_MARKUP.search, texts)):
            return "markup"
        if cleaning and cleaning.languages and any(map(is_other_language, texts, cleaning.languages)):
            return "language"
        return "excluded" if excluded and any(text.strip() in excluded for text in texts) else None

    # Columns of `datasets` can contain None.
    sources = [text or "" for text in batch["source"]]
    targets = [text or "" for text in batch["target"]]

    # Not verbose: a long side is counted here, and no reason for a warning of transformers.
    rows: dict[str, list] = {}
    rows["input_ids"], rows["source_length"] = _tokenize(
        sources, lambda texts: tokenizer(texts, verbose=False), max_length
    )
    rows["labels"], rows["target_length"] = _tokenize(
        targets, lambda texts: tokenizer(text_target=texts, verbose=False), max_length
    )
    lengths = zip(rows["source_length"], rows["target_length"], strict=True)
    reasons = map(drop_reason, zip(sources, targets, strict=True), lengths)
    rows["drop"] = [-1 if reason is None else DROP_REASONS.index(reason) for reason in reasons]
    return rows


def _tokenize(
    texts: Sequence[str], encode: Callable[[list[str]], Mapping[str, list]], max_length: int
) -> tuple[list[list[int]], list[int]]:
    """Return the tokens of each text, none for a text that is too long, and the number of tokens of each."""
    tokens: list[list[int]] = []
    lengths: list[int] = []
    for portion in portions(texts, len, _CHARACTERS_TOKENISED):
        for ids in encode(portion)["input_ids"]:
            lengths.append(len(ids))
            tokens.append(ids if len(ids) <= max_length else [])
    return tokens, lengths


def portions(
    items: Iterable[Item], size: Callable[[Item], int], total: int, count: int | None = None
) -> Iterator[list[Item]]:
    """Yield consecutive items in lists, each with at most `count` items of a total size of at most `total`, or one."""
    portion: list[Item] = []
    filled = 0
    for item in items:
        if portion and (filled + size(item) > total or len(portion) == count):
            yield portion
            portion = []
            filled = 0
        portion.append(item)
        filled += size(item)
    if portion:
        yield portion


def pair_digest(source: str, target: str) -> int:
    """Return 64 bits by which equal pairs are found.

    Among a billion pairs, the probability that any two different ones have the same is 3 %.
    """
    # with a length, because the text itself may contain a NUL
    text = f"{len(source)}\0{source}\0{target}"
    # signed, as Arrow stores it and NumPy sorts it without Python objects
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def _tokenize_batch(batch: dict[str, list], version: str, **settings) -> dict[str, list]:
    """Return the columns of `clean_batch`, and "digest", that of each pair.

    Args:
        version: unused; makes the cache of `datasets` notice that this code has changed.
    """
    rows = clean_batch(batch, **settings)
    pairs = zip(batch["source"], batch["target"], strict=True)
    rows["digest"] = [pair_digest(source or "", target or "") for source, target in pairs]
    return rows


def tokenize_pairs(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, max_tokens: int, cleaning: Cleaning | None = None
) -> tuple[Dataset, Counter[str]]:
    """Convert text into token ids: "input_ids" and "labels", both ending in `</s>`, and their lengths in tokens.

    Uses all CPU cores that the process may use; `datasets` caches the result.

    Args:
        max_tokens: maximum number of tokens in either side of a batch; pairs with a longer sentence are dropped.
        cleaning: limits for training text. If None, as for validation text, only unusable pairs are dropped.

    Returns:
        The remaining pairs, and the number of pairs dropped for each of `DROP_REASONS`.

    Raises:
        DataError: if every pair was dropped.
    """
    # The cache key of `map` contains the pickled function with these arguments, but not this module's code.
    processes = min(available_cores(), len(pairs) // MIN_PAIRS_PER_PROCESS)
    tokens = pairs.map(
        partial(_tokenize_batch, tokenizer=tokenizer, max_tokens=max_tokens, cleaning=cleaning, version=VERSION),
        batched=True,
        # the number that is usual for `datasets`, fewer of very long texts
        batch_size=max(1, min(1000, _BYTES_READ * len(pairs) // max(1, pairs.data.nbytes))),
        remove_columns=pairs.column_names,
        num_proc=processes if processes > 1 else None,
        desc="Tokenising",
    )

    checks = tokens.select_columns(["drop", "digest"]).with_format("numpy")
    drop = np.array(checks["drop"][:])
    digest = checks["digest"][:]
    tokens = tokens.remove_columns(["drop", "digest"])
    if cleaning:
        # Among the pairs still kept, so that a dropped pair never counts as the first occurrence of another.
        kept = np.flatnonzero(drop < 0)
        first_occurrences = np.unique(digest[kept], return_index=True)[1]
        drop[np.delete(kept, first_occurrences)] = DROP_REASONS.index("duplicate")

    # Sorted, so that reasons with equal counts are reported in the order of DROP_REASONS.
    drops = Counter(DROP_REASONS[reason] for reason in np.sort(drop[drop >= 0]))
    if not drops:
        return tokens, drops
    kept = np.flatnonzero(drop < 0)
    if not len(kept):
        raise all_dropped(len(drop), drops)
    return tokens.select(kept), drops


def describe_drops(drops: Counter[str]) -> str:
    """Return the counts of `tokenize_pairs` as text, such as "12 blank side, 3 too long", or "none"."""
    return ", ".join(f"{count:,} {reason}" for reason, count in drops.most_common()) or "none"


def all_dropped(count: int, drops: Counter[str]) -> DataError:
    """Return the error for a text of `count` pairs that were all dropped."""
    return DataError(
        f"Every pair was dropped ({count:,} in total: {describe_drops(drops)}); check the text and the length limits."
    )
