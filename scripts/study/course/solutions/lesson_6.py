"""Answers to lesson 6, and wrong answers that its checks reject."""

from collections.abc import Callable

import torch
from torch.nn import functional as F


def learning_rate(step, d_model, warmup):
    """Return the learning rate of an update; the first update is step 1."""
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def smoothed_loss(logits, labels, smoothing):
    """Return the sum of the smoothed losses; token 0 is padding, and positions that are padding are labelled -100.

    *Shape:* logits (N, V), labels (N,), smoothing (eps) a number, to a number.
    """
    real = labels != -100
    logits, labels = logits[real], labels[real]
    target = torch.full_like(logits, smoothing / (logits.shape[1] - 1))
    target[torch.arange(len(labels)), labels] += 1 - smoothing
    # nothing should predict padding
    target[:, 0] = 0
    return -(target * logits.log_softmax(-1)).sum()


def accumulated_loss(sums, tokens):
    """Return the mean loss per token of the whole batch, from each part's sum of losses and number of tokens.

    *Shape:* sums (parts,), tokens (parts,) to a number.
    """
    return sum(sums) / sum(tokens)


def smoothed_over_other_tokens(logits, labels, smoothing):
    # the share of a token for V - 2 tokens, and none for the label
    share = smoothing / (logits.shape[1] - 2)
    real = labels != -100
    log_probs = logits.log_softmax(-1)[real]
    of_labels = log_probs.gather(1, labels[real, None]).sum()
    return -(1 - smoothing) * of_labels - share * (log_probs[:, 1:].sum() - of_labels)


def smoothed_with_padding(logits, labels, smoothing):
    of_padding = logits.log_softmax(-1)[labels != -100, 0].sum()
    return smoothed_loss(logits, labels, smoothing) - smoothing / (logits.shape[1] - 1) * of_padding


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
        "like every other token": smoothed_with_padding,
        "V - 2 other tokens": smoothed_over_other_tokens,
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
