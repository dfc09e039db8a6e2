"""Checks of lesson 2: scaled dot-product attention."""

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from .comparing import compare, require, require_result


def _tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a query (2, 3, 5, 16), a key (2, 3, 7, 16) and a value (2, 3, 7, 8): no two lengths are equal."""
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(2, 3, 5, 16, generator=generator)
    key = torch.randn(2, 3, 7, 16, generator=generator)
    value = torch.randn(2, 3, 7, 8, generator=generator)
    return query, key, value


def check_scaled_scores(answer: Callable) -> None:
    query, key, _ = _tensors()
    products = torch.einsum("bhtd,bhsd->bhts", query, key)
    by_key = products.transpose(2, 3) / 4
    mistakes = {
        "the products are right but not scaled: their variance is still d_k. Divide by sqrt(d_k).": products,
        "divided by d_k. The standard deviation of q.k is sqrt(d_k), so divide by the square root.": products / 16,
        "multiplied by sqrt(d_k), which makes the scores larger still. Divide by it.": products * 4,
        "divided by the square root of the number of keys. Use d_k, the width of the query.": products / 7**0.5,
        "the shape is (2, 3, 7, 5), with the keys in rows. Each query has a row: query @ key^T.": by_key,
    }
    compare("scaled_scores", answer(query, key), products / 4, mistakes)
    print("scaled_scores is correct.")


def check_attention(answer: Callable) -> None:
    query, key, value = _tensors()
    products = torch.einsum("bhtd,bhsd->bhts", query, key)
    scores = products / 4
    mistakes = {
        "the scores are not divided by sqrt(d_k) before the softmax.": products.softmax(-1) @ value,
        "the weighted mean is divided by sqrt(d_k). Divide the scores instead, before the softmax.": (
            products.softmax(-1) @ value / 4
        ),
        "the softmax runs over the queries, so its columns sum to 1. It must run over the keys, the last one.": (
            scores.softmax(-2) @ value
        ),
        "the softmax runs over the heads. It must run over the keys, the last dimension.": scores.softmax(1) @ value,
        "there is no softmax, so the weights are not positive and do not sum to 1.": scores @ value,
        "these are the weights. Multiply them by the values.": scores.softmax(-1),
    }
    compare("attention", answer(query, key, value), scaled_dot_product_attention(query, key, value), mistakes)
    print("attention is correct: it agrees with torch.nn.functional.scaled_dot_product_attention.")


def check_additive_scores(answer: Callable) -> None:
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(4, 6, generator=generator)
    key = torch.randn(5, 6, generator=generator)
    w_query, w_key = torch.randn(2, 6, 3, generator=generator)
    v = torch.randn(3, generator=generator)
    expected = torch.empty(4, 5)
    for t in range(4):
        for s in range(5):
            expected[t, s] = v @ torch.tanh(w_query.T @ query[t] + w_key.T @ key[s])
    hidden = (query @ w_query)[:, None] + (key @ w_key)[None]
    compare(
        "additive_scores",
        answer(query, key, w_query, w_key, v),
        expected,
        {
            "tanh is missing. Without it, the score is a sum of a term of the query and a term of the key, and the "
            "softmax over the keys forgets the query.": hidden @ v,
            "tanh is applied after the product with v. It belongs to the hidden layer.": torch.tanh(hidden @ v),
            "tanh is applied to the two projections before they are added, so they never meet in it: the softmax over "
            "the keys forgets the query.": (torch.tanh(query @ w_query)[:, None] + torch.tanh(key @ w_key)[None]) @ v,
            "the shape is (5, 4), with the keys in rows. Each query has a row.": expected.T,
            "the shape is (4, 5, 3): the hidden layer is right, its product with v is missing.": torch.tanh(hidden),
        },
    )
    print("additive_scores is correct.")


def check_previous_word_queries(answer: Callable) -> None:
    generator = torch.Generator().manual_seed(1)
    keys = torch.linalg.qr(torch.randn(16, 5, generator=generator)).Q.T
    queries = answer(keys.clone())
    require_result("previous_word_queries", queries)
    require(
        queries.shape == (5, 16),
        f"previous_word_queries returns the shape {tuple(queries.shape)}, expected (5, 16): one query per position.",
    )
    weights = (queries @ keys.T / 4).softmax(-1)
    chosen = weights[1:].argmax(-1)
    for i in range(1, 5):
        to = int(chosen[i - 1])
        hints = {i: " Its query is its own key.", i + 1: " That is the next one: shift the keys the other way."}
        message = f"previous_word_queries: position {i} attends most to position {to}, not {i - 1}."
        require(to == i - 1, message + hints.get(to, ""))
    smallest = weights[1:].diagonal().min()
    require(
        smallest >= 0.99,
        f"previous_word_queries: the right positions are chosen, but with a weight of only {smallest:.2f}. Only large "
        "differences make a softmax choose, and scores are divided by sqrt(16): multiply your queries by a number.",
    )
    print("previous_word_queries is correct.")
