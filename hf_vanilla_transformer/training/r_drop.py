"""The loss of R-Drop (arXiv:2106.14448)."""

import torch

from ..model.configuration_vanilla_transformer import IGNORED_LABEL
from ..model.loss_vanilla_transformer import cross_entropies


def symmetric_divergence(first: torch.Tensor, second: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return (KL(P1 || P2) + KL(P2 || P1)) / 2 in nats, summed over the positions that are not padded.

    Args:
        first, second: (..., V), the logits of P1 and of P2, float32 or wider.
        labels: (...), -100 at padded positions.
    """
    first = first.log_softmax(-1)
    second = second.log_softmax(-1)
    # sum of p (log p - log q) + q (log q - log p) = sum of (p - q) (log p - log q)
    divergence = ((first.exp() - second.exp()) * (first - second)).sum(-1) / 2
    return divergence.masked_fill(labels == IGNORED_LABEL, 0.0).sum()


def r_drop_loss(
    logits: torch.Tensor, labels: torch.Tensor, alpha: float, smoothing: float, pad_token_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return half of equation 4: the mean smoothed cross-entropy of two passes, plus alpha / 2 times their divergence.

    The second tensor is the mean plain cross-entropy of the two passes. Both are in nats, summed over the positions
    that are not padded.

    Args:
        logits: (2 B, T, V), of any float dtype: those of the first pass, then those of the second.
        labels: (B, T), -100 at padded positions.
    """
    # The softmax of half-precision logits is taken in float32, as in cross_entropies
    wide = torch.promote_types(logits.dtype, torch.float32)
    logits = logits.to(wide)
    smoothed, plain = cross_entropies(logits, labels.repeat(2, 1), smoothing, pad_token_id)
    first, second = logits.chunk(2)
    divergence = symmetric_divergence(first, second, labels)
    return (smoothed + alpha * divergence) / 2, plain / 2
