"""The loss of R-Drop (arXiv:2106.14448)."""

import torch

from ..model.configuration_vanilla_transformer import IGNORED_LABEL
from ..model.loss_vanilla_transformer import GPU_CHUNK_ROWS, cross_entropies

CHUNK_ROWS = 64  # those of both passes and a vocabulary of 10,000 fit into the cache of a processor


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
    pair = logits.flatten(0, 1).unflatten(0, (2, -1))  # (2, B T, V)
    return _RDropLoss.apply(pair, labels.flatten(), alpha, smoothing, pad_token_id)


class _RDropLoss(torch.autograd.Function):
    """Compute the loss and its gradient in chunks of rows: a dozen tensors of (2 N, V) would take most of the time."""

    @staticmethod
    def forward(
        ctx, logits: torch.Tensor, labels: torch.Tensor, alpha: float, smoothing: float, pad_token_id: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # The softmax of half-precision logits is taken in float32, as in cross_entropies
        wide = torch.promote_types(logits.dtype, torch.float32)
        loss = logits.new_zeros((), dtype=wide)
        cross_entropy = torch.zeros_like(loss)
        gradient = torch.empty_like(logits)
        chunk_rows = CHUNK_ROWS if logits.device.type == "cpu" else GPU_CHUNK_ROWS
        for start in range(0, len(labels), chunk_rows):
            chunk = slice(start, start + chunk_rows)
            part = logits[:, chunk].detach().to(wide).requires_grad_()  # (2, rows, V)
            part_labels = labels[chunk]
            # Gradients are off inside forward; here each chunk is differentiated at once, and its graph is freed
            with torch.enable_grad():
                entropy, plain = cross_entropies(part, part_labels.expand(2, -1), smoothing, pad_token_id)
                chunk_loss = (entropy + alpha * symmetric_divergence(part[0], part[1], part_labels)) / 2
            gradient[:, chunk] = torch.autograd.grad(chunk_loss, part)[0]
            loss += chunk_loss.detach()
            cross_entropy += plain / 2
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(cross_entropy)
        return loss, cross_entropy

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor, _):
        (gradient,) = ctx.saved_tensors
        # In place, because the gradient is as large as the logits
        return gradient.mul_(grad_output), None, None, None, None
