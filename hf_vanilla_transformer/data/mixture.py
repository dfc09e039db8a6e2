"""Training text from several sources, with tags and BPE dropout applied as pairs are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch.utils.data import Dataset as TorchDataset
from tqdm import tqdm

from .batching import TokenRows
from .bpe_dropout import BpeDropout
from .sampling import WeightedBatchSampler

PAIRS_PER_BLOCK = 10_000  # measured at once before an epoch with BPE dropout
SIDES = ("input_ids", "labels")
DRAWS = 4  # segmentations tried for a sentence before it is used without dropout


@dataclass
class TokenSource:
    """One source of training pairs.

    Args:
        name: name for messages.
        tokens: tokenised pairs, for which `TokenRows.supports` is true.
        prefix: token ids of the tags with which every source sentence starts.
        weight: number of times that each pair is used per epoch, on average.
    """

    name: str
    tokens: Any
    prefix: Sequence[int] = ()
    weight: float = 1.0


class Mixture(TorchDataset):
    """The pairs of several sources, for batches from `sampler`, which must have been called before pairs are read.

    Args:
        sources: the sources.
        dropout: segments the words anew whenever a pair is used; None to use the ids of `sources`.
    """

    def __init__(self, sources: Sequence[TokenSource], dropout: BpeDropout | None = None):
        self.sources, self.dropout, self.max_tokens = sources, dropout, 0
        self.sizes = [len(source.tokens) for source in sources]
        self._rows = [TokenRows(source.tokens) for source in sources]
        self._starts = np.cumsum([0, *self.sizes])

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of source tokens and of target tokens of each pair, tags included, without dropout."""
        sides = []
        for name in ("source_length", "target_length"):
            extra = [len(source.prefix) if name == "source_length" else 0 for source in self.sources]
            columns = [np.asarray(source.tokens.with_format("numpy")[name][:]) for source in self.sources]
            parts = [column + more for column, more in zip(columns, extra, strict=True)]
            sides.append(np.concatenate(parts).astype(np.int64))
        return sides[0], sides[1]

    def lengths_in_epoch(self, epoch: int, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the lengths (n,) of the source and of the target of some pairs as BPE dropout segments them."""
        assert self.dropout is not None
        lengths = np.empty((2, len(pairs)), dtype=np.int64)
        starts = range(0, len(pairs), PAIRS_PER_BLOCK)
        for start in tqdm(starts, desc="Segmenting the text of the next epoch", delay=5, leave=False, disable=None):
            block = pairs[start : start + PAIRS_PER_BLOCK]
            rows = self._read(block)
            for side, name in enumerate(SIDES):
                lengths[side, start : start + len(block)] = self.dropout.lengths(
                    [row[name] for row in rows], block, epoch, side, 0
                )
        return lengths[0], lengths[1]

    def sampler(self, max_tokens: int, seed: int) -> WeightedBatchSampler:
        """Return the sampler of the batches of every epoch.

        Args:
            max_tokens: maximum number of tokens in the source and in the target of a batch, including padding.
            seed: seed of the order of the pairs.
        """
        self.max_tokens = max_tokens
        source, target = (side.tolist() for side in self.lengths)
        weights = [source.weight for source in self.sources]
        measure = self.lengths_in_epoch if self.dropout else None
        return WeightedBatchSampler(source, target, max_tokens, self.sizes, weights, seed, measure)

    def _read(self, pairs: np.ndarray) -> list[dict[str, np.ndarray]]:
        """Return the pairs with these numbers, without dropout."""
        source_of = np.searchsorted(self._starts, pairs, side="right") - 1
        rows: list[Any] = [None] * len(pairs)
        for number in np.unique(source_of).tolist():
            places = np.flatnonzero(source_of == number)
            prefix = self.sources[number].prefix
            found = self._rows[number].__getitems__((pairs[places] - self._starts[number]).tolist())
            for place, row in zip(places.tolist(), found, strict=True):
                if prefix:
                    row["input_ids"] = np.concatenate((np.array(prefix, row["input_ids"].dtype), row["input_ids"]))
                rows[place] = row
        return rows

    def __getitems__(self, numbers: list[int]) -> list[dict[str, np.ndarray]]:
        """Return a batch of pairs, given the numbers that the sampler yields: `epoch * len(self) + pair`."""
        epochs, pairs = np.divmod(np.asarray(numbers, dtype=np.int64), len(self))
        rows = self._read(pairs)
        if self.dropout is not None:
            limit = self.max_tokens // len(rows)
            for side, name in enumerate(SIDES):
                segmented = self._segment([row[name] for row in rows], limit, pairs, epochs, side)
                for row, ids in zip(rows, segmented, strict=True):
                    row[name] = ids
        return rows

    def _segment(
        self, rows: list[np.ndarray], limit: int, pairs: np.ndarray, epochs: np.ndarray, side: int
    ) -> list[np.ndarray]:
        """Return random segmentations of at most `limit` tokens, or the original where several draws are longer."""
        assert self.dropout is not None
        segmented, waiting = list(rows), np.arange(len(rows))
        for draw in range(DRAWS):
            texts = [rows[i] for i in waiting]
            drawn = self.dropout(texts, pairs[waiting], epochs[waiting], side, draw)
            fits = np.array([len(ids) <= limit for ids in drawn])
            for i in np.flatnonzero(fits):
                segmented[waiting[i]] = drawn[i]
            waiting = waiting[~fits]
            if not len(waiting):
                break
        return segmented

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        return self.__getitems__([number])[0]
