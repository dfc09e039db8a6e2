"""Training text from several sources, with tags and BPE dropout applied as pairs are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
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
        dropout: segments the words again whenever a pair is used; None to use the ids of `sources`.
    """

    def __init__(self, sources: Sequence[TokenSource], dropout: BpeDropout | None = None):
        self.sources, self.dropout, self.max_tokens = sources, dropout, 0
        self.sizes = [len(source.tokens) for source in sources]
        self._rows = [TokenRows(source.tokens) for source in sources]
        self._starts = np.cumsum([0, *self.sizes])
        self._measured: dict[int, np.ndarray] = {}

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

    def segmented_lengths(self, numbers: np.ndarray, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the lengths (n,) of sources and targets as BPE dropout segments them, given the sampler's numbers.

        Args:
            progress: whether to show a progress bar if it takes long.
        """
        assert self.dropout is not None
        uses, pairs = np.divmod(numbers, max(len(self), 1))
        needed = np.unique(uses).tolist()
        # the lengths of each use that the last call or this one needs, and 0 where they are unknown
        self._measured = {
            use: self._measured[use] if use in self._measured else np.zeros((2, len(self)), np.int32) for use in needed
        }
        lengths = np.empty((2, len(numbers)), dtype=np.int64)
        for use in needed:
            measured, places = self._measured[use], np.flatnonzero(uses == use)
            unknown = np.unique(pairs[places][measured[0, pairs[places]] == 0])
            bar = tqdm(
                total=len(unknown), desc="Segmenting", unit=" pairs", delay=5, leave=False, disable=not progress
            )
            for start in range(0, len(unknown), PAIRS_PER_BLOCK):
                block = unknown[start : start + PAIRS_PER_BLOCK]
                rows = self._read(block)
                for side, name in enumerate(SIDES):
                    measured[side, block] = self.dropout.lengths([row[name] for row in rows], block, use, side, 0)
                bar.update(len(block))
            bar.close()
            lengths[:, places] = measured[:, pairs[places]]
        return lengths[0], lengths[1]

    def sampler(self, max_tokens: int, seed: int, progress: bool = False) -> WeightedBatchSampler:
        """Return the sampler of the batches of every epoch.

        Args:
            max_tokens: maximum number of tokens in the source and in the target of a batch, including padding.
            seed: seed of the order of the pairs.
            progress: whether to show a progress bar while an epoch is being segmented.
        """
        self.max_tokens = max_tokens
        source, target = (side.tolist() for side in self.lengths)
        weights = [source.weight for source in self.sources]
        measure = partial(self.segmented_lengths, progress=progress) if self.dropout else None
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
        """Return a batch of pairs, given the numbers that the sampler yields: `use * len(self) + pair`."""
        uses, pairs = np.divmod(np.asarray(numbers, dtype=np.int64), len(self))
        rows = self._read(pairs)
        if self.dropout is not None:
            limit = self.max_tokens // len(rows)
            for side, name in enumerate(SIDES):
                segmented = self._segment([row[name] for row in rows], limit, pairs, uses, side)
                for row, ids in zip(rows, segmented, strict=True):
                    row[name] = ids
        return rows

    def _segment(
        self, rows: list[np.ndarray], limit: int, pairs: np.ndarray, uses: np.ndarray, side: int
    ) -> list[np.ndarray]:
        """Return random segmentations of at most `limit` tokens, or the original where several draws are longer."""
        assert self.dropout is not None
        segmented, waiting = list(rows), np.arange(len(rows))
        for draw in range(DRAWS):
            texts = [rows[i] for i in waiting]
            drawn = self.dropout(texts, pairs[waiting], uses[waiting], side, draw)
            fits = np.array([len(ids) <= limit for ids in drawn])
            for i in np.flatnonzero(fits):
                segmented[waiting[i]] = drawn[i]
            waiting = waiting[~fits]
            if not len(waiting):
                break
        return segmented

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        return self.__getitems__([number])[0]
