"""Training text from several sources: how often each pair is used, and BPE dropout whenever it is.

The batches of an epoch are planned once, from lengths, as for a single source. What changes from epoch to epoch is
which pair takes which place in them (`_Places`), and how its words are segmented (`MixedRows`).
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from .batching import SIDES, Lengths, MaxTokensBatchSampler, Pair, Rows, check_fits
from .bpe_dropout import BpeDropout

# Pairs of similar length among which the next ones are drawn. Larger groups would waste more padding, because a place
# is as long as the longest pair of its group.
MIN_GROUP_PAIRS = 8
SAMPLED_PAIRS = 1_000  # segmented to learn how much longer BPE dropout makes a text


def temperature_weights(sizes: Sequence[int], temperature: float) -> list[float]:
    """Return weights that make the share of each source proportional to its size ** (1 / temperature).

    The largest source has weight 1. (Arivazhagan et al. 2019, section 3.1.)

    Args:
        sizes: number of pairs of each source.
        temperature: at least 1.
    """
    return [(size / max(sizes)) ** (1 / temperature - 1) for size in sizes]


class _Places:
    """The places that one source has in the batches of every epoch, and the pairs that take them in each.

    With a weight of 2.25, each pair has two places of its own, and a quarter of the pairs get one more place, which
    other pairs get in the next epoch. For these, the pairs are sorted by length and divided into groups of similar
    ones. A group of 32 shares 8 places that are as long as its longest pair: any of its pairs fits, so the batches
    never change. Its pairs form a ring, in random order, and each epoch takes the next 8 of them.

    Args:
        source, target: lengths of the pairs in tokens (n,).
        weight: number of times that each pair is used per epoch, on average.

    Attributes:
        source, target: lengths of the places in tokens.
    """

    def __init__(self, source: np.ndarray, target: np.ndarray, weight: float, generator: np.random.Generator):
        size = len(source)
        repeats = int(weight)
        part = weight - repeats
        self.source = np.tile(source, repeats)
        self.target = np.tile(target, repeats)
        self._repeated = np.tile(np.arange(size), repeats)
        self._ring = np.zeros(0, dtype=np.int64)
        # Less than half a pair is none, unless the source would not be used at all.
        if not size or (repeats and part * size < 0.5):
            return

        by_length = np.lexsort((target, source, np.maximum(source, target)))
        group_size = math.ceil(MIN_GROUP_PAIRS / min(part, 1 - part))
        starts = np.arange(0, max(1, size // group_size) * group_size, group_size)
        ends = np.append(starts[1:], size)
        # Round the running total and not each group, so that the epoch draws its exact part of the source.
        drawn = np.diff(np.floor(part * np.append(0, ends) + 0.5)).astype(np.int64)
        drawn[-1] += drawn.sum() == 0  # at least one pair per epoch
        self.source = np.append(self.source, np.repeat(np.maximum.reduceat(source[by_length], starts), drawn))
        self.target = np.append(self.target, np.repeat(np.maximum.reduceat(target[by_length], starts), drawn))

        # For each pair in the rings, which follow one another: its position in its ring, and that ring's numbers.
        group = np.repeat(np.arange(len(starts)), ends - starts)
        self._ring = by_length[np.lexsort((generator.random(size), group))]
        self._position = np.arange(size) - starts[group]
        self._ring_size = (ends - starts)[group]
        self._drawn = drawn[group]

    def pairs(self, epoch: int) -> np.ndarray:
        """Return the pair in each place."""
        if not len(self._ring):
            return self._repeated
        is_drawn = (self._position - epoch * self._drawn) % self._ring_size < self._drawn
        return np.append(self._repeated, self._ring[is_drawn])


class WeightedBatchSampler(MaxTokensBatchSampler):
    """Batches of at most `max_tokens` tokens from several sources, each used `weight` times its size per epoch.

    A weight of 3 uses each pair three times, a weight of 0.5 half of the pairs, and the other half in the next epoch.
    The pairs are numbered from source to source. Yields the numbers `use * len(source_lengths) + pair`, where `use` is
    different each time that the pair is used, so that what reads the pairs knows it, also in worker processes.

    Args:
        source_lengths, target_lengths: number of tokens of each pair.
        sizes: number of pairs of each source.
        weights: number of times that each source is used per epoch, positive and finite.

    The other arguments are those of `MaxTokensBatchSampler`.

    Raises:
        ValueError: as `MaxTokensBatchSampler`.
    """

    def __init__(
        self,
        source_lengths: Lengths,
        target_lengths: Lengths,
        max_tokens: int,
        sizes: Sequence[int],
        weights: Sequence[float],
        seed: int = 0,
    ):
        source = np.asarray(source_lengths, dtype=np.int64)
        target = np.asarray(target_lengths, dtype=np.int64)
        # Here already, since the message names a pair, and below there are only places.
        check_fits(np.maximum(source, target), max_tokens)
        self.num_pairs = len(source)
        # A pair's uses are numbered across epochs, so an epoch reserves as many as the largest weight needs.
        self.uses_per_epoch = max([1, *map(math.ceil, weights)])
        self._sizes = sizes
        self._starts_of_sources = np.cumsum([0, *sizes[:-1]])
        self._places = []
        for i, (start, size, weight) in enumerate(zip(self._starts_of_sources, sizes, weights, strict=True)):
            own = slice(start, start + size)
            # A generator for each source: one more source at the end does not change which pairs of these are drawn.
            self._places.append(_Places(source[own], target[own], weight, np.random.default_rng((seed, i))))
        super().__init__(
            np.concatenate([places.source for places in self._places]),
            np.concatenate([places.target for places in self._places]),
            max_tokens,
            seed,
        )

    def __iter__(self) -> Iterator[list[int]]:
        pairs = [places.pairs(self.epoch) for places in self._places]
        # The places of a source begin with all of its pairs, as often as each epoch uses them.
        copies = [np.arange(len(own)) // max(size, 1) for own, size in zip(pairs, self._sizes, strict=True)]
        uses = self.epoch * self.uses_per_epoch + np.concatenate(copies)
        of_all = [start + own for start, own in zip(self._starts_of_sources, pairs, strict=True)]
        numbers = uses * self.num_pairs + np.concatenate(of_all)
        for places in super().__iter__():
            yield numbers[places].tolist()


class MixedRows(Rows):
    """The rows of several sources, for batches from `sampler`, which must have been called before rows are read.

    Args:
        rows: the rows of each source.
        weights: number of times that each pair of each source is used per epoch, on average.
        dropout: segments the words again whenever a pair is used; None to use the ids of `rows`.
        longest: the maximum number of tokens on either side of a pair, tags included; None for any number.
    """

    def __init__(
        self,
        rows: Sequence[Rows],
        weights: Sequence[float],
        dropout: BpeDropout | None = None,
        longest: int | None = None,
    ):
        self.rows = rows
        self.weights = weights
        self.dropout = dropout
        self.longest = longest
        # Rows that are streamed have no length, and cannot be mixed.
        self.sizes = [len(part) for part in rows]  # type: ignore[arg-type]
        self._starts = np.cumsum([0, *self.sizes])
        self._max_tokens = 0

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of source tokens and of target tokens of each pair, tags included, without dropout."""
        sources, targets = zip(*(part.lengths for part in self.rows), strict=True)
        return np.concatenate(sources), np.concatenate(targets)

    def sampler(self, max_tokens: int, seed: int, readers: int) -> WeightedBatchSampler:
        self._max_tokens = max_tokens
        lengths = self.lengths
        if self.dropout is not None:
            # never below the lengths without dropout, which every batch must have room for
            longer = (np.minimum(side, max_tokens) for side in self._lengths_with_dropout(self.dropout))
            lengths = tuple(map(np.maximum, lengths, longer))  # type: ignore[assignment]
        return WeightedBatchSampler(*lengths, max_tokens, self.sizes, self.weights, seed)

    def _lengths_with_dropout(self, dropout: BpeDropout) -> Iterator[np.ndarray]:
        """Yield, for either side, the mean length of the segmentations of each pair, as a sample of the text grows.

        Lengths are rounded up to few sizes, so that batches have room for most segmentations that are longer.
        """
        sample = np.linspace(0, len(self) - 1, min(len(self), SAMPLED_PAIRS)).astype(np.int64)
        rows = self._read(sample)
        for side, (name, lengths) in enumerate(zip(SIDES, self.lengths, strict=True)):
            original = lengths[sample]
            segmented = np.array([len(ids) for ids in dropout([row[name] for row in rows], sample, side)])
            growth = float(np.sum(segmented)) / float(np.sum(original))
            yield np.ceil(growth * lengths).astype(np.int64)

    def _read(self, pairs: np.ndarray) -> list[dict[str, np.ndarray]]:
        """Return the pairs with these numbers, without dropout."""
        source_of = np.searchsorted(self._starts, pairs, side="right") - 1
        rows: dict[int, Pair] = {}
        for source in np.unique(source_of).tolist():
            # All pairs of a source in one call, which reads its columns only once.
            places = np.flatnonzero(source_of == source)
            own = self.rows[source].__getitems__((pairs[places] - self._starts[source]).tolist())
            rows.update(zip(places.tolist(), own, strict=True))
        return [{name: np.asarray(rows[place][name]) for name in SIDES} for place in range(len(pairs))]

    def __getitems__(self, numbers: list[int]) -> list[dict[str, np.ndarray]]:
        """Return a batch of pairs, given the numbers that the sampler yields: `use * len(self) + pair`."""
        rows = self._read(np.asarray(numbers, dtype=np.int64) % len(self))
        if self.dropout is None:
            return rows
        limit = self._max_tokens // len(rows)
        if self.longest is not None:
            limit = min(limit, self.longest)
        for side, name in enumerate(SIDES):
            segmented = self.dropout([row[name] for row in rows], np.asarray(numbers), side)
            for row, ids in zip(rows, segmented, strict=True):
                # A segmentation for which the batch has no room is not used.
                if len(ids) <= limit:
                    row[name] = ids
        return rows
