"""Cross-entropy with the paper's label smoothing (section 5.4), and the divergence of R-Drop (arXiv:2106.14448)."""

from typing import Any

import torch

from ..model.configuration_vanilla_transformer import IGNORED_LABEL


class SmoothedCrossEntropy(torch.autograd.Function):
    """Sum over rows of -sum_k q(k) log p(k), with its gradient p - q computed in place of the log-probabilities.

    Plain autograd would allocate and fill several more (N, V) tensors, a fifth of a training step at d_model 128.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, smoothing: float, pad_token_id: int):
        log_probs = logits.log_softmax(-1, dtype=torch.float32 if logits.dtype.itemsize < 4 else None)  # (N, V)
        real = labels != IGNORED_LABEL
        index = labels.masked_fill(~real, 0)[:, None]
        uniform = smoothing / (logits.shape[-1] - 1)  # added to the target probability of every token except padding
        loss = -(1 - smoothing) * log_probs.gather(1, index)[:, 0]
        if smoothing:
            loss -= uniform * (log_probs.sum(-1) - log_probs[:, pad_token_id])
        ctx.saved = log_probs, index, real
        ctx.smoothing, ctx.uniform, ctx.pad_token_id, ctx.dtype = smoothing, uniform, pad_token_id, logits.dtype
        return loss.masked_fill(~real, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor):
        if ctx.saved is None:
            raise RuntimeError(
                "Cannot run backward a second time: the first run has overwritten the log-probabilities."
            )
        log_probs, index, real = ctx.saved
        ctx.saved = None
        gradient = log_probs.exp_()
        if ctx.uniform:
            gradient -= ctx.uniform
            gradient[:, ctx.pad_token_id] += ctx.uniform
        gradient.scatter_add_(1, index, torch.full_like(index, ctx.smoothing - 1, dtype=gradient.dtype))
        gradient *= (real * grad_output)[:, None]
        return gradient.to(ctx.dtype), None, None, None


def smoothed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float, pad_token_id: int
) -> torch.Tensor:
    """Return the cross-entropy against smoothed labels in nats, summed over the positions that are not padded.

    The target distribution is 1 - smoothing on the label plus smoothing spread evenly over the vocabulary. Padding,
    which is never a correct token, gets no share of it.

    Args:
        logits: (..., V), of any float dtype; the computation is in float32 or higher precision.
        labels: (...), -100 at padded positions.
        smoothing: epsilon_ls, 0.1 in the paper; 0.0 for the plain cross-entropy.
    """
    return SmoothedCrossEntropy.apply(logits.flatten(0, -2), labels.flatten(), smoothing, pad_token_id)


def symmetric_divergence(first: torch.Tensor, second: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return (KL(P1 || P2) + KL(P2 || P1)) / 2 in nats, summed over the positions that are not padded.

    Args:
        first, second: (..., V), the logits of P1 and of P2.
        labels: (...), -100 at padded positions.
    """
    dtype = torch.float32 if first.dtype.itemsize < 4 else None
    first, second = (logits.log_softmax(-1, dtype=dtype) for logits in (first, second))
    divergence = ((first.exp() - second.exp()) * (first - second)).sum(-1) / 2
    return divergence.masked_fill(labels == IGNORED_LABEL, 0.0).sum()
