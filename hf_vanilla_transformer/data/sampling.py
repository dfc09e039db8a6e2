"""Use the pairs of several sources at different rates, with the same batches in every epoch."""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from .batching import Lengths, MaxTokensBatchSampler, check_fits

Wait = Callable[[], np.ndarray]  # waits for the lengths (2, n) that are being measured, and returns them
ChangingLengths = Callable[[np.ndarray], Wait]
# Drawn or left out of each group of pairs of similar length. Larger groups would waste more padding, because a slot is
# as long as the longest pair of its group.
MIN_GROUP_PAIRS = 8


def temperature_weights(sizes: Sequence[int], temperature: float) -> list[float]:
    """Return weights that make the share of each source proportional to its size ** (1 / temperature).

    The largest source has weight 1. (Arivazhagan et al. 2019, section 3.1.)

    Args:
        sizes: number of pairs of each source.
        temperature: at least 1.
    """
    return [(size / max(sizes)) ** (1 / temperature - 1) for size in sizes]


class _Draws:
    """The pairs of one source that each epoch uses: all of them several times, and a changing part once more.

    Args:
        source, target: lengths of the pairs in tokens (n,).
        weight: number of times that each pair is used per epoch, on average.
    """

    def __init__(self, source: np.ndarray, target: np.ndarray, weight: float, generator: np.random.Generator):
        size = len(source)
        self.repeats = int(weight)
        part = weight % 1.0
        # Arrays of one entry per pair, in groups; they stay empty if every epoch uses all pairs equally often.
        self.pairs = self.place = self.size = self.drawn = np.zeros(0, dtype=np.int64)
        lengths = [np.tile(source, self.repeats), np.tile(target, self.repeats)]
        if size and (part * size >= 0.5 or not self.repeats):
            # Pairs of similar length form groups, and each epoch draws the next few pairs of every group. A slot is
            # as long as the longest pair of its group, so that every epoch has the same batches.
            order = np.lexsort((target, source, np.maximum(source, target)))
            per_group = int(np.ceil(MIN_GROUP_PAIRS / min(part, 1 - part)))
            bounds = np.arange(0, max(1, size // per_group) * per_group, per_group)
            ends = np.append(bounds[1:], size)

            # Round the running total and not each group, so that the epoch draws its exact part of the source.
            drawn = np.diff(np.floor(part * np.append(0, ends) + 0.5)).astype(np.int64)
            drawn[-1] += drawn.sum() == 0  # at least one pair per epoch

            group = np.repeat(np.arange(len(bounds)), ends - bounds)
            self.pairs = order[np.lexsort((generator.random(size), group))]
            self.place = np.arange(size) - bounds[group]
            self.size = (ends - bounds)[group]
            self.drawn = drawn[group]

            for side, values in enumerate((source, target)):
                longest = np.maximum.reduceat(values[order], bounds)
                lengths[side] = np.concatenate((lengths[side], np.repeat(longest, drawn)))
        self.source, self.target = lengths  # of each slot
        self._whole = np.tile(np.arange(size), self.repeats)

    def of_epoch(self, epoch: int) -> np.ndarray:
        """Return the pair in each slot."""
        # A window of `drawn` places moves around each group from epoch to epoch.
        drawn = (self.place - epoch * self.drawn) % np.maximum(self.size, 1) < self.drawn
        return np.concatenate((self._whole, self.pairs[drawn]))


class WeightedBatchSampler(MaxTokensBatchSampler):
    """Batches of at most `max_tokens` tokens from several sources, each used `weight` times its size per epoch.

    A weight of 3 uses each pair three times, a weight of 0.5 half of the pairs, and the other half in the next epoch.
    The pairs are numbered from source to source. Yields the numbers `use * len(source_lengths) + pair`, where `use` is
    different each time that the pair is used, so that what reads the pairs knows it, also in worker processes.

    Args:
        source_lengths, target_lengths: number of tokens of each pair.
        sizes: number of pairs of each source.
        weights: number of times that each source is used per epoch, positive and finite.
        changing_lengths: if the lengths change with every use, a function that starts to measure n of the numbers that
            are yielded, and returns a function that waits for the result: the numbers of tokens (2, n) of the sources
            and of the targets. Those of the next epoch are measured during an epoch. The pairs of each epoch are
            sorted by these lengths into batches of the same sizes. A batch may still have too little room for such a
            length, but it always has room for the pair's `source_lengths` and `target_lengths`.

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
        changing_lengths: ChangingLengths | None = None,
    ):
        source = np.asarray(source_lengths, dtype=np.int64)
        target = np.asarray(target_lengths, dtype=np.int64)
        self.offsets = np.cumsum([0, *sizes[:-1]])
        self._sizes = sizes
        self.num_pairs = len(source)
        # A pair's uses are numbered across epochs, so an epoch reserves as many as the largest weight needs.
        self.uses_per_epoch = max([1, *(math.ceil(weight) for weight in weights)])
        self.max_tokens = max_tokens
        self.changing_lengths = changing_lengths
        # By epoch, a function that waits for its lengths: those of the next epoch are measured during this one.
        self._measuring: dict[int, Wait] = {}

        # The length for which a pair's batch always has room.
        self._guaranteed = np.maximum(source, target)
        check_fits(self._guaranteed, max_tokens)
        if changing_lengths is not None:
            # Plan with the lengths of the first use, which are typical, but never below the guaranteed ones.
            self._first_lengths = changing_lengths(np.arange(len(source)))()
            source, target = np.clip(self._first_lengths, (source, target), max_tokens)

        self._draws = []
        for i, (start, size, weight) in enumerate(zip(self.offsets, sizes, weights, strict=True)):
            part = slice(start, start + size)
            # A generator for each source: one more source at the end does not change which pairs of these are drawn.
            self._draws.append(_Draws(source[part], target[part], weight, np.random.default_rng((seed, i))))
        source = np.concatenate([draws.source for draws in self._draws])
        target = np.concatenate([draws.target for draws in self._draws])
        super().__init__(source, target, max_tokens, seed)

    def _numbers(self, epoch: int) -> np.ndarray:
        """Return the number in each slot of an epoch."""
        parts = [start + draws.of_epoch(epoch) for start, draws in zip(self.offsets, self._draws, strict=True)]
        copies = [np.arange(len(part)) // max(size, 1) for part, size in zip(parts, self._sizes, strict=True)]
        uses = epoch * self.uses_per_epoch + np.concatenate(copies)
        return uses * self.num_pairs + np.concatenate(parts)

    def _start_measuring(self, epoch: int) -> Wait:
        """Start to measure the lengths of the pairs in the slots of an epoch."""
        assert self.changing_lengths is not None
        numbers = self._numbers(epoch)
        # The lengths of the first use were measured when the batches were planned.
        new = numbers >= self.num_pairs
        measured = self.changing_lengths(numbers[new])

        def wait() -> np.ndarray:
            lengths = np.empty((2, len(numbers)), np.int64)
            lengths[:, ~new] = self._first_lengths[:, numbers[~new]]
            lengths[:, new] = measured()
            return lengths

        return wait

    def __iter__(self) -> Iterator[list[int]]:
        numbers = self._numbers(self.epoch)
        batches: Iterable[list[int] | np.ndarray]
        if self.changing_lengths is None:
            batches = super().__iter__()
        else:
            wait = self._measuring.pop(self.epoch, None) or self._start_measuring(self.epoch)
            batches = self._batches_by_new_lengths(numbers, *wait())
            if self.epoch + 1 < self.epochs:
                self._measuring = {self.epoch + 1: self._start_measuring(self.epoch + 1)}
        for slots in batches:
            yield numbers[slots].tolist()

    def stop(self) -> None:
        """Stop measuring the lengths of the next epoch in the background."""
        self._measuring.clear()

    def _batches_by_new_lengths(self, numbers: np.ndarray, source: np.ndarray, target: np.ndarray) -> list[np.ndarray]:
        """Divide the slots of an epoch into batches of the planned sizes by the lengths of this epoch."""
        generator = np.random.default_rng((self.seed, self.epoch))
        slots = generator.permutation(len(numbers))  # decides between pairs of equal lengths
        # A length above `max_tokens` counts as that; what reads the pair replaces it by the guaranteed one.
        slots = slots[self._sort(source[slots], target[slots], self.max_tokens)[0]]

        # From the batch of the shortest pairs to that of the longest, take the next pairs whose guaranteed length
        # fits. There are always enough, because the batches were planned for as many pairs of at least this length.
        guaranteed = self._guaranteed[numbers[slots] % max(self.num_pairs, 1)]
        places = np.argsort(guaranteed, kind="stable")
        sizes = np.diff(self._starts, append=len(slots))
        fitting = np.searchsorted(guaranteed[places], self.max_tokens // sizes, side="right")

        # A heap of places in the order of this epoch's lengths, of all pairs that fit but are not used yet.
        waiting: list[int] = []
        batches = []
        for size, (start, end) in zip(sizes.tolist(), itertools.pairwise([0, *fitting.tolist()]), strict=True):
            for place in places[start:end].tolist():
                heapq.heappush(waiting, place)
            batches.append(slots[[heapq.heappop(waiting) for _ in range(size)]])
        return [batches[batch] for batch in generator.permutation(len(batches))]
