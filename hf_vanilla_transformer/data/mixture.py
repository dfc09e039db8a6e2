"""Training text from several sources, with tags and BPE dropout applied as pairs are read."""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from tqdm import tqdm

from .batching import Rows
from .bpe_dropout import BpeDropout
from .sampling import WeightedBatchSampler

PAIRS_PER_BLOCK = 10_000  # measured at once before an epoch with BPE dropout
SIDES = ("input_ids", "labels")
DRAWS = 4  # segmentations tried for a sentence before it is used without dropout


class MixedRows(Rows):
    """The rows of several sources, for batches from `sampler`, which must have been called before rows are read.

    Args:
        rows: the rows of each source.
        weights: number of times that each pair of each source is used per epoch, on average.
        dropout: segments the words again whenever a pair is used; None to use the ids of `rows`.
    """

    def __init__(self, rows: Sequence[Rows], weights: Sequence[float], dropout: BpeDropout | None = None):
        self.rows: list[Any] = [*rows]
        self.weights = weights
        self.dropout = dropout
        self.sizes = [len(each) for each in self.rows]
        self._starts = np.cumsum([0, *self.sizes])
        self._max_tokens = 0
        self._measured: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of source tokens and of target tokens of each pair, tags included, without dropout."""
        lengths = [each.lengths for each in self.rows]
        return np.concatenate([source for source, _ in lengths]), np.concatenate([target for _, target in lengths])

    def segmented_lengths(self, numbers: np.ndarray, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the lengths (n,) of sources and targets as BPE dropout segments them, given the sampler's numbers.

        Args:
            progress: whether to show a progress bar if it takes long.
        """
        assert self.dropout is not None
        # a number is `use * len(self) + pair`
        uses, pairs = np.divmod(numbers, max(len(self), 1))
        needed = np.unique(uses).tolist()
        # the lengths of each use that the last call or this one needs, and 0 where they are unknown
        self._measured = {
            use: self._measured[use] if use in self._measured else np.zeros((2, len(self)), np.int32) for use in needed
        }
        lengths = np.empty((2, len(numbers)), dtype=np.int64)
        for use in needed:
            measured = self._measured[use]
            places = np.flatnonzero(uses == use)
            unknown = np.unique(pairs[places][measured[0, pairs[places]] == 0])
            # only after 5 seconds: most texts take less
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

    def sampler(self, max_tokens: int, seed: int, readers: int, progress: bool) -> WeightedBatchSampler:
        self._max_tokens = max_tokens
        measure = partial(self.segmented_lengths, progress=progress) if self.dropout else None
        return WeightedBatchSampler(*self.lengths, max_tokens, self.sizes, self.weights, seed, measure)

    def _read(self, pairs: np.ndarray) -> list[dict[str, np.ndarray]]:
        """Return the pairs with these numbers, without dropout."""
        source_of = np.searchsorted(self._starts, pairs, side="right") - 1
        rows: list[Any] = [None] * len(pairs)
        for number in np.unique(source_of).tolist():
            places = np.flatnonzero(source_of == number)
            found = self.rows[number].__getitems__((pairs[places] - self._starts[number]).tolist())
            for place, row in zip(places.tolist(), found, strict=True):
                rows[place] = row
        return rows

    def __getitems__(self, numbers: list[int]) -> list[dict[str, np.ndarray]]:
        """Return a batch of pairs, given the numbers that the sampler yields: `use * len(self) + pair`."""
        uses, pairs = np.divmod(np.asarray(numbers, dtype=np.int64), len(self))
        rows = self._read(pairs)
        if self.dropout is not None:
            # what each pair may take without making the batch larger than its maximum
            limit = self._max_tokens // len(rows)
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
        segmented = list(rows)
        waiting = np.arange(len(rows))
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
