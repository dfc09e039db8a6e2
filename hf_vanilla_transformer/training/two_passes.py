"""Losses of two passes over each pair: R-Drop (arXiv:2106.14448) and SimCut (arXiv:2206.02368)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..model.configuration_vanilla_transformer import IGNORED_LABEL
from ..model.loss_vanilla_transformer import cross_entropies


def r_drop_loss(
    logits: torch.Tensor, labels: torch.Tensor, alpha: float, smoothing: float, pad_token_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return half of equation 4: the mean smoothed cross-entropy of two passes, plus alpha / 2 times their divergence.

    The divergence is (KL(P1 || P2) + KL(P2 || P1)) / 2. The second tensor is the mean plain cross-entropy of the two
    passes. Both are in nats, summed over the positions that are not padded.

    Args:
        logits: (2 B, T, V), of any float dtype: those of the first pass, then those of the second.
        labels: (B, T), -100 at padded positions.
    """
    logits = widened(logits)
    smoothed, plain = cross_entropies(logits, labels.repeat(2, 1), smoothing, pad_token_id)
    first, second = logits.log_softmax(-1).chunk(2)
    # sum of p (log p - log q) + q (log q - log p) = sum of (p - q) (log p - log q)
    divergence = sum_over_tokens((first.exp() - second.exp()) * (first - second), labels) / 2
    return (smoothed + alpha * divergence) / 2, plain / 2


def simcut_loss(
    logits: torch.Tensor, labels: torch.Tensor, alpha: float, smoothing: float, pad_token_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return equation 8: the smoothed cross-entropy of the pairs, plus alpha KL(P || P of the cut pairs).

    The gradient flows into both distributions. The second tensor is the plain cross-entropy of the pairs. Both are in
    nats, summed over the positions that are not padded.

    Args:
        logits: (2 B, T, V), of any float dtype: those of the pairs, then those of the cut pairs.
        labels: (B, T), -100 at padded positions.
    """
    logits = widened(logits)
    smoothed, plain = cross_entropies(logits[: len(labels)], labels, smoothing, pad_token_id)
    whole, cut = logits.log_softmax(-1).chunk(2)
    return smoothed + alpha * sum_over_tokens(whole.exp() * (whole - cut), labels), plain


def widened(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits in float32 or wider; the softmax of half-precision ones is taken so in cross_entropies too."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def sum_over_tokens(terms: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum `terms`, (B, T, V), over the positions whose label, (B, T), is not ignored."""
    return terms.sum(-1).masked_fill(labels == IGNORED_LABEL, 0.0).sum()


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
