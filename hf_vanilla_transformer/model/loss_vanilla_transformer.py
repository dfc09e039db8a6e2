"""Cross-entropy with the paper's label smoothing (section 5.4), from logits or from the decoder's output."""

import torch
from torch import nn

from .configuration_vanilla_transformer import IGNORED_LABEL

# Rows whose logits are in memory at a time when the loss includes the projection. On a GPU, every chunk costs some 40
# kernels; in float16, sums over many more rows could overflow.
CHUNK_ROWS = 512
GPU_CHUNK_ROWS = 4096


def _loss_and_gradient(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float, pad_token_id: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the sum over rows of -sum_k q(k) log p(k), the same without smoothing, and the gradient of the first.

    The gradient p - q overwrites the logits: on a CPU, new memory for tensors of this size costs more time than the
    arithmetic.

    *Shape:* logits (N, V), float32 or wider, and labels (N,) to two scalars and (N, V).
    """
    padded = labels == IGNORED_LABEL
    # any token will do at padded positions, whose loss and gradient are set to 0 below
    index = labels.masked_fill(padded, 0)[:, None]
    real = (~padded).to(logits.dtype)
    # added to the target probability of every token except padding
    uniform = smoothing / (logits.shape[-1] - 1)
    # -sum_k q(k) log p(k) = log sum_k exp(logit_k) - sum_k q(k) logit_k, because q sums to 1
    label_logits = logits.gather(1, index)[:, 0]
    expected = (1 - smoothing) * label_logits
    if smoothing:
        expected += uniform * (logits.sum(-1) - logits[:, pad_token_id])
    # so that no exponential overflows
    highest = logits.amax(-1)
    exponentials = logits.sub_(highest[:, None]).exp_()
    partition = exponentials.sum(-1)
    log_partition = highest + partition.log()
    loss = (log_partition - expected).masked_fill(padded, 0.0).sum()
    cross_entropy = (log_partition - label_logits).masked_fill(padded, 0.0).sum()
    # p, then minus q
    gradient = exponentials.mul_((real / partition)[:, None])
    if smoothing:
        gradient -= (uniform * real)[:, None]
        gradient[:, pad_token_id] += uniform * real
    gradient.scatter_add_(1, index, ((smoothing - 1) * real)[:, None])
    return loss, cross_entropy, gradient


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Compute the loss and its gradient in one pass; autograd would allocate and fill several more (N, V) tensors."""

    @staticmethod
    def forward(ctx, logits: torch.Tensor, labels: torch.Tensor, smoothing: float, pad_token_id: int):
        # a copy, since the gradient overwrites it and the caller's logits must stay
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        loss, cross_entropy, gradient = _loss_and_gradient(wide, labels, smoothing, pad_token_id)
        ctx.save_for_backward(gradient.to(logits.dtype))
        ctx.mark_non_differentiable(cross_entropy)
        return loss, cross_entropy

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor, _):
        (gradient,) = ctx.saved_tensors
        return (gradient.to(grad_output.dtype) * grad_output).to(gradient.dtype), None, None, None


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Compute the loss of the projected states and its gradients in chunks of rows.

    Logits never exist for more than one chunk, because the backward pass only scales gradients that the forward pass
    has computed, with the same three matrix products as otherwise.
    """

    @staticmethod
    def forward(
        ctx,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        smoothing: float,
        pad_token_id: int,
    ):
        device = states.device.type
        # autocast does not reach into a custom function, so its dtype is applied here
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        # of the loss and of the sums over chunks
        wide = torch.promote_types(dtype, torch.float32)
        inputs = states.to(dtype)
        matrix = weight.to(dtype)
        needed = ctx.needs_input_grad[:3]
        gradients = [
            torch.zeros_like(value, dtype=wide) if value is not None and need else None
            for value, need in zip((inputs, weight, bias), needed, strict=True)
        ]
        loss = states.new_zeros((), dtype=wide)
        cross_entropy = torch.zeros_like(loss)
        chunk_rows = CHUNK_ROWS if device == "cpu" else GPU_CHUNK_ROWS
        narrow_buffer = inputs.new_empty(min(chunk_rows, len(inputs)), len(weight))
        # the same memory if the dtypes are equal
        wide_buffer = narrow_buffer.to(wide)
        for start in range(0, len(inputs), chunk_rows):
            chunk = slice(start, start + chunk_rows)
            part = inputs[chunk]
            # (rows of the chunk, V); the last chunk may be shorter
            narrow = narrow_buffer[: len(part)]
            logits = wide_buffer[: len(part)]
            torch.mm(part, matrix.t(), out=narrow)
            logits.copy_(narrow)
            if bias is not None:
                logits += bias
            chunk_loss, chunk_entropy, gradient = _loss_and_gradient(logits, labels[chunk], smoothing, pad_token_id)
            loss += chunk_loss
            cross_entropy += chunk_entropy
            if gradients[2] is not None:
                gradients[2] += gradient.sum(0)
            # matrix products in the dtype of autocast, as backward() of a linear layer would compute them
            gradient = narrow.copy_(gradient)
            if gradients[0] is not None:
                gradients[0][chunk] = gradient @ matrix
            if gradients[1] is not None:
                gradients[1] += gradient.t() @ part
        # not save_for_backward(), since nothing else can change them before backward() scales them
        ctx.gradients = gradients
        ctx.dtypes = [None if value is None else value.dtype for value in (states, weight, bias)]
        ctx.mark_non_differentiable(cross_entropy)
        return loss, cross_entropy

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor, _):
        scaled = [
            None if gradient is None else (gradient * grad_output).to(dtype)
            for gradient, dtype in zip(ctx.gradients, ctx.dtypes, strict=True)
        ]
        return *scaled, None, None, None


def smoothed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float, pad_token_id: int
) -> torch.Tensor:
    """Return the first of `cross_entropies`."""
    return cross_entropies(logits, labels, smoothing, pad_token_id)[0]


def cross_entropies(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float, pad_token_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross-entropy against smoothed and against plain labels, in nats.

    Both are sums over the positions that are not padded. Only the first has a gradient.

    The target distribution is 1 - smoothing on the label plus smoothing spread evenly over the vocabulary. Padding,
    which is never a correct token, gets no share of it.

    Args:
        logits: (..., V), of any float dtype; the computation is in float32 or higher precision.
        labels: (...), -100 at padded positions.
        smoothing: epsilon_ls, 0.1 in the paper; 0.0 for the plain cross-entropy.
    """
    return _SmoothedCrossEntropy.apply(logits.flatten(0, -2), labels.flatten(), smoothing, pad_token_id)


@torch.compiler.disable  # the number of chunks changes with the batch, which would be compiled again each time
def projected_cross_entropy(
    projection: nn.Module, states: torch.Tensor, labels: torch.Tensor, smoothing: float, pad_token_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `cross_entropies` of the logits `projection(states)`, in chunks if it is a plain linear layer.

    Args:
        projection: layer from d_model to V.
        states: (..., d_model), output of the decoder.
        labels: (...), -100 at padded positions.
    """
    forward = projection._forward_pre_hooks or projection._forward_hooks or "forward" in vars(projection)
    hooks = forward or projection._backward_pre_hooks or projection._backward_hooks
    if type(projection) is not nn.Linear or hooks:
        # an adapter, or weights that a hook gathers
        return cross_entropies(projection(states), labels, smoothing, pad_token_id)
    inputs = [states.flatten(0, -2), projection.weight, projection.bias]
    if not torch.is_grad_enabled():
        # otherwise the gradients would be computed, too
        inputs = [value if value is None else value.detach() for value in inputs]
    return _ProjectedCrossEntropy.apply(*inputs, labels.flatten(), smoothing, pad_token_id)
