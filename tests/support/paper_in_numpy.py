"""The paper's forward pass in NumPy float64, written from its equations: a reference without any torch code.

Shapes use B sentences, S source tokens and T target tokens. `weights` is a model's state dict.
"""

from collections.abc import Callable

import numpy as np


def positions(length: int, d_model: int) -> np.ndarray:
    """Return the positional encodings (section 3.5), computed entry by entry. *Shape:* (length, d_model)."""
    table = np.zeros((length, d_model))
    for pos in range(length):
        for i in range(d_model // 2):
            table[pos, 2 * i] = np.sin(pos / 10000 ** (2 * i / d_model))
            table[pos, 2 * i + 1] = np.cos(pos / 10000 ** (2 * i / d_model))
    return table


def softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * weight + bias


def multi_head_attention(
    matrix: Callable[[str], np.ndarray], h: int, queries: np.ndarray, memory: np.ndarray, allowed: np.ndarray
) -> np.ndarray:
    """Compute Concat(head_1, ..., head_h) W^O head by head (section 3.2.2).

    Args:
        matrix: returns the projection matrix "q", "k", "v" or "out", with shape (inputs, outputs).
        h: number of heads.
        queries, memory: (B, T, d_model) and (B, S, d_model).
        allowed: (B, T, S), True where a query may attend to a key.

    Returns:
        (B, T, d_model).
    """
    heads = []
    for w_q, w_k, w_v in zip(*(np.split(matrix(name), h, axis=1) for name in ("q", "k", "v")), strict=True):
        scores = (queries @ w_q) @ (memory @ w_k).transpose(0, 2, 1) / np.sqrt(w_k.shape[1])
        heads.append(softmax(np.where(allowed, scores, -np.inf)) @ (memory @ w_v))
    return np.concatenate(heads, axis=-1) @ matrix("out")


def transformer(config, weights: dict[str, np.ndarray], source, source_mask, target) -> np.ndarray:
    """Compute the model of Figure 1.

    Args:
        source, source_mask: (B, S) source tokens, and their mask: True, or 1, at tokens that are not padding.
        target: (B, T) target tokens.

    Returns:
        Logits (B, T, vocab_size).
    """
    embedding = weights["model.shared.weight"]

    def embed(ids):
        return embedding[ids] * np.sqrt(config.d_model) + positions(ids.shape[1], config.d_model)

    def attend(name, queries, memory, allowed):
        def matrix(part):
            return weights[f"{name}.{part}_proj.weight"].T

        return multi_head_attention(matrix, config.num_heads, queries, memory, allowed)

    def feed_forward(name, x):
        inner = np.maximum(0, x @ weights[f"{name}.fc1.weight"].T + weights[f"{name}.fc1.bias"])
        return inner @ weights[f"{name}.fc2.weight"].T + weights[f"{name}.fc2.bias"]

    def add_and_norm(name, x, sublayer):
        return layer_norm(x + sublayer, weights[f"{name}.weight"], weights[f"{name}.bias"], config.layer_norm_eps)

    source_mask = np.asarray(source_mask, dtype=bool)[:, None, :]  # (B, 1, S)
    x = embed(source)
    for n in range(config.num_encoder_layers):
        name = f"model.encoder.layers.{n}"
        x = add_and_norm(f"{name}.self_attn_layer_norm", x, attend(f"{name}.self_attn", x, x, source_mask))
        x = add_and_norm(f"{name}.final_layer_norm", x, feed_forward(name, x))
    memory, x = x, embed(target)
    causal = np.tril(np.ones((target.shape[1], target.shape[1]), dtype=bool))[None]
    for n in range(config.num_decoder_layers):
        name = f"model.decoder.layers.{n}"
        x = add_and_norm(f"{name}.self_attn_layer_norm", x, attend(f"{name}.self_attn", x, x, causal))
        x = add_and_norm(f"{name}.encoder_attn_layer_norm", x, attend(f"{name}.encoder_attn", x, memory, source_mask))
        x = add_and_norm(f"{name}.final_layer_norm", x, feed_forward(name, x))
    return x @ embedding.T
