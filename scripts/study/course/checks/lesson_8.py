"""Checks of lesson 8: complexity."""

import math
from collections.abc import Callable

import torch

from .comparing import compare, require, require_result

KINDS = ("self-attention", "recurrent", "convolution")


def check_operations(answer: Callable) -> None:
    sizes = [(30, 512, 3), (100, 64, 5)]
    result = [answer(kind, *size) for size in sizes for kind in KINDS]
    for value in result:
        require_result("operations", value)

    def table(attention: Callable, recurrent: Callable, convolution: Callable) -> list[float]:
        return [count(*size) for size in sizes for count in (attention, recurrent, convolution)]

    def attention(n: int, d: int, k: int) -> int:
        return n * n * d

    def recurrent(n: int, d: int, k: int) -> int:
        return n * d * d

    def convolution(n: int, d: int, k: int) -> int:
        return k * n * d * d

    mistakes = {
        "self-attention and recurrence are exchanged: which one has a (d x d) matrix?": table(
            recurrent, attention, convolution
        ),
        "the products of self-attention are counted as one multiplication each. Each is d long.": table(
            lambda n, d, k: n * n, recurrent, convolution
        ),
        "a step of the recurrence is a (d x d) matrix times a vector: d^2 multiplications, not d.": table(
            attention, lambda n, d, k: n * d, convolution
        ),
        "the convolution lacks its width k: it has one matrix for each of k words.": table(
            attention, recurrent, recurrent
        ),
        "the convolution has one number per column and word. Each of its k matrices is d x d.": table(
            attention, recurrent, lambda n, d, k: k * n * d
        ),
    }
    # logarithms, since the numbers differ by orders of magnitude
    logs = {message: torch.tensor(values, dtype=torch.float64).log() for message, values in mistakes.items()}
    expected = torch.tensor(table(attention, recurrent, convolution), dtype=torch.float64).log()
    compare("operations", torch.tensor(result, dtype=torch.float64).log(), expected, logs)
    print("operations is correct.")


def check_steps_and_path(answer: Callable) -> None:
    for n, k in ((30, 3), (31, 4)):
        layers = math.ceil((n - 1) / (k - 1))
        expected = {"self-attention": (1, 1), "recurrent": (n, n), "convolution": (1, layers)}
        for kind in KINDS:
            result = answer(kind, n, k)
            require_result("steps_and_path", result)
            steps, path = result
            place = f"steps_and_path: {kind}, {n} words, k = {k}"
            require(
                steps == expected[kind][0],
                f"{place}: {steps} sequential operations. "
                + ("Each step needs the state before it." if kind == "recurrent" else "No position waits."),
            )
            hints = {
                "self-attention": "Every word attends to every other one in one layer.",
                "recurrent": "The signal passes through every step between the words.",
                "convolution": "Each layer reaches k - 1 words further, and part of a layer is a layer: round up.",
            }
            require(path == expected[kind][1], f"{place}: a maximum path of {path}. {hints[kind]}")
    print("steps_and_path is correct.")


def check_training_flops(answer: Callable) -> None:
    runs = torch.tensor([[12, 8, 9.5], [84, 8, 9.5]], dtype=torch.float64)
    expected = runs.prod(1) * 3600e12
    result = [answer(*run) for run in runs.tolist()]
    require_result("training_flops", result[0])
    mistakes = {
        "hours are not converted: TFLOPS are operations per second.": runs.prod(1) * 1e12,
        "hours are converted to minutes. TFLOPS are operations per second.": runs.prod(1) * 60e12,
        "the number of GPUs is missing.": runs[:, 0] * runs[:, 2] * 3600e12,
        "tera is 10^12.": runs.prod(1) * 3600e9,
        "tera is missing: 10^12.": runs.prod(1) * 3600,
    }
    # in units of 10^18
    compare(
        "training_flops",
        torch.tensor(result, dtype=torch.float64) / 1e18,
        expected / 1e18,
        {message: value / 1e18 for message, value in mistakes.items()},
    )
    print("training_flops is correct: 3.3e18 for base, 2.3e19 for big, as in Table 2.")
