"""Checks of lesson 4: feed-forward networks and normalisation."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from .comparing import compare


def check_feed_forward(answer: Callable) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, 6, generator=generator)
    w1 = torch.randn(6, 9, generator=generator)
    b1 = torch.randn(9, generator=generator)
    w2 = torch.randn(9, 6, generator=generator)
    b2 = torch.randn(6, generator=generator)
    expected = F.linear(F.linear(x, w1.T, b1).relu(), w2.T, b2)
    mistakes = {
        "the ReLU is missing: two linear layers without it are one linear layer.": (x @ w1 + b1) @ w2 + b2,
        "a second ReLU after W2: negative outputs are lost.": expected.relu(),
        "x is added. The layer around it adds the residual, and would add it twice.": expected + x,
        "the biases are missing.": (x @ w1).relu() @ w2,
        "the bias b1 is added after the ReLU. It belongs inside max(0, ...).": ((x @ w1).relu() + b1) @ w2 + b2,
    }
    compare("feed_forward", answer(x, w1, b1, w2, b2), expected, mistakes)
    print("feed_forward is correct.")


def check_layer_norm(answer: Callable) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 5, 6, generator=generator, dtype=torch.float64)
    weight = torch.randn(6, generator=generator, dtype=torch.float64)
    bias = torch.randn(6, generator=generator, dtype=torch.float64)
    # so large that its place shows
    eps = 0.1
    centred = x - x.mean(-1, keepdim=True)
    variance = x.var(-1, keepdim=True, correction=0)
    unbiased = x.var(-1, keepdim=True)
    rows = x - x.mean(0, keepdim=True)
    mistakes = {
        "eps is added to the standard deviation. Add it to the variance, inside the root.": (
            centred / (variance.sqrt() + eps) * weight + bias
        ),
        "eps is added to the standard deviation, which moreover divides by n - 1. Use var(correction=0) + eps.": (
            centred / (unbiased.sqrt() + eps) * weight + bias
        ),
        "the variance divides by n - 1. Use correction=0.": centred / (unbiased + eps).sqrt() * weight + bias,
        "the bias is inside the denominator. Add it last.": weight * centred / (unbiased.sqrt() + eps + bias),
        "eps is missing: a position of equal columns would be divided by 0.": centred / variance.sqrt() * weight
        + bias,
        "weight and bias are not applied.": centred / (variance + eps).sqrt(),
        "the statistics are over the batch, dimension 0. That is a batch norm; take the last dimension.": (
            rows / (x.var(0, keepdim=True, correction=0) + eps).sqrt() * weight + bias
        ),
        "divided by the variance. Take its root.": centred / (variance + eps) * weight + bias,
        "the mean is not subtracted.": x / (variance + eps).sqrt() * weight + bias,
    }
    compare("layer_norm", answer(x, weight, bias, eps), F.layer_norm(x, (6,), weight, bias, eps), mistakes)
    print("layer_norm is correct: it agrees with torch.nn.functional.layer_norm.")


def check_sublayer_connection(answer: Callable) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, 6, generator=generator)
    matrix = torch.randn(6, 6, generator=generator)

    def sublayer(states: torch.Tensor) -> torch.Tensor:
        return torch.tanh(states @ matrix)

    def norm(states: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(states, (6,))

    # a dropout without chance: it drops the first column
    kept = torch.tensor([0.0, 1.25, 1.25, 1.25, 1.25, 1.25])

    def dropout(states: torch.Tensor) -> torch.Tensor:
        return states * kept

    mistakes = {
        "this is pre-norm: the input of the sub-layer is normalised. Normalise after the addition.": (
            x + dropout(sublayer(norm(x)))
        ),
        "dropout comes after the norm, or after the addition. Apply it to the sub-layer's output alone.": dropout(
            norm(x + sublayer(x))
        ),
        "dropout is applied to the sum. The residual x must pass whole.": norm(dropout(x + sublayer(x))),
        "dropout is missing.": norm(x + sublayer(x)),
        "the residual x is not added.": norm(dropout(sublayer(x))),
        "x is added twice, or normalised without the sub-layer: one addition is enough.": norm(
            2 * x + dropout(sublayer(x))
        ),
        "the norm comes before the addition: LayerNorm(x + ...) is around both.": x + norm(dropout(sublayer(x))),
        "the norm is missing.": x + dropout(sublayer(x)),
    }
    expected = norm(x + dropout(sublayer(x)))
    compare("sublayer_connection", answer(x, sublayer, norm, dropout), expected, mistakes)
    print("sublayer_connection is correct.")
