"""Tokenised pairs of uneven lengths, for tests of training."""

import torch
from datasets import Dataset


def pairs(lengths: list[tuple[int, int]]) -> Dataset:
    generator = torch.Generator().manual_seed(1)
    rows: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for lengths_of_pair in lengths:
        for name, length in zip(rows, lengths_of_pair, strict=True):
            rows[name].append([*torch.randint(4, 50, (length - 1,), generator=generator).tolist(), 2])
    return Dataset.from_dict(rows)


UNEQUAL = [(9, 16), (16, 9), (10, 14), (12, 12), (11, 15), (15, 13), (14, 10), (13, 11)]  # no two fit in 16 tokens
