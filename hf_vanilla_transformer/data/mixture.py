"""Training text from several sources, with tags and BPE dropout applied as pairs are read."""

import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from .batching import Pair, Rows
from .bpe_dropout import BpeDropout
from .cleaning import available_cores
from .sampling import WeightedBatchSampler
from .workers import prepare_data_worker

PAIRS_PER_BLOCK = 10_000  # measured at once before an epoch with BPE dropout
BLOCKS_PER_WORKER = 4  # at least; less work is done sooner than workers start
MAX_WORKERS = 8  # each with some 100 MB of segmentations
SIDES = ("input_ids", "labels")
DRAWS = 4  # segmentations tried for a sentence before it is used without dropout


def _stay_in_background(worker: int) -> None:
    """Let training have the cores first, and end with it."""
    prepare_data_worker(worker)
    # of Ctrl-C, which reaches all processes; the one that trains then ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(10)


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
        self.longest = longest
        self.weights = weights
        self.dropout = dropout
        # Rows that are streamed have no length, and cannot be mixed.
        self.sizes = [len(each) for each in rows]  # type: ignore[arg-type]
        self._starts = np.cumsum([0, *self.sizes])
        self._max_tokens = 0

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of source tokens and of target tokens of each pair, tags included, without dropout."""
        sources, targets = zip(*(each.lengths for each in self.rows), strict=True)
        return np.concatenate(sources), np.concatenate(targets)

    def segmented_lengths(self, numbers: np.ndarray) -> np.ndarray:
        """Return the lengths (2, n) of sources and targets that BPE dropout gives, for numbers of the sampler."""
        assert self.dropout is not None
        uses, pairs = np.divmod(numbers, len(self))
        rows = self._read(pairs)
        sides = ([row[name] for row in rows] for name in SIDES)
        return np.stack([self.dropout.lengths(texts, pairs, uses, side, 0) for side, texts in enumerate(sides)])

    def measure(self, numbers: np.ndarray, progress: bool = False) -> Callable[[], np.ndarray]:
        """Start to measure the `segmented_lengths`, and return a function that waits for them.

        Worker processes measure a large text, on all cores; a small text is measured when the function is called.

        Args:
            progress: whether to show a progress bar if the wait is long.
        """
        # Sorted, because pairs that are read together should be neighbours in their file.
        order = np.argsort(numbers)
        ordered = numbers[order]
        # In blocks, so that only the lengths of a corpus are in memory and not its tokens.
        blocks = [ordered[start : start + PAIRS_PER_BLOCK] for start in range(0, len(ordered), PAIRS_PER_BLOCK)]
        cores = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        workers = min(max(1, cores), MAX_WORKERS, len(blocks) // BLOCKS_PER_WORKER)
        # A process that is not forked would first import everything, and receive all numbers
        if multiprocessing.get_all_start_methods()[0] != "fork":
            workers = 0
        loader: DataLoader = DataLoader(
            blocks,  # type: ignore[arg-type]  # a list is a dataset, too
            batch_size=None,
            collate_fn=self.segmented_lengths,  # type: ignore[arg-type]
            num_workers=workers,
            worker_init_fn=_stay_in_background,
            # All blocks are handed out at once, so that no worker waits until the results are asked for.
            prefetch_factor=math.ceil(len(blocks) / workers) if workers else None,
            # With a generator of its own, the loader draws nothing from that of training.
            generator=torch.Generator(),
        )
        results = iter(loader)

        def wait() -> np.ndarray:
            lengths = [np.empty((2, 0), np.int64)]
            shown = {"desc": "Segmenting", "unit": " pairs", "delay": 5, "leave": False}
            # None: only in a terminal
            shown["disable"] = not progress or None
            with tqdm(total=len(numbers), **shown) as bar:
                for block in results:
                    lengths.append(block)
                    bar.update(block.shape[1])
            # the inverse of the sorting
            return np.concatenate(lengths, axis=1)[:, np.argsort(order)]

        return wait

    def sampler(self, max_tokens: int, seed: int, readers: int, progress: bool) -> WeightedBatchSampler:
        self._max_tokens = max_tokens
        measure = partial(self.measure, progress=progress) if self.dropout else None
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
            if self.longest is not None:
                limit = min(limit, self.longest)
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
