"""Checks of lesson 5: your own attention inside the real model."""

from collections.abc import Callable

import torch
from torch import nn

from hf_vanilla_transformer.model.layers_vanilla_transformer import eager_attention_forward

from .comparing import compare, require, require_result


def check_student_attention(answer: Callable) -> None:
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(2, 3, 5, 16, generator=generator)
    key = torch.randn(2, 3, 7, 16, generator=generator)
    value = torch.randn(2, 3, 7, 8, generator=generator)
    mask = torch.zeros(2, 1, 5, 7)
    mask[1, :, :, 4:] = torch.finfo(torch.float32).min
    # not 1/sqrt(16), to see whether the argument is used
    scaling = 0.3
    module = nn.Identity().eval()
    arguments = (module, query, key, value)
    expected, expected_weights = eager_attention_forward(*arguments, mask, scaling=scaling)
    result = answer(*arguments, mask, scaling=scaling)
    require_result("student_attention", result)
    require(
        isinstance(result, tuple | list) and len(result) == 2,
        "student_attention must return two tensors, the output and the weights: `return output, weights`.",
    )
    output, weights = result
    unmasked, _ = eager_attention_forward(*arguments, None, scaling=scaling)
    unscaled, _ = eager_attention_forward(*arguments, mask, scaling=1.0)
    inverted = torch.zeros_like(mask).masked_fill(mask == 0, torch.finfo(torch.float32).min)
    opposite, _ = eager_attention_forward(*arguments, inverted, scaling=scaling)
    own_scale, _ = eager_attention_forward(*arguments, mask, scaling=0.25)
    mistakes = {
        "attention_mask has no effect. Add it to the scores: the result of an addition is a new tensor.": unmasked,
        "the wrong keys are hidden. Attention is allowed where attention_mask is 0: add it to the scores.": opposite,
        "the scores are not multiplied by `scaling`.": unscaled,
        "the scores are divided by sqrt(d_k), but the model passes `scaling`: multiply by it.": own_scale,
        "the output has the shape (B, h, T, d_v). The heads go after the words: transpose(1, 2).": (
            expected.transpose(1, 2)
        ),
        "the output is the weights. Multiply them by the values.": expected_weights,
        "the heads are already side by side. Leave them apart, as (B, T, h, d_v): the model does it.": (
            expected.flatten(2)
        ),
    }
    compare("student_attention", output, expected, mistakes)
    compare("student_attention (the weights)", weights, expected_weights, {})
    result = answer(*arguments, None, scaling=scaling)[0]
    compare("student_attention (without a mask)", result, unmasked, {})
    print("student_attention is correct.")


def check_window_mask(answer: Callable) -> None:
    lowest = torch.finfo(torch.float32).min
    distance = (torch.arange(6)[:, None] - torch.arange(6)).abs()
    expected = torch.zeros(6, 6).masked_fill(distance > 2, lowest)
    before = torch.arange(6)[:, None] - torch.arange(6)
    mask = answer(6, 2)
    require_result("window_mask", mask)
    require(
        not torch.as_tensor(mask, dtype=torch.float32).isinf().any(),
        "window_mask holds -inf, with which a row that is hidden completely becomes NaN. Use "
        "torch.finfo(torch.float32).min.",
    )
    mistakes = {
        "inverted: the neighbours are hidden.": torch.zeros(6, 6).masked_fill(distance <= 2, lowest),
        "it is 1 or True where attention is allowed. Use 0 there, and the lowest finite number elsewhere.": distance
        <= 2,
        "it is 1 or True where attention is hidden. Use the lowest finite number there.": distance > 2,
        "later words are visible at any distance. Take the absolute value of the distance.": (
            torch.zeros(6, 6).masked_fill(before > 2, lowest)
        ),
        "only earlier words are visible. Take the absolute value of the distance.": torch.zeros(6, 6).masked_fill(
            (before > 2) | (before < 0), lowest
        ),
        "words `width` apart are hidden, too. Allow a distance of at most `width`.": torch.zeros(6, 6).masked_fill(
            distance >= 2, lowest
        ),
    }
    compare("window_mask", mask, expected, mistakes)
    print("window_mask is correct.")
