"""Losses of two passes over each pair: R-Drop (arXiv:2106.14448) and SimCut (arXiv:2206.02368)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..model.configuration_vanilla_transformer import IGNORED_LABEL
from ..model.loss_vanilla_transformer import GPU_CHUNK_ROWS, cross_entropies_of, wide_dtype

# Positions whose probabilities are in memory at a time. On a CPU, they fit its caches, and new memory for those of all
# positions costs more than the arithmetic.
CHUNK_ROWS = 64


def r_drop_loss(
    logits: torch.Tensor, labels: torch.Tensor, alpha: float, smoothing: float, pad_token_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return half of equation 4: the mean smoothed cross-entropy of two passes, plus alpha / 2 times their divergence.

    The divergence is (KL(P1 || P2) + KL(P2 || P1)) / 2. The second tensor is the mean plain cross-entropy of the two
    passes. Both are in nats, summed over the positions that are not padded. Only the first has a gradient.

    Args:
        logits: (2 B, T, V), of any float dtype: those of the first pass, then those of the second.
        labels: (B, T), -100 at padded positions.
    """
    return _LossOfTwoPasses.apply(logits, labels, (0.5, 0.5), (alpha / 4, alpha / 4), smoothing, pad_token_id)


def simcut_loss(
    logits: torch.Tensor, labels: torch.Tensor, alpha: float, smoothing: float, pad_token_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return equation 8: the smoothed cross-entropy of the pairs, plus alpha KL(P || P of the cut pairs).

    The gradient flows into both distributions. The second tensor is the plain cross-entropy of the pairs. Both are in
    nats, summed over the positions that are not padded. Only the first has a gradient.

    Args:
        logits: (2 B, T, V), of any float dtype: those of the pairs, then those of the cut pairs.
        labels: (B, T), -100 at padded positions.
    """
    return _LossOfTwoPasses.apply(logits, labels, (1.0, 0.0), (alpha, 0.0), smoothing, pad_token_id)


class _LossOfTwoPasses(torch.autograd.Function):
    """Compute a weighted sum of the cross-entropies of two passes, P and Q, and of KL(P || Q) and KL(Q || P).

    The gradient is computed with the loss, in chunks of rows. By the logits of P, that of the cross-entropy is P minus
    the target distribution, that of KL(P || Q) is P (log P - log Q - KL(P || Q)), and that of KL(Q || P) is P - Q.
    """

    @staticmethod
    def forward(
        ctx,
        logits: torch.Tensor,
        labels: torch.Tensor,
        entropy_weights: tuple[float, float],
        divergence_weights: tuple[float, float],
        smoothing: float,
        pad_token_id: int,
    ):
        labels = labels.flatten()
        rows = logits.reshape(2, len(labels), -1)
        gradient = torch.empty_like(rows)
        dtype = wide_dtype(logits.dtype)
        loss = rows.new_zeros((), dtype=dtype)
        plain = torch.zeros_like(loss)
        chunk_rows = CHUNK_ROWS if rows.device.type == "cpu" else GPU_CHUNK_ROWS
        for start in range(0, len(labels), chunk_rows):
            chunk = slice(start, start + chunk_rows)
            log_probs = rows[:, chunk].log_softmax(-1, dtype=dtype)
            chunk_loss, chunk_plain, gradient[:, chunk] = _loss_of_chunk(
                log_probs, labels[chunk], entropy_weights, divergence_weights, smoothing, pad_token_id
            )
            loss += chunk_loss
            plain += chunk_plain
        # not save_for_backward(), since nothing else can change it before backward() scales it
        ctx.gradient = gradient.view_as(logits)
        ctx.mark_non_differentiable(plain)
        return loss, plain

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor, _):
        return ctx.gradient * grad_output, None, None, None, None, None


def _loss_of_chunk(
    log_probs: torch.Tensor,
    labels: torch.Tensor,
    entropy_weights: tuple[float, float],
    divergence_weights: tuple[float, float],
    smoothing: float,
    pad_token_id: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what `_LossOfTwoPasses` computes for one chunk, and the gradient by its logits, (2, rows, V).

    Args:
        log_probs: (2, rows, V).
        labels: (rows,).
    """
    padded = labels[:, None] == IGNORED_LABEL
    probs = log_probs.exp()
    gradient = torch.empty_like(probs)
    loss = probs.new_zeros(())
    plain = torch.zeros_like(loss)
    for own, other in ((0, 1), (1, 0)):
        of_other = divergence_weights[other]
        by_logits = torch.mul(probs[own], of_other, out=gradient[own])
        by_logits.sub_(probs[other], alpha=of_other)
        if weight := divergence_weights[own]:
            ratios = log_probs[own] - log_probs[other]
            divergences = (probs[own] * ratios).sum(-1, keepdim=True)
            loss += weight * divergences.masked_fill(padded, 0.0).sum()
            by_logits.addcmul_(probs[own], ratios.sub_(divergences), value=weight)
        if weight := entropy_weights[own]:
            smoothed, unsmoothed = cross_entropies_of(log_probs[own], labels, smoothing, pad_token_id)
            loss += weight * smoothed
            plain += weight * unsmoothed
            by_logits.add_(probs[own], alpha=weight)
            _subtract_targets(by_logits, labels, weight, smoothing, pad_token_id)
    return loss, plain, gradient.masked_fill_(padded, 0.0)


def _subtract_targets(
    gradient: torch.Tensor, labels: torch.Tensor, weight: float, smoothing: float, pad_token_id: int
) -> None:
    """Subtract `weight` times the target distributions of `cross_entropies` from the rows of `gradient`, (rows, V)."""
    uniform = weight * smoothing / (gradient.shape[-1] - 1)
    gradient -= uniform
    gradient[:, pad_token_id] += uniform
    # any token will do at padded positions
    index = labels.masked_fill(labels == IGNORED_LABEL, 0)[:, None]
    gradient.scatter_add_(1, index, gradient.new_full(index.shape, -weight * (1 - smoothing)))


@contextmanager
def cut_embeddings(model: torch.nn.Module, probability: float) -> Iterator[None]:
    """Replace the embeddings of random tokens by zeros, in the second half of each batch: SimCut's token cutoff.

    Each token of the source and of the target is cut with that probability, tags and `</s>` too.
    """

    def cut(module: torch.nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor:
        whole, copy = output.chunk(2)
        tokens = torch.rand(copy.shape[:-1], device=copy.device) < probability
        return torch.cat((whole, copy.masked_fill(tokens[..., None], 0.0)))

    # one module, unless an adapter or the user has separated them
    embeddings: set[Any] = {module.embed_tokens for module in model.modules() if hasattr(module, "embed_tokens")}
    with ExitStack() as hooks:
        for embedding in embeddings:
            hooks.callback(embedding.register_forward_hook(cut).remove)
        yield
