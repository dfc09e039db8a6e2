"""Checks of lesson 9: find the bug."""

from collections.abc import Callable

import torch
from broken_models import FAULT_BY_NUMBER, FAULTS, broken_by, healthy
from torch import nn

from .comparing import require, require_result

# what would be true of a model that has the fault
SIGNS = {
    "no causal mask": "future_leaks() would be above 0, and decoder weights above the diagonal would not be 0.",
    "padding visible to the encoder": "padding would change the encoder's states.",
    "padding visible to cross-attention": "padding would change the logits, but not the encoder's states.",
    "scores not scaled": "log_weight_spread() would be far above that of the healthy model.",
    "heads split by view alone": "the future and the padding would leak, although the weights there are 0.",
    "one projection for all heads": "head_difference() would be 0.",
    "no positions": "order_matters() would be 0.",
    "doubled exponent in the positions": "slowest_angle() would not be that of the healthy model.",
    "softmax in the model": "the rows of its logits would sum to 1.",
    "pre-norm encoder": "the variance of each of the encoder's states would not be 1.",
    "dropout in evaluation": "two equal runs would give different logits.",
    "target not shifted": "the first output would change with the first label, but future_leaks() would be 0.",
}


def _result(name: str, answer: Callable, model: nn.Module) -> float:
    value = answer(model)
    require_result(name, value)
    require(torch.as_tensor(value).numel() == 1, f"{name} returns several numbers: return the largest difference.")
    return float(value)


def _check_experiment(name: str, answer: Callable, fault: str, too_much: str, too_little: str) -> None:
    """Run an experiment on the healthy model, which has no fault, and on a model that has the fault."""
    value = _result(name, answer, healthy())
    require(abs(value) < 1e-4, f"{name} is {value:.2g} for the healthy model, but should be 0. {too_much}")
    value = _result(name, answer, broken_by(fault))
    require(value > 1e-4, f'{name} is {value:.2g} for a model with the fault "{fault}". {too_little}')


@torch.no_grad()
def check_future_leaks(answer: Callable) -> None:
    _check_experiment(
        "future_leaks",
        answer,
        "no causal mask",
        "Compare only the positions before the word that you change, and change nothing else.",
        "Change a word of the target (decoder_input_ids) after the positions that you compare, and let the function "
        "return the largest difference.",
    )
    print("future_leaks is correct.")


@torch.no_grad()
def check_padding_leaks(answer: Callable) -> None:
    for fault in ("padding visible to the encoder", "padding visible to cross-attention"):
        _check_experiment(
            "padding_leaks",
            answer,
            fault,
            "Add the padding after the words, which keep their positions, and tell the model where it is: "
            "attention_mask is 1 at words and 0 at padding.",
            "Add padding to the source and compare the logits, which depend on both the encoder and cross-attention.",
        )
    print("padding_leaks is correct.")


@torch.no_grad()
def check_order_matters(answer: Callable) -> None:
    value = _result("order_matters", answer, broken_by("no positions"))
    require(
        value < 1e-4,
        f"order_matters is {value:.2g} for a model without positions, but should be 0. The "
        "words of the reversed sentence are in reverse order: reverse their states back, along dimension 1, before "
        "you compare them.",
    )
    value = _result("order_matters", answer, healthy())
    require(
        value > 1e-2,
        f"order_matters is {value:.2g} for the healthy model. Reverse the order of the words: flip dimension 1, as "
        "dimension 0 is the batch. And compare absolute differences: others cancel in a sum.",
    )
    print("order_matters is correct.")


def check_diagnosis(answer: Callable) -> None:
    found = answer()
    require_result("diagnosis", found)
    missing = [number for number in FAULT_BY_NUMBER if number not in found]
    require(not missing, f"diagnosis has no entry for {missing}: examine all twelve models.")
    for number, fault in found.items():
        require(fault in FAULTS, f"diagnosis: {fault!r} is none of the faults in the table.")
        require(
            fault == FAULT_BY_NUMBER.get(number),
            f"diagnosis: the fault of model {number} is not {fault!r}. If it were, {SIGNS[fault]}",
        )
    print("diagnosis is correct: you have found all twelve faults.")
