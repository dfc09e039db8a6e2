"""Answers to lesson 2, and wrong answers that its checks reject."""

from collections.abc import Callable

import torch


def scaled_scores(query, key):
    """Return Q K^T / sqrt(d_k). *Shape:* (B, h, T, d_k) and (B, h, S, d_k) to (B, h, T, S)."""
    return query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5


def attention(query, key, value):
    """Return softmax(Q K^T / sqrt(d_k)) V.

    *Shape:* (B, h, T, d_k), (B, h, S, d_k) and (B, h, S, d_v) to (B, h, T, d_v).
    """
    weights = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).softmax(-1)
    return weights @ value


def additive_scores(query, key, w_query, w_key, v):
    """Return v . tanh(W_q q + W_k k) for every pair of a query and a key.

    *Shape:* query (T, d), key (S, d), w_query and w_key (d, hidden), v (hidden,) to (T, S).
    """
    # (T, 1, hidden) + (1, S, hidden)
    hidden = (query @ w_query)[:, None] + (key @ w_key)[None]
    return torch.tanh(hidden) @ v


def previous_word_queries(keys):
    """Return queries that attend to the previous position. *Shape:* keys (5, 16), orthonormal rows, to (5, 16)."""
    # the query of position i is the key of position i - 1, 40 times as long: 40 / sqrt(16) is a score of 10
    return 40 * keys.roll(1, dims=0)


# for each exercise, wrong answers by words of the message that rejects them
WRONG_ANSWERS: dict[str, dict[str, Callable]] = {
    "scaled_scores": {
        "not scaled": lambda query, key: query @ key.transpose(-2, -1),
        "divided by d_k": lambda query, key: query @ key.transpose(-2, -1) / query.shape[-1],
        "keys in rows": lambda query, key: key @ query.transpose(-2, -1) / 4,
    },
    "attention": {
        "not divided": lambda query, key, value: (query @ key.transpose(-2, -1)).softmax(-1) @ value,
        "over the queries": lambda query, key, value: (query @ key.transpose(-2, -1) / 4).softmax(-2) @ value,
        "returns a tuple of 2": lambda query, key, value: (attention(query, key, value), query),
        "weighted mean is divided": lambda query, key, value: (query @ key.transpose(-2, -1)).softmax(-1) @ value / 4,
    },
    "additive_scores": {
        "tanh is missing": lambda q, k, w_q, w_k, v: ((q @ w_q)[:, None] + k @ w_k) @ v,
        "never meet": lambda q, k, w_q, w_k, v: (torch.tanh(q @ w_q)[:, None] + torch.tanh(k @ w_k)) @ v,
        "keys in rows": lambda q, k, w_q, w_k, v: torch.tanh((q @ w_q) + (k @ w_k)[:, None]) @ v,
    },
    "previous_word_queries": {
        "its own key": lambda keys: 40 * keys,
        "the other way": lambda keys: 40 * keys.roll(-1, dims=0),
        "multiply your queries": lambda keys: keys.roll(1, dims=0),
    },
}
