"""Checks of lesson 8: complexity."""

import math
from collections.abc import Callable

from .comparing import compare, require, require_result

KINDS = ("self-attention", "recurrent", "convolution")


def check_operations(answer: Callable) -> None:
    for n, d, k in ((30, 512, 3), (100, 64, 5)):
        expected = {"self-attention": n * n * d, "recurrent": n * d * d, "convolution": k * n * d * d}
        mistakes = {
            "self-attention": {
                "self-attention and recurrence are exchanged: which one has a (d x d) matrix?": n * d * d,
                "each product of a query and a key is counted as one multiplication. It is d long.": n * n,
                "the weights times the values are counted, too. Leave out constant factors.": 2 * n * n * d,
            },
            "recurrent": {
                "self-attention and recurrence are exchanged: which one has a (d x d) matrix?": n * n * d,
                "a step is a (d x d) matrix times a vector: d^2 multiplications, not d.": n * d,
            },
            "convolution": {
                "it lacks its width k: it has one matrix for each of k words.": n * d * d,
                "it has one number per column and word. Each of its k matrices is d x d.": k * n * d,
            },
        }
        for kind in KINDS:
            name = f"operations ({kind}, n = {n}, d = {d}, k = {k})"
            compare(name, answer(kind, n, d, k), expected[kind], mistakes[kind])
    print("operations is correct.")


def check_steps_and_path(answer: Callable) -> None:
    for n, k in ((30, 3), (31, 4)):
        layers = math.ceil((n - 1) / (k - 1))
        expected = {"self-attention": (1, 1), "recurrent": (n, n), "convolution": (1, layers)}
        for kind in KINDS:
            result = answer(kind, n, k)
            require_result("steps_and_path", result)
            require(
                isinstance(result, tuple | list) and len(result) == 2,
                "steps_and_path must return two numbers, the sequential operations and the path length.",
            )
            steps, path = result
            place = f"steps_and_path: {kind}, {n} words, k = {k}"
            require(
                steps == expected[kind][0],
                f"{place}: {steps} sequential operations. "
                + ("Each step needs the state before it." if kind == "recurrent" else "No position waits for others."),
            )
            hints = {
                "self-attention": "Every word attends to every other one in one layer.",
                "recurrent": "The signal passes through every step between the words.",
                "convolution": "Each layer reaches k - 1 words further, and there are no parts of layers: round up.",
            }
            require(path == expected[kind][1], f"{place}: a maximum path of {path}. {hints[kind]}")
    print("steps_and_path is correct.")


def check_training_flops(answer: Callable) -> None:
    for hours, gpus, tflops in ((12, 8, 9.5), (84, 8, 9.5)):
        product = hours * gpus * tflops
        mistakes = {
            "hours are not converted: TFLOPS are operations per second.": product * 1e12,
            "hours are converted to minutes. TFLOPS are operations per second.": product * 60e12,
            "the number of GPUs is missing.": hours * tflops * 3600e12,
            "tera is 10^12, not 10^9.": product * 3600e9,
            "tera is missing: 10^12.": product * 3600,
        }
        compare(
            f"training_flops ({hours} hours, {gpus} GPUs)", answer(hours, gpus, tflops), product * 3600e12, mistakes
        )
    print("training_flops is correct: 3.3e18 for base, 2.3e19 for big, as in Table 2.")
