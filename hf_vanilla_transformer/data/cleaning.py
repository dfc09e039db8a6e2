"""Turn parallel text into token ids, dropping what no model should learn from and counting it by reason."""

import hashlib
import os
import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset

from ..files import checksum
from .readers import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VERSION = checksum(Path(__file__))  # part of the cache keys, so that changed rules clean again
PAIRS_PER_PROCESS = 50_000  # fewer are tokenised sooner than another process starts
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
    processes = min(os.cpu_count() or 1, len(pairs) // PAIRS_PER_PROCESS)
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
