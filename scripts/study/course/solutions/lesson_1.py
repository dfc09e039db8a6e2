"""Answers to lesson 1, and wrong answers that its checks reject."""

from collections.abc import Callable

import torch


def embed(tokens, matrix):
    """Return the scaled embeddings. *Shape:* tokens (B, T), matrix (V, d_model) to (B, T, d_model)."""
    return matrix[tokens] * matrix.shape[1] ** 0.5


def positions(length, d_model):
    """Return the table of sinusoids, without a loop. *Shape:* (length, d_model), float64."""
    # arange() counts 2i
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    # (length, 1) * (d_model / 2,)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)


def shift_matrix(k, d_model):
    """Return the matrix M for which PE(pos) @ M = PE(pos + k), PE(pos) being a row. *Shape:* (d_model, d_model)."""
    angle = k * 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    # (sin a, cos a) times each block is (sin a cos b + cos a sin b, cos a cos b - sin a sin b)
    rows = torch.stack((torch.stack((angle.cos(), -angle.sin()), -1), torch.stack((angle.sin(), angle.cos()), -1)), 1)
    return torch.block_diag(*rows)


def table(length, exponents):
    angle = torch.arange(length, dtype=torch.float64)[:, None] * 10000.0**-exponents
    return torch.where(torch.arange(len(exponents)) % 2 == 0, angle.sin(), angle.cos())


def doubled_exponent(length, d_model):
    columns = torch.arange(d_model, dtype=torch.float64)
    return table(length, 2 * (columns - columns % 2) / d_model)


def separate_frequencies(length, d_model):
    return table(length, torch.arange(d_model, dtype=torch.float64) / d_model)


def sines_first(length, d_model):
    right = positions(length, d_model)
    return torch.cat((right[:, 0::2], right[:, 1::2]), 1)


# for each exercise, wrong answers by words of the message that rejects them
WRONG_ANSWERS: dict[str, dict[str, Callable]] = {
    "embed": {
        "not scaled": lambda tokens, matrix: matrix[tokens],
        "divided by": lambda tokens, matrix: matrix[tokens] / matrix.shape[1] ** 0.5,
        "of the vocabulary": lambda tokens, matrix: matrix[tokens] * len(matrix) ** 0.5,
    },
    "positions": {
        "exponent is doubled": doubled_exponent,
        "frequency of their own": separate_frequencies,
        "all sines come first": sines_first,
    },
    "shift_matrix": {
        "backwards": lambda k, d_model: shift_matrix(k, d_model).T,
        "shift by one": lambda k, d_model: shift_matrix(1, d_model),
        "identity": lambda k, d_model: torch.eye(d_model),
    },
}
