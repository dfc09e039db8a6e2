"""Cross-entropy with the paper's label smoothing (section 5.4), lean enough not to rule a small model's step; R-Drop's
term beside it."""

from typing import Any

import torch

from ..data.batching import IGNORED_LABEL


class SmoothedCrossEntropy(torch.autograd.Function):
    """Sum over rows of -sum_k q(k) log p(k), its gradient p - q written over the log-probabilities in place.

    Autograd's own path keeps and fills several more (N, V) tensors, a fifth of a training step at d_model 128.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, smoothing: float, pad_token_id: int):
        log_probs = logits.log_softmax(-1, dtype=torch.float32 if logits.dtype.itemsize < 4 else None)  # (N, V)
        real = labels != IGNORED_LABEL
        index = labels.masked_fill(~real, 0)[:, None]
        share = smoothing / (logits.shape[-1] - 1)  # of each token but padding
        loss = -(1 - smoothing) * log_probs.gather(1, index)[:, 0]
        if smoothing:
            loss -= share * (log_probs.sum(-1) - log_probs[:, pad_token_id])
        ctx.saved = log_probs, index, real
        ctx.smoothing, ctx.share, ctx.pad_token_id, ctx.dtype = smoothing, share, pad_token_id, logits.dtype
        return loss.masked_fill(~real, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor):
        if ctx.saved is None:
            raise RuntimeError("Trying to backward a second time: the first has written over the log-probabilities.")
        log_probs, index, real = ctx.saved
        ctx.saved = None
        gradient = log_probs.exp_()
        if ctx.share:
            gradient -= ctx.share
            gradient[:, ctx.pad_token_id] += ctx.share
        gradient.scatter_add_(1, index, torch.full_like(index, ctx.smoothing - 1, dtype=gradient.dtype))
        gradient *= (real * grad_output)[:, None]
        return gradient.to(ctx.dtype), None, None, None


def smoothed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float, pad_token_id: int
) -> torch.Tensor:
    """Sum over real labels of the cross-entropy against (1 - smoothing) on the label plus smoothing spread evenly.

    The spread goes over the whole vocabulary but padding, which is never a right answer, as is no padded position.

    Args:
        logits: (..., V), any float type; the arithmetic is at least float32.
        labels: (...), -100 where there is none.
        smoothing: epsilon_ls, 0.1 in the paper; 0.0 gives the plain cross-entropy in nats.
    """
    return SmoothedCrossEntropy.apply(logits.flatten(0, -2), labels.flatten(), smoothing, pad_token_id)


def symmetric_divergence(first: torch.Tensor, second: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum over real labels of (KL(P1 || P2) + KL(P2 || P1)) / 2, in nats.

    Args:
        first, second: (..., V) logits of P1 and of P2.
        labels: (...), -100 where there is none.
    """
    dtype = torch.float32 if first.dtype.itemsize < 4 else None
    first, second = (logits.log_softmax(-1, dtype=dtype) for logits in (first, second))
    divergence = ((first.exp() - second.exp()) * (first - second)).sum(-1) / 2
    return divergence.masked_fill(labels == IGNORED_LABEL, 0.0).sum()
