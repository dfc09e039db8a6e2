"""Answers to lesson 8, and wrong answers that its checks reject."""

import math
from collections.abc import Callable


def operations(kind, n, d, k):
    """Return the number of multiplications of a layer; kind is "self-attention", "recurrent" or "convolution"."""
    return {"self-attention": n * n * d, "recurrent": n * d * d, "convolution": k * n * d * d}[kind]


def steps_and_path(kind, n, k):
    """Return (sequential operations of a layer, maximum path length) for one of the three kinds."""
    if kind == "self-attention":
        return 1, 1
    if kind == "recurrent":
        return n, n
    return 1, math.ceil((n - 1) / (k - 1))


def training_flops(hours, gpus, tflops):
    """Return the number of floating point operations of a training run, with `tflops` TFLOPS per GPU."""
    return hours * 3600 * gpus * tflops * 1e12


def exchanged(kind, n, d, k):
    return {"self-attention": n * d * d, "recurrent": n * n * d, "convolution": k * n * d * d}[kind]


def rounded_down(kind, n, k):
    return (1, (n - 1) // (k - 1)) if kind == "convolution" else steps_and_path(kind, n, k)


# for each exercise, wrong answers by words of the message that rejects them
WRONG_ANSWERS: dict[str, dict[str, Callable]] = {
    "operations": {
        "exchanged": exchanged,
        "weights times the values": lambda kind, n, d, k: operations(kind, n, d, k) * (2 if kind[0] == "s" else 1),
        "lacks its width": lambda kind, n, d, k: operations(kind, n, d, 1),
        "as one multiplication": lambda kind, n, d, k: operations(kind, n, 1 if kind[0] == "s" else d, k),
    },
    "steps_and_path": {
        "must return two": lambda kind, n, k: steps_and_path(kind, n, k)[1],
        "needs the state before it": lambda kind, n, k: (1, steps_and_path(kind, n, k)[1]),
        "in one layer": lambda kind, n, k: (steps_and_path(kind, n, k)[0], n),
        "round up": rounded_down,
    },
    "training_flops": {
        "not converted": lambda hours, gpus, tflops: hours * gpus * tflops * 1e12,
        "number of GPUs": lambda hours, gpus, tflops: hours * 3600 * tflops * 1e12,
        "tera is 10^12": lambda hours, gpus, tflops: hours * 3600 * gpus * tflops * 1e9,
    },
}
