"""Batch by token count: "sentence pairs were batched together by approximate sequence length" (section 5.1)."""

from collections.abc import Iterator, Mapping, Sequence
from reprlib import repr as shortened
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, Sampler

from ..errors import UserError
from ..model.configuration_vanilla_transformer import IGNORED_LABEL
from ..model.layers_vanilla_transformer import shift_right

Lengths = Sequence[int] | np.ndarray
SIDES = ("input_ids", "labels")
Pair = Mapping[str, Sequence[int] | np.ndarray]  # token ids of both sides


def _round_up(lengths: np.ndarray) -> np.ndarray:
    """Round lengths up to one of 8 steps per power of two: up to 16 is unchanged, 17 becomes 18, 33 becomes 36."""
    # Few different lengths leave many pairs of equal length to shuffle, and 8 steps add at most an eighth of padding.
    step = 2 ** np.maximum(np.floor(np.log2(np.maximum(lengths - 1, 1))).astype(np.int64) - 3, 0)
    return -(-lengths // step) * step


def check_fits(lengths: np.ndarray, max_tokens: int) -> None:
    """Check that every pair, given by its longer side in tokens, fits into a batch.

    Raises:
        ValueError: if one does not; the message names the pair.
    """
    if len(lengths) and lengths.max() > max_tokens:
        pair = f"Pair {np.argmax(lengths)} has {lengths.max()} tokens, which exceeds max_tokens ({max_tokens})."
        raise UserError(f"{pair} Remove the pair or raise max_tokens.")


class MaxTokensBatchSampler(Sampler[list[int]]):
    """Batches of pairs of similar length, with at most `max_tokens` source and target tokens each, including padding.

    Every epoch yields each pair exactly once, and every epoch has the same number of batches. Pairs are sorted by
    their rounded-up lengths and divided into batches once, as if each pair had its rounded length. Each epoch then
    shuffles the pairs of equal rounded lengths among themselves, and shuffles the order of the batches.

    Args:
        source_lengths, target_lengths: number of tokens of each pair, including `</s>`; one number per pair.
        max_tokens: maximum number of tokens in the source and in the target of a batch, including padding.
        seed: seed of the shuffling, combined with the epoch.
        shuffle: whether to shuffle; if False, batches are ordered from the shortest pairs to the longest, as for
            evaluation.

    Raises:
        ValueError: if a single pair is longer than `max_tokens` (the message names the pair), or the two lists differ
            in length.
    """

    # accelerate reads both attributes when it divides the batches among processes; None: they vary in size.
    batch_size = None
    drop_last = False

    def __init__(
        self, source_lengths: Lengths, target_lengths: Lengths, max_tokens: int, seed: int = 0, shuffle: bool = True
    ):
        source = np.asarray(source_lengths, dtype=np.int64)
        target = np.asarray(target_lengths, dtype=np.int64)
        if source.shape != target.shape:
            raise ValueError(f"There are {len(source)} source lengths but {len(target)} target lengths.")
        check_fits(np.maximum(source, target), max_tokens)
        self.seed = seed
        self.epoch = 0
        self.shuffle = shuffle
        self._order, self._buckets, longest = self._sort(source, target, max_tokens)
        self._starts = self._batch_starts(longest, max_tokens)

    @staticmethod
    def _sort(source: np.ndarray, target: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sort pairs by their rounded-up lengths.

        Returns:
            The order of the pairs; and in this order, a number that is equal for pairs of equal rounded lengths, and
            the longer rounded length.
        """
        source = np.minimum(_round_up(source), max_tokens)
        target = np.minimum(_round_up(target), max_tokens)
        # Sort by the longer side, which limits the batch size, and then by the difference of the sides, ascending for
        # one length of the longer side and descending for the next, so that neighbours are similar in both lengths.
        longest = np.maximum(np.maximum(source, target), 1)  # an empty pair takes up a row, too
        rank = np.cumsum(np.bincount(longest) > 0)[longest]  # 1 for the shortest length that occurs
        # The last key of lexsort is the first criterion.
        order = np.lexsort((np.where(rank % 2, source - target, target - source), longest))
        # No length exceeds max_tokens, so each pair of lengths has a number of its own.
        return order, (target * (max_tokens + 1) + source)[order], longest[order]

    @staticmethod
    def _batch_starts(longest: np.ndarray, max_tokens: int) -> np.ndarray:
        """Return where each batch starts if every batch takes as many pairs as fit; `longest` is sorted."""
        starts = [0] if len(longest) else []
        # One step per length instead of per pair: a corpus has millions of pairs, but few hundred rounded lengths.
        lengths, counts = np.unique(longest, return_counts=True)
        ends = np.cumsum(counts)
        for length, first, end in zip(lengths.tolist(), ends - counts, ends, strict=True):
            # The first pair of this length that does not fit into the last batch starts a batch; so does every
            # pair that a full batch of this length precedes.
            start = max(starts[-1] + max_tokens // length, first)
            starts += range(start, end, max_tokens // length)
        return np.array(starts, dtype=np.int64)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the shuffling."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order
        batches = np.arange(len(self))
        if self.shuffle:
            # Only the seed and the epoch decide, so that every process, and a resumed run, plans the same batches.
            generator = np.random.default_rng((self.seed, self.epoch))

            # Shuffle within each run of equal buckets: sort by the number of the run, with random tie-breaking.
            run = np.cumsum(np.diff(self._buckets, prepend=self._buckets[:1]) != 0)
            order = order[np.lexsort((generator.random(len(order)), run))]
            batches = generator.permutation(batches)

        ends = np.append(self._starts[1:], len(order))
        for batch in batches:
            yield order[self._starts[batch] : ends[batch]].tolist()


def batches_by_length(source_lengths: Lengths, target_lengths: Lengths, max_tokens: int) -> list[list[int]]:
    """Return the batches of `MaxTokensBatchSampler`, shortest pairs first, but accept pairs of any length.

    A pair longer than `max_tokens` forms a batch of its own, at the end; the other batches are unaffected.
    """
    source = np.asarray(source_lengths, dtype=np.int64)
    target = np.asarray(target_lengths, dtype=np.int64)
    longest = np.maximum(source, target)
    fitting = np.flatnonzero(longest <= max_tokens)
    too_long = np.flatnonzero(longest > max_tokens)

    sampler = MaxTokensBatchSampler(source[fitting], target[fitting], max_tokens, shuffle=False)
    singles = too_long[np.argsort(longest[too_long])]
    return [*(fitting[batch].tolist() for batch in sampler), *([int(i)] for i in singles)]


def pad(rows: Sequence[Lengths], value: int, round_to: int = 0) -> torch.Tensor:
    """Return the rows as one tensor (B, T), padded at the end with `value` to the longest row.

    Args:
        round_to: round T up to one of few lengths, but to no more than this.
    """
    # Not pad_sequence of torch, which would make a tensor of every row first.
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    longest = int(np.max(lengths, initial=0))
    length = max(longest, min(int(_round_up(np.array(longest))), round_to))
    padded = np.full((len(rows), length), value)
    if padded.size:
        # A Boolean index is filled row by row: (B, T), true where there are tokens.
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.concatenate(rows)
    return torch.from_numpy(padded)


class Rows(TorchDataset):
    """Tokenised pairs: rows with the token ids "input_ids" and "labels", in the batches of `sampler`."""

    @property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of source tokens and of target tokens of each pair, (n,) each."""
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> Sequence[Pair]:
        """Return several rows at once, as the fetcher of torch asks for a batch."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Pair:
        return self.__getitems__([index])[0]

    def sampler(self, max_tokens: int, seed: int, readers: int) -> "MaxTokensBatchSampler | None":
        """Return the sampler of the batches of every epoch, or None if the rows are whole batches already.

        Args:
            max_tokens: maximum number of tokens in the source and in the target of a batch, including padding.
            seed: seed of the order of the pairs.
            readers: number of workers that read the rows, in each process.
        """
        return MaxTokensBatchSampler(*self.lengths, max_tokens, seed=seed)


class GivenRows(Rows):
    """Rows of any dataset with a length, such as a list.

    Args:
        dataset: the dataset.
    """

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: list[int]) -> Sequence[Pair]:
        # A Dataset of `datasets` reads them all at once.
        several = getattr(self.dataset, "__getitems__", None)
        return several(indices) if several else [self.dataset[index] for index in indices]

    @property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        # Tokenised text has its lengths as columns, so that no row has to be read.
        if {"source_length", "target_length"} <= {*getattr(self.dataset, "column_names", ())}:
            return np.asarray(self.dataset["source_length"][:]), np.asarray(self.dataset["target_length"][:])
        pairs = [[len(row[side]) for side in SIDES] for row in self.dataset]
        source, target = np.asarray(pairs, dtype=np.int64).reshape(-1, 2).T
        return source, target


class TokenRows(GivenRows):
    """Rows of a tokenised Arrow dataset, as NumPy arrays instead of lists of Python integers.

    Args:
        dataset: a `Dataset` of `datasets` with lists of "input_ids" and "labels".
        prefix: token ids with which every source starts.
    """

    def __init__(self, dataset: Any, prefix: Sequence[int] = ()):
        super().__init__(dataset)
        self.prefix = prefix
        self._tables = dataset.select_columns(list(SIDES)).with_format("arrow")

    @property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        source, target = super().lengths
        return source + len(self.prefix), target

    def __getitems__(self, indices: list[int]) -> list[dict[str, np.ndarray]]:
        table = self._tables[indices]
        rows: list[dict[str, np.ndarray]] = [{} for _ in indices]
        for side in SIDES:
            column = table.column(side).combine_chunks()
            ends = np.cumsum(column.value_lengths().to_numpy())
            for row, ids in zip(rows, np.split(column.flatten().to_numpy(), ends[:-1]), strict=True):
                row[side] = ids
        if self.prefix:
            for row in rows:
                row["input_ids"] = np.concatenate((np.array(self.prefix, row["input_ids"].dtype), row["input_ids"]))
        return rows


def as_rows(dataset: Any) -> Rows | None:
    """Return the rows of whatever is given to a trainer as its dataset, or None for a stream.

    Raises:
        ValueError: if the dataset is empty, or its rows are not pairs of token ids.
    """
    if isinstance(dataset, Rows):
        return dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return None
    if isinstance(dataset, Mapping):
        raise UserError(f"Give one dataset, not all of {', '.join(map(str, dataset)) or 'an empty dictionary'}.")
    if not len(dataset):
        raise UserError("The dataset is empty: it needs at least one pair of a sentence and its translation.")
    row = dataset[0]
    if not isinstance(row, Mapping) or not {*SIDES} <= row.keys():
        kind = f"only {', '.join(map(str, row)) or 'nothing'}" if isinstance(row, Mapping) else type(row).__name__
        raise UserError(f'The rows of a dataset must have "input_ids" and "labels", token ids; this one has {kind}.')
    for side in SIDES:
        ids = np.asarray(row[side])
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            raise UserError(
                f'"{side}" in the rows of a dataset must be lists of token ids, not {shortened(row[side])}.'
            )
    return GivenRows(dataset)


def sized_rows(dataset: Any) -> Rows:
    """Return the rows of a dataset to evaluate, which must have a length.

    Raises:
        ValueError: if it has none; or as `as_rows`.
    """
    rows = as_rows(dataset)
    if rows is None or not hasattr(rows, "__len__"):
        raise UserError(
            f"A dataset to evaluate must have a length, which a stream ({type(dataset).__name__}) has not: read it "
            "first, for example with Dataset.from_list(list(stream))."
        )
    return rows


def by_name(dataset: Any) -> dict[str, Any]:
    """Return the datasets given to a trainer for evaluation by name; a single one has the name "".

    Raises:
        ValueError: if there is none.
    """
    if not isinstance(dataset, dict):
        return {"": dataset}
    if not dataset:
        raise UserError("There is no dataset to evaluate: the dictionary of datasets is empty.")
    return dict(dataset)


def unpadded(pair: Pair) -> tuple[list[int], list[int]]:
    """Return the token ids of both sides of a pair that may be padded, without those that do not count."""
    source = pair["input_ids"]
    mask = pair.get("attention_mask", [1] * len(source))
    return (
        [int(token) for token, counts in zip(source, mask, strict=True) if counts],
        [int(token) for token in pair["labels"] if token != IGNORED_LABEL],
    )


class Seq2SeqCollator:
    """Pad a batch of tokenised pairs, and shift the labels to obtain the decoder input.

    *Shape:* `input_ids`, `attention_mask` (B, S); `labels`, `decoder_input_ids` (B, T). Labels are -100 at padding.
    Rows may have masks and decoder inputs of their own, which are padded too, or have no labels. Other columns are
    left out.

    Args:
        round_to: round S and T up to few different lengths, but to no more than this. On a GPU, the first matrix
            product of a new shape takes many times as long as the next, and most batches would have a new one.
        max_tokens: round to no more tokens per side than this; None for any number.
    """

    def __init__(
        self, pad_token_id: int, decoder_start_token_id: int, round_to: int = 0, max_tokens: int | None = None
    ):
        self.pad_token_id = pad_token_id
        self.decoder_start_token_id = decoder_start_token_id
        self.round_to = round_to
        self.max_tokens = max_tokens

    def __call__(self, pairs: Sequence[Pair]) -> dict[str, torch.Tensor]:
        round_to = self.round_to
        if self.max_tokens is not None:
            round_to = min(round_to, self.max_tokens // len(pairs))
        # The columns that a row may have, with their values at padding.
        values = {
            "input_ids": self.pad_token_id,
            "attention_mask": 0,
            "labels": IGNORED_LABEL,
            "decoder_input_ids": self.pad_token_id,
            "decoder_attention_mask": 0,
        }
        batch = {
            name: pad([pair[name] for pair in pairs], value, round_to)
            for name, value in values.items()
            if name in pairs[0]
        }

        if "attention_mask" not in batch:
            batch["attention_mask"] = self._within(pairs, "input_ids", batch).long()
        if "labels" in batch and "decoder_input_ids" not in batch:
            shifted = shift_right(batch["labels"], self.pad_token_id, self.decoder_start_token_id)
            # The shift moves the `</s>` of a shorter target to its first padded position, where it is padding too.
            padded = ~self._within(pairs, "labels", batch)
            batch["decoder_input_ids"] = shifted.masked_fill(padded, self.pad_token_id)
        return batch

    @staticmethod
    def _within(pairs: Sequence[Pair], name: str, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return where a padded column holds what its rows held, true or false, (B, T)."""
        # By length and not by token: a tokenizer may use the padding token inside a text.
        lengths = torch.tensor([len(pair[name]) for pair in pairs])[:, None]
        return torch.arange(batch[name].shape[1]) < lengths
