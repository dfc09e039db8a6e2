"""Answers to lesson 3, and wrong answers that its checks reject."""

from collections.abc import Callable

import torch


def head_scores(query, key, num_heads):
    """Return the scores of every head, scaled by 1/sqrt(d_k), where d_k = d_model / num_heads.

    *Shape:* query (B, T, d_model), key (B, S, d_model) to (B, num_heads, T, S).
    """
    # (B, T, d_model) -> (B, T, h, d_k) -> (B, h, T, d_k)
    query = query.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    key = key.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    return query @ key.transpose(2, 3) / query.shape[-1] ** 0.5


def causal_mask(length):
    """Return a boolean mask with one row per query, True at the keys that it may attend to. *Shape:* (T, T)."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def target_mask(tokens, pad):
    """Return the decoder's mask: causal, and without padding. *Shape:* (B, T) to (B, 1, T, T), the 1 for all heads."""
    length = tokens.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    # (B, 1, 1, T) & (T, T)
    return (tokens != pad)[:, None, None] & causal


def masked_weights(scores, mask):
    """Return the softmax over the allowed keys. *Shape:* scores (B, h, T, S), mask (B, 1, T, S) to (B, h, T, S)."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)


def split_by_view_alone(query, key, num_heads):
    width = query.shape[-1] // num_heads
    query = query.view(len(query), num_heads, -1, width)
    key = key.view(len(key), num_heads, -1, width)
    return query @ key.transpose(2, 3) / width**0.5


def discarded_mask(scores, mask):
    scores.masked_fill(~mask, -1e30)
    return scores.softmax(-1)


# for each exercise, wrong answers by words of the message that rejects them
WRONG_ANSWERS: dict[str, dict[str, Callable]] = {
    "head_scores": {
        "mixed words and heads": split_by_view_alone,
        "one head over all columns": lambda query, key, num_heads: query @ key.transpose(1, 2),
        "scaled by sqrt(d_model)": lambda query, key, num_heads: head_scores(query, key, num_heads) / num_heads**0.5,
    },
    "causal_mask": {
        "does not see itself": lambda length: torch.ones(length, length).tril(-1).bool(),
        "inverted: True": lambda length: torch.ones(length, length).triu(1).bool(),
        "inverted, and the diagonal": lambda length: torch.ones(length, length).triu().bool(),
        "return booleans": lambda length: torch.ones(length, length).tril(),
    },
    "target_mask": {
        "hides rows": lambda tokens, pad: ((tokens != pad)[:, :, None] & causal_mask(tokens.shape[1]))[:, None],
        "causal mask alone": lambda tokens, pad: causal_mask(tokens.shape[1]).expand(len(tokens), 1, -1, -1),
        "is inverted": lambda tokens, pad: (tokens == pad)[:, None, None] & causal_mask(tokens.shape[1]),
        "ignores `pad`": lambda tokens, pad: target_mask(tokens, 1),
        "return booleans": lambda tokens, pad: target_mask(tokens, pad).int(),
        "the shape is (3, 7, 7)": lambda tokens, pad: (tokens != pad)[:, None] & causal_mask(tokens.shape[1]),
    },
    "masked_weights": {
        "has no effect": discarded_mask,
        "no longer sum to 1": lambda scores, mask: scores.softmax(-1) * mask,
        "over the queries": lambda scores, mask: masked_weights(scores.mT, mask.mT).mT,
        "-inf is taken": lambda scores, mask: scores.masked_fill(~mask, -torch.inf).softmax(-1),
        "in float16": lambda scores, mask: scores.masked_fill(~mask, -1e9).softmax(-1),
    },
}
