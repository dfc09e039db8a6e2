"""Tokenised pairs of different lengths, for tests of training."""

import torch
from datasets import Dataset


def pairs(lengths: list[tuple[int, int]]) -> Dataset:
    """Return random pairs with these source and target lengths in tokens, including `</s>` (id 2)."""
    generator = torch.Generator().manual_seed(1)
    rows: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for pair_lengths in lengths:
        for name, length in zip(rows, pair_lengths, strict=True):
            rows[name].append([*torch.randint(4, 50, (length - 1,), generator=generator).tolist(), 2])
    return Dataset.from_dict(rows)


# No two of these fit in a batch of 16 tokens.
UNEQUAL = [(9, 16), (16, 9), (10, 14), (12, 12), (11, 15), (15, 13), (14, 10), (13, 11)]
