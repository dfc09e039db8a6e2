"""Batches by tokens: "sentence pairs were batched together by approximate sequence length" (section 5.1)."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from ..model.layers_vanilla_transformer import IGNORED_LABEL


def _rounded_up(lengths: np.ndarray) -> np.ndarray:
    """Lengths rounded up to one of 8 steps an octave: up to 16 they stay, 17 becomes 18, 33 becomes 36."""
    step = 2 ** np.maximum(np.floor(np.log2(np.maximum(lengths - 1, 1))).astype(np.int64) - 3, 0)
    return -(-lengths // step) * step


class MaxTokensBatchSampler(Sampler[list[int]]):
    """Batches of pairs of similar length, each at most `max_tokens` tokens a side with its padding.

    Every epoch brings every pair exactly once, in the same number of batches: pairs are sorted by their lengths,
    rounded up, and cut into batches once, as if each pair had its rounded length. Each epoch then shuffles the pairs
    among those of equal rounded lengths, and the order of the batches.

    Args:
        source_lengths, target_lengths: tokens of each pair, with `</s>`; one number a pair.
        max_tokens: the most tokens, padding included, that a batch's source or target may hold.
        seed: with the epoch, decides the shuffling.
        shuffle: whether to shuffle at all; without it batches come shortest pairs first, as evaluation wants.

    Raises:
        ValueError: if a pair alone is longer than `max_tokens`, naming it, or the two lists differ in length.
    """

    batch_size = None  # tells accelerate that batches vary in size
    drop_last = False

    def __init__(
        self,
        source_lengths: Sequence[int],
        target_lengths: Sequence[int],
        max_tokens: int,
        seed: int = 0,
        shuffle: bool = True,
    ):
        source, target = np.asarray(source_lengths, dtype=np.int64), np.asarray(target_lengths, dtype=np.int64)
        if source.shape != target.shape:
            raise ValueError(f"There are {len(source)} source lengths but {len(target)} target lengths.")
        longest = np.maximum(source, target)
        if len(longest) and longest.max() > max_tokens:
            raise ValueError(
                f"Pair {longest.argmax()} has {longest.max()} tokens, more than a whole batch (max_tokens "
                f"{max_tokens}). Leave it out or raise max_tokens."
            )
        self.seed, self.epoch, self.shuffle = seed, 0, shuffle
        source, target = np.minimum(_rounded_up(source), max_tokens), np.minimum(_rounded_up(target), max_tokens)
        # Sorted by the longer side, since it bounds the batch. From one such length to the next, the difference of the
        # sides runs up and down in turn, so that neighbours stay alike in both
        longest = np.maximum(source, target)
        _, rank = np.unique(longest, return_inverse=True)
        self._order = np.lexsort((np.where(rank % 2, target - source, source - target), longest))
        self._cell = (target * (max_tokens + 1) + source)[self._order]
        self._starts = self._cut(longest[self._order], max_tokens)

    @staticmethod
    def _cut(longest: np.ndarray, max_tokens: int) -> np.ndarray:
        """Where batches start, when each takes as many pairs as it can; `longest` is sorted."""
        starts, start = [], 0
        for i, length in enumerate(longest.tolist()):
            if length * (i + 1 - start) > max_tokens:
                starts.append(start)
                start = i
        return np.array([*starts, start] if len(longest) else [], dtype=np.int64)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch's shuffling."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[list[int]]:
        order, batches = self._order, np.arange(len(self))
        if self.shuffle:
            generator = np.random.default_rng((self.seed, self.epoch))
            # within each run of equal cells: sort by cell position, ties at random
            run = np.cumsum(np.diff(self._cell, prepend=self._cell[:1]) != 0)
            order = order[np.lexsort((generator.random(len(order)), run))]
            batches = generator.permutation(batches)
        ends = np.append(self._starts[1:], len(order))
        for batch in batches:
            yield order[self._starts[batch] : ends[batch]].tolist()


def batches_by_length(
    source_lengths: Sequence[int], target_lengths: Sequence[int], max_tokens: int
) -> list[list[int]]:
    """Batches as `MaxTokensBatchSampler` makes them, the shortest pairs first, for whatever lengths there are.

    A pair longer than `max_tokens` is a batch of its own, at the end; it leaves the others as they are.
    """
    source, target = np.asarray(source_lengths, dtype=np.int64), np.asarray(target_lengths, dtype=np.int64)
    longest = np.maximum(source, target)
    fits, beyond = np.flatnonzero(longest <= max_tokens), np.flatnonzero(longest > max_tokens)
    sampler = MaxTokensBatchSampler(source[fits].tolist(), target[fits].tolist(), max_tokens, shuffle=False)
    return [*(fits[batch].tolist() for batch in sampler), *([int(i)] for i in beyond[np.argsort(longest[beyond])])]


def pad(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    """(B, longest row) with `value` after each row's end."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, value)


class Seq2SeqCollator:
    """Pads a batch of tokenised pairs and shifts the labels into the decoder's input.

    *Shape:* `input_ids`, `attention_mask` (B, S); `labels`, `decoder_input_ids` (B, T); labels are -100 at padding.
    """

    def __init__(self, pad_token_id: int, decoder_start_token_id: int):
        self.pad_token_id = pad_token_id
        self.decoder_start_token_id = decoder_start_token_id

    def __call__(self, pairs: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        sources, targets = [pair["input_ids"] for pair in pairs], [pair["labels"] for pair in pairs]
        return {
            "input_ids": pad(sources, self.pad_token_id),
            "attention_mask": pad([[1] * len(source) for source in sources], 0),
            "decoder_input_ids": pad(
                [[self.decoder_start_token_id, *target[:-1]] for target in targets], self.pad_token_id
            ),
            "labels": pad(targets, IGNORED_LABEL),
        }
