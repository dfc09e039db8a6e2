"""Answers to lesson 6, and wrong answers that its checks reject."""

from collections.abc import Callable

import torch
from torch.nn import functional as F


def learning_rate(step, d_model, warmup):
    """Return the learning rate of an update; the first update is step 1."""
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def smoothed_loss(logits, labels, smoothing):
    """Return the sum of the smoothed losses; token 0 is padding, and positions labelled -100 do not count.

    *Shape:* logits (N, V), labels (N,) to a number.
    """
    real = labels != -100
    logits, labels = logits[real], labels[real]
    target = torch.full_like(logits, smoothing / (logits.shape[1] - 1))
    target[torch.arange(len(labels)), labels] += 1 - smoothing
    # nothing should predict padding
    target[:, 0] = 0
    return -(target * logits.log_softmax(-1)).sum()


def accumulated_loss(sums, tokens):
    """Return the mean loss per token over all parts, of which each has a sum of losses and a number of tokens."""
    return sum(sums) / sum(tokens)


# for each exercise, wrong answers by words of the message that rejects them
WRONG_ANSWERS: dict[str, dict[str, Callable]] = {
    "learning_rate": {
        "larger of the two": lambda step, d_model, warmup: d_model**-0.5 * max(step**-0.5, step * warmup**-1.5),
        "step + 1 is used": lambda step, d_model, warmup: learning_rate(step + 1, d_model, warmup),
        "exponent -0.5": lambda step, d_model, warmup: d_model**-0.5 * min(step**-0.5, step * warmup**-0.5),
    },
    "smoothed_loss": {
        "padding gets a share": lambda logits, labels, smoothing: F.cross_entropy(
            logits, labels, reduction="sum", label_smoothing=smoothing
        ),
        "no smoothing": lambda logits, labels, smoothing: F.cross_entropy(logits, labels, reduction="sum"),
        "softmax is applied twice": lambda logits, labels, smoothing: smoothed_loss(
            logits.softmax(-1), labels, smoothing
        ),
    },
    "accumulated_loss": {
        "mean of the means": lambda sums, tokens: (sums / tokens).mean(),
        "number of parts": lambda sums, tokens: sums.mean(),
    },
}
