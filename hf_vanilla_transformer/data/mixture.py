"""Training text from several sources, with tags and BPE dropout applied as pairs are read."""

from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
from tqdm import tqdm

from .batching import Pair, Rows
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
        self.rows = rows
        self.weights = weights
        self.dropout = dropout
        # Rows that are streamed have no length, and cannot be mixed.
        self.sizes = [len(each) for each in rows]  # type: ignore[arg-type]
        self._starts = np.cumsum([0, *self.sizes])
        self._max_tokens = 0

        # Lengths (2, n) by use. The first epoch needs those by which the batches were planned, and finds them here.
        self._measured: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of source tokens and of target tokens of each pair, tags included, without dropout."""
        sources, targets = zip(*(each.lengths for each in self.rows), strict=True)
        return np.concatenate(sources), np.concatenate(targets)

    def segmented_lengths(self, numbers: np.ndarray, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the lengths (n,) of sources and targets as BPE dropout segments them, given the sampler's numbers.

        Args:
            progress: whether to show a progress bar if it takes long.
        """
        assert self.dropout is not None
        uses, pairs = np.divmod(numbers, max(len(self), 1))

        # Forget the uses of earlier epochs; 0 stands for a length that is not known yet.
        earlier = self._measured
        self._measured = {}
        lengths = np.empty((2, len(numbers)), dtype=np.int64)
        for use in np.unique(uses).tolist():
            measured = earlier[use] if use in earlier else np.zeros((2, len(self)), np.int32)
            self._measured[use] = measured
            places = np.flatnonzero(uses == use)
            unknown = np.unique(pairs[places][measured[0, pairs[places]] == 0])

            shown = {"desc": "Segmenting", "unit": " pairs", "delay": 5, "leave": False, "disable": not progress}
            with tqdm(total=len(unknown), **shown) as bar:
                # In blocks, so that only the lengths of a corpus are in memory and not its tokens.
                for start in range(0, len(unknown), PAIRS_PER_BLOCK):
                    block = unknown[start : start + PAIRS_PER_BLOCK]
                    rows = self._read(block)
                    for side, name in enumerate(SIDES):
                        measured[side, block] = self.dropout.lengths([row[name] for row in rows], block, use, side, 0)
                    bar.update(len(block))
            lengths[:, places] = measured[:, pairs[places]]
        return lengths[0], lengths[1]

    def sampler(self, max_tokens: int, seed: int, readers: int, progress: bool) -> WeightedBatchSampler:
        self._max_tokens = max_tokens
        measure = partial(self.segmented_lengths, progress=progress) if self.dropout else None
        return WeightedBatchSampler(*self.lengths, max_tokens, self.sizes, self.weights, seed, measure)

    def _read(self, pairs: np.ndarray) -> list[dict[str, np.ndarray]]:
        """Return the pairs with these numbers, without dropout."""
        source_of = np.searchsorted(self._starts, pairs, side="right") - 1
        found: dict[int, Pair] = {}
        for number in np.unique(source_of).tolist():
            # All pairs of a source in one call, which reads its columns only once.
            places = np.flatnonzero(source_of == number)
            rows = self.rows[number].__getitems__((pairs[places] - self._starts[number]).tolist())
            found.update(zip(places.tolist(), rows, strict=True))
        return [{name: np.asarray(found[place][name]) for name in SIDES} for place in range(len(pairs))]

    def __getitems__(self, numbers: list[int]) -> list[dict[str, np.ndarray]]:
        """Return a batch of pairs, given the numbers that the sampler yields: `use * len(self) + pair`."""
        uses, pairs = np.divmod(np.asarray(numbers, dtype=np.int64), len(self))
        rows = self._read(pairs)
        if self.dropout is not None:
            # The batch was planned by lengths measured for draw 0; a longer draw must not exceed max_tokens.
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
            # The key of a segmentation has no position in the batch: batches may change, its draw does not.
            drawn = self.dropout([rows[i] for i in waiting], pairs[waiting], uses[waiting], side, draw)
            fits = np.array([len(ids) <= limit for ids in drawn])
            for i in np.flatnonzero(fits):
                segmented[waiting[i]] = drawn[i]
            waiting = waiting[~fits]
            if not len(waiting):
                break
        return segmented
