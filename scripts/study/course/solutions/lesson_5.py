"""Answers to lesson 5, and wrong answers that its checks reject."""

from collections.abc import Callable

import torch


def student_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Return the output of the heads and the weights.

    *Shape:* query (B, h, T, d_k), key (B, h, S, d_k), value (B, h, S, d_v), mask (B, 1, T, S) to output (B, T, h, d_v)
    and weights (B, h, T, S).
    """
    scores = torch.einsum("bhtd,bhsd->bhts", query, key) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = torch.nn.functional.dropout(scores.softmax(-1), dropout, module.training)
    return torch.einsum("bhts,bhsd->bthd", weights, value), weights


def window_mask(length, width):
    """Return 0 where query and key are at most `width` apart, else the lowest finite float32.

    *Shape:* (length, length).
    """
    position = torch.arange(length)
    distance = (position[:, None] - position).abs()
    return torch.zeros(length, length).masked_fill(distance > width, torch.finfo(torch.float32).min)


def attention_without_transpose(module, query, key, value, attention_mask, scaling, **kwargs):
    output, weights = student_attention(module, query, key, value, attention_mask, scaling)
    return output.transpose(1, 2), weights


def additive(length, allowed):
    return torch.zeros(length, length).masked_fill(~allowed, torch.finfo(torch.float32).min)


# for each exercise, wrong answers by words of the message that rejects them
WRONG_ANSWERS: dict[str, dict[str, Callable]] = {
    "student_attention": {
        "has no effect": lambda m, q, k, v, mask, scaling, **rest: student_attention(m, q, k, v, None, scaling),
        "allowed where attention_mask is 0": lambda m, q, k, v, mask, scaling, **rest: student_attention(
            m, q, k, v, mask if mask is None else torch.where(mask == 0, -1e9, 0.0), scaling
        ),
        "not multiplied": lambda m, q, k, v, mask, scaling, **rest: student_attention(m, q, k, v, mask, 1.0),
        "heads go after the words": attention_without_transpose,
        "must return two": lambda *args, **rest: student_attention(*args, **rest)[0],
    },
    "window_mask": {
        "inverted": lambda length, width: additive(length, window_mask(length, width) != 0),
        "any distance": lambda length, width: additive(length, torch.ones(length, length).triu(-width).bool()),
        "where attention is allowed": lambda length, width: window_mask(length, width) == 0,
        "where attention is hidden": lambda length, width: window_mask(length, width) != 0,
        "at most `width`": lambda length, width: window_mask(length, width - 1),
    },
}
