"""Answers to lesson 4, and wrong answers that its checks reject."""

from collections.abc import Callable


def feed_forward(x, w1, b1, w2, b2):
    """Return max(0, x W1 + b1) W2 + b2. *Shape:* x (B, T, d_model), w1 (d_model, d_ff), w2 (d_ff, d_model)."""
    return (x @ w1 + b1).relu() @ w2 + b2


def layer_norm(x, weight, bias, eps):
    """Return the layer norm over the last dimension. *Shape:* x (..., d_model), weight and bias (d_model,)."""
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    return centred / (variance + eps).sqrt() * weight + bias


def sublayer_connection(x, sublayer, norm, dropout):
    """Return the post-norm output; `sublayer`, `norm` and `dropout` are functions of a tensor. *Shape:* as x."""
    return norm(x + dropout(sublayer(x)))


def norm_with_std(x, weight, bias, eps):
    return weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) + bias


def norm_with_bias_below(x, weight, bias, eps):
    return weight * (x - x.mean(-1, keepdim=True)) / ((x.std(-1, keepdim=True) + eps) + bias)


def unbiased_norm(x, weight, bias, eps):
    return weight * (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + eps).sqrt() + bias


# for each exercise, wrong answers by words of the message that rejects them
WRONG_ANSWERS: dict[str, dict[str, Callable]] = {
    "feed_forward": {
        "ReLU is missing": lambda x, w1, b1, w2, b2: (x @ w1 + b1) @ w2 + b2,
        "x is added": lambda x, w1, b1, w2, b2: (x @ w1 + b1).relu() @ w2 + b2 + x,
        "biases are missing": lambda x, w1, b1, w2, b2: (x @ w1).relu() @ w2,
    },
    "layer_norm": {
        "moreover divides by n - 1": norm_with_std,
        "inside the denominator": norm_with_bias_below,
        "Use correction=0": unbiased_norm,
    },
    "sublayer_connection": {
        "pre-norm": lambda x, sublayer, norm, dropout: x + dropout(sublayer(norm(x))),
        "dropout comes after": lambda x, sublayer, norm, dropout: dropout(norm(x + sublayer(x))),
        "added twice": lambda x, sublayer, norm, dropout: norm(x + x + dropout(sublayer(x))),
    },
}
