"""The divergence of R-Drop (arXiv:2106.14448)."""

import torch

from ..model.configuration_vanilla_transformer import IGNORED_LABEL


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
