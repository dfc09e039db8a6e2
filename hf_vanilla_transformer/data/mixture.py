"""Training text from several sources, with tags and BPE dropout applied as pairs are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch.utils.data import Dataset as TorchDataset

from .batching import TokenRows
from .bpe_dropout import BpeDropout
from .sampling import WeightedBatchSampler

SAMPLED_PAIRS = 1000  # on which the growth of sentences by BPE dropout is measured
GROWTH_QUANTILE = 0.9  # share of the sampled sentences that grow by no more than batches leave room for
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

    @cached_property
    def _growth(self) -> float:
        """Return the factor by which BPE dropout lengthens all but the longest of the sampled sentences."""
        if self.dropout is None or not len(self):
            return 1.0
        numbers = np.linspace(0, len(self) - 1, min(SAMPLED_PAIRS, len(self))).astype(np.int64)
        ids = [row[name] for row in self._read(numbers) for name in ("input_ids", "labels")]
        growths = [len(self.dropout(side, number)) / len(side) for number, side in enumerate(ids)]
        return max(1.0, float(np.quantile(growths, GROWTH_QUANTILE)))

    def sampler(self, max_tokens: int, seed: int) -> WeightedBatchSampler:
        """Return the sampler of the batches of every epoch, with room for the growth of sentences by dropout.

        Args:
            max_tokens: maximum number of tokens in the source and in the target of a batch, including padding.
            seed: seed of the order of the pairs.
        """
        self.max_tokens = max_tokens
        weights = [source.weight for source in self.sources]
        grown = (np.minimum(np.ceil(side * self._growth), max_tokens).astype(np.int64) for side in self.lengths)
        source, target = (np.maximum(*sides).tolist() for sides in zip(self.lengths, grown, strict=True))
        return WeightedBatchSampler(source, target, self.max_tokens, self.sizes, weights, seed)

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
            for row, *key in zip(rows, epochs.tolist(), pairs.tolist(), strict=True):
                for side, name in enumerate(("input_ids", "labels")):
                    row[name] = self._drop(row[name], limit, (*key, side))
        return rows

    def _drop(self, ids: np.ndarray, limit: int, key: tuple[int, ...]) -> np.ndarray:
        """Return a random segmentation of at most `limit` tokens."""
        assert self.dropout is not None
        for draw in range(DRAWS):
            dropped = self.dropout(ids, *key, draw)
            if len(dropped) <= limit:
                return dropped
        return ids

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        return self.__getitems__([number])[0]
