"""Checks of lesson 3: heads and masks."""

from collections.abc import Callable

import torch

from .comparing import CheckError, compare, require, require_result


def check_head_scores(answer: Callable) -> None:
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(2, 33, 32, generator=generator)
    key = torch.randn(2, 35, 32, generator=generator)
    # head i has the columns 4 i to 4 i + 3
    heads = [query[..., i : i + 4] @ key[..., i : i + 4].transpose(1, 2) for i in range(0, 32, 4)]
    products = torch.stack(heads, 1)
    mixed = query.view(2, 8, 33, 4) @ key.view(2, 8, 35, 4).transpose(2, 3)
    # the last dimension of the view is the head: columns i, i + 8, i + 16, ...
    strided = torch.einsum("btdh,bsdh->bhts", query.view(2, 33, 4, 8), key.view(2, 35, 4, 8))
    scores = answer(query, key, 8)
    require_result("head_scores", scores)
    require(
        scores.shape != (2, 33, 35),
        "head_scores: your scores have the shape (2, 33, 35), expected (2, 8, 33, 35): one head over all columns. "
        "Split the last dimension first.",
    )
    mistakes = {
        "the heads are right, but not scaled by 1/sqrt(d_k).": products,
        "scaled by sqrt(d_model). Each head has products of d_k = d_model / num_heads terms.": products / 32**0.5,
        "the shape is right, but view() alone mixed words and heads: view(B, T, h, d_k), then transpose(1, 2).": (
            mixed / 2
        ),
        "head i has the columns i, i + h, i + 2h, ...: view as (h, d_k), not as (d_k, h).": strided / 2,
        "your scores have one row per key. Each query has a row.": products.transpose(2, 3) / 2,
    }
    compare("head_scores", scores, products / 2, mistakes)
    print("head_scores is correct.")


def check_causal_mask(answer: Callable) -> None:
    mask = answer(5)
    require_result("causal_mask", mask)
    expected = torch.tensor([[key <= query for key in range(5)] for query in range(5)])
    peeking = torch.tensor([[key <= query + 1 for key in range(5)] for query in range(5)])
    mistakes = {
        "inverted: True marks the keys that are hidden. Return True where attention is allowed.": ~expected,
        "position t does not see itself, and the first one sees nothing. Its own input is the word before "
        "the one that it predicts, so it is allowed.": expected & ~torch.eye(5, dtype=torch.bool),
        "inverted, and the diagonal is wrong: True marks the keys that are hidden, and position t among them.": (
            ~expected | torch.eye(5, dtype=torch.bool)
        ),
        "position t sees the next input, which is the word that it has to predict: look at `diagonal`.": peeking,
    }
    compare("causal_mask", mask, expected, mistakes)
    require(
        mask.dtype == torch.bool,
        f"causal_mask has the right numbers, but the type {mask.dtype}: return booleans, as `& "
        "mask` and `~mask` expect.",
    )
    print("causal_mask is correct.")


def check_target_mask(answer: Callable) -> None:
    tokens = torch.tensor([[2, 5, 7, 2, 1, 1, 1], [2, 2, 1, 1, 1, 1, 1], [2, 4, 2, 2, 3, 2, 1]])
    real = tokens != 1
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    expected = real[:, None, None] & causal
    mask = answer(tokens, 1)
    require_result("target_mask", mask)
    rows = (real[:, :, None] & causal)[:, None]
    mistakes = {
        "padding hides rows, that is queries. It must hide only keys, or some rows have no key at all.": rows,
        "this is the causal mask alone: padding is still visible.": causal.expand(3, 1, 7, 7),
        "the padding mask is inverted: allow the keys that are not padding.": ~real[:, None, None] & causal,
        "this is the padding mask alone: the future is still visible.": real[:, None, None].expand(3, 1, 7, 7),
        "the two masks are joined by `or`. A key must be allowed by both.": real[:, None, None] | causal,
        "inverted: True marks the keys that are hidden.": ~expected,
        "the shape is (3, 7, 7). Add a dimension of 1 for the heads, or it does not fit the scores "
        "(B, h, T, T).": expected[:, 0],
    }
    compare("target_mask", mask, expected, mistakes)
    require(
        mask.dtype == torch.bool, f"target_mask has the right numbers, but the type {mask.dtype}: return booleans."
    )
    other = answer(torch.where(real, tokens, 0), 0)
    require(torch.equal(other, expected), "target_mask ignores `pad`: it is right only where padding is token 1.")
    print("target_mask is correct.")


def check_masked_weights(answer: Callable) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 3, 4, 5, generator=generator)
    mask = torch.rand(2, 1, 4, 5, generator=generator) < 0.5
    mask[..., 0] = True
    exponentials = scores.exp() * mask
    expected = exponentials / exponentials.sum(-1, keepdim=True)
    before = scores.clone()
    mistakes = {
        "the mask has no effect: masked_fill() returns a new tensor, which you did not use.": scores.softmax(-1),
        "hidden keys have the weight 0, but rows no longer sum to 1: mask the scores, before the softmax.": (
            scores.softmax(-1) * mask
        ),
        "hidden keys still have weight: a score of 0 is not low, since exp(0) = 1.": (scores * mask).softmax(-1),
        "inverted: the allowed keys are hidden. Fill where ~mask.": scores.masked_fill(mask, -1e30).softmax(-1),
        "the softmax runs over the queries. It must run over the keys, the last dimension.": scores.masked_fill(
            ~mask, torch.finfo(torch.float32).min
        ).softmax(-2),
        "these are the masked scores: the softmax is missing.": scores.masked_fill(
            ~mask, torch.finfo(torch.float32).min
        ),
    }
    compare("masked_weights", answer(before, mask), expected, mistakes)
    require(
        torch.equal(before, scores),
        "masked_weights changes the scores that it was given: use masked_fill() and not masked_fill_().",
    )
    nothing = answer(scores, torch.zeros(2, 1, 4, 5, dtype=torch.bool))
    require(
        not nothing.isnan().any(),
        "masked_weights: a row without any allowed key becomes NaN: its sum is 0, or -inf minus "
        "-inf is taken. Fill the scores with a finite number, before the softmax.",
    )
    try:
        half = answer(scores.half(), mask)
    except RuntimeError as error:
        message = f"masked_weights fails in float16 ({error}). Use torch.finfo(scores.dtype).min."
        raise CheckError(message) from error
    require(half.isfinite().all(), "masked_weights: not finite in float16. Use torch.finfo(scores.dtype).min.")
    print("masked_weights is correct.")
