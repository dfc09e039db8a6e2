"""Checks of lesson 1: embeddings and positions."""

from collections.abc import Callable

import torch

from hf_vanilla_transformer.model.layers_vanilla_transformer import sinusoids

from .comparing import compare, require, require_result


def check_embed(answer: Callable) -> None:
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(20, 16, generator=generator)
    tokens = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
    rows = torch.nn.functional.embedding(tokens, matrix)
    mistakes = {
        "the rows are right, but not scaled by sqrt(d_model).": rows,
        "scaled by d_model. Take its square root.": rows * 16,
        "divided by sqrt(d_model), as scores are. Embeddings are multiplied.": rows / 4,
        "scaled by the square root of the vocabulary. Use d_model, the width of the matrix.": rows * 20**0.5,
    }
    compare("embed", answer(tokens, matrix), rows * 4, mistakes)
    print("embed is correct.")


def check_positions(answer: Callable) -> None:
    columns = torch.arange(16, dtype=torch.float64)
    position = torch.arange(60, dtype=torch.float64)[:, None]
    even = columns - columns % 2

    def interleaved(frequency: torch.Tensor) -> torch.Tensor:
        angle = position * frequency
        return torch.where(columns % 2 == 0, angle.sin(), angle.cos())

    expected = sinusoids(60, 16)
    cosines_first = expected.unflatten(1, (8, 2)).flip(2).flatten(1)
    mistakes = {
        "the exponent is doubled: if i already steps by two, it is i / d_model and not 2 i / d_model.": interleaved(
            10000 ** (-2 * even / 16)
        ),
        "odd columns have a frequency of their own. Columns 2i and 2i + 1 share one.": interleaved(
            10000 ** (-columns / 16)
        ),
        "the exponent is doubled, and odd columns have a frequency of their own.": interleaved(
            10000 ** (-2 * columns / 16)
        ),
        "the exponent is halved: it is 2 i / d_model, i counting the pairs of columns.": interleaved(
            10000 ** (-even / 32)
        ),
        "all sines come first, then all cosines. The paper interleaves them.": torch.cat(
            (expected[:, 0::2], expected[:, 1::2]), 1
        ),
        "sines and cosines are exchanged: even columns are sines.": cosines_first,
        "these are the angles. Take their sines and cosines.": position * 10000 ** (-even / 16),
        "the table is transposed: each position has a row.": expected.T,
    }
    result = answer(60, 16)
    compare("positions", result, expected, mistakes)
    require(result.dtype == torch.float64, f"positions has the type {result.dtype}. Begin with float64 numbers.")
    print("positions is correct.")


def check_shift_matrix(answer: Callable) -> None:
    table = sinusoids(60, 16)
    for k in (1, 7):
        matrix = answer(k, 16)
        require_result("shift_matrix", matrix)
        require(
            matrix.shape == (16, 16),
            f"shift_matrix returns the shape {tuple(matrix.shape)}, expected (16, 16).",
        )
        matrix = matrix.double()
        mistakes = {
            "the rotation goes backwards, to PE(pos - k). PE(pos) is a row, so M stands on its right: transpose it.": (
                table[20 - k : 40 - k]
            ),
            "this is the identity: nothing is shifted.": table[20:40],
            "this is the shift by one position. Multiply the angle by k.": table[21:41],
        }
        compare("shift_matrix", table[20:40] @ matrix, table[20 + k : 40 + k], mistakes)
        blocks = torch.block_diag(*torch.ones(8, 2, 2))
        require(
            (matrix * (1 - blocks)).abs().max() < 1e-9,
            "shift_matrix has other entries than its 2 x 2 blocks: compute it from the angles, without a fit.",
        )
    print("shift_matrix is correct.")
