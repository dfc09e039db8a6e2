"""Cross-entropy with the paper's label smoothing (section 5.4), from logits or from the decoder's output."""

from collections.abc import Callable

import torch
from torch import nn

from .configuration_vanilla_transformer import IGNORED_LABEL

# Rows whose logits are in memory at a time when the loss includes the projection. On a GPU, every chunk costs some 40
# kernels; in float16, sums over many more rows could overflow.
CHUNK_ROWS = 512
GPU_CHUNK_ROWS = 4096


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which losses of logits in `dtype` are computed."""
    return torch.promote_types(dtype, torch.float32)


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
    log_probs = logits.log_softmax(-1, dtype=wide_dtype(logits.dtype))
    return cross_entropies_of(log_probs, labels, smoothing, pad_token_id)


def cross_entropies_of(
    log_probs: torch.Tensor, labels: torch.Tensor, smoothing: float, pad_token_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `cross_entropies` from the logarithms of the probabilities, (..., V)."""
    padded = labels == IGNORED_LABEL
    # any token will do at padded positions
    plain = -log_probs.gather(-1, labels.masked_fill(padded, 0)[..., None])[..., 0]
    losses = plain
    if smoothing:
        others = log_probs.sum(-1) - log_probs[..., pad_token_id]
        losses = (1 - smoothing) * plain - smoothing / (log_probs.shape[-1] - 1) * others
    loss, cross_entropy = (values.masked_fill(padded, 0.0).sum() for values in (losses, plain))
    return loss, cross_entropy.detach()


def smoothed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, smoothing: float, pad_token_id: int
) -> torch.Tensor:
    """Return the first of `cross_entropies`."""
    return cross_entropies(logits, labels, smoothing, pad_token_id)[0]


# With the projection, the loss of a row with the logits z, the label y and the padding token 0 is, because the target
# distribution q sums to 1,
#
#     -sum_k q_k log p_k  =  log sum_k exp(z_k)  -  (1 - smoothing) z_y  -  uniform * sum_(k > 0) z_k
#
# where uniform = smoothing / (V - 1), and its gradient by z is p - q. The uniform part of q is the same in every row
# and for every token except padding. So it is left out of the gradient of a chunk, and `_subtract_uniform_part`
# subtracts it from the sums over all chunks, without another pass over a tensor of (N, V).


def losses_and_probabilities(
    logits: torch.Tensor,
    uniform_logits: torch.Tensor | float,
    index: torch.Tensor,
    padded: torch.Tensor,
    smoothing: float,
    buffer: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Turn the logits of a chunk into p; return its losses with and without smoothing, summed, and p - q at labels.

    Training on a GPU compiles this function: then p is in memory only in the dtype of the logits.

    Args:
        logits: (rows, V), overwritten.
        uniform_logits: (rows,), the last term of the loss.
        index: (rows, 1), the labels, or any token at padded positions.
        padded: (rows,).
        buffer: (rows, V), float32 or wider, memory for p, which may be that of the logits; None for new.

    Returns:
        Two numbers, and (rows, 1) in the dtype of the logits, without the uniform part of q.
    """
    wide = wide_dtype(logits.dtype)
    label_logits = logits.gather(1, index)[:, 0].to(wide)
    # on a CPU, new memory of this size costs more than the arithmetic, and the maximum of a row in bfloat16 is slow
    exponents = logits if buffer is None else buffer.copy_(logits)
    highest = exponents.amax(-1).to(wide)
    probabilities = torch.softmax(exponents, -1, dtype=wide, out=buffer)
    # the highest probability is at least 1 / V, so its logarithm is exact
    log_partition = highest - probabilities.amax(-1).log()

    losses = log_partition - (1 - smoothing) * label_logits - uniform_logits
    loss = losses.masked_fill(padded, 0.0).sum()
    cross_entropy = (log_partition - label_logits).masked_fill(padded, 0.0).sum()
    gradient = probabilities.gather(1, index) + (smoothing - 1)
    logits.copy_(probabilities)
    return loss, cross_entropy, gradient.to(logits.dtype)


def _add_gradients(
    gradients: list[torch.Tensor | None],
    chunk: slice,
    gradient: torch.Tensor,
    inputs: torch.Tensor,
    real: torch.Tensor,
    matrix: torch.Tensor,
) -> None:
    """Add what a chunk contributes to the gradients of the inputs, of the matrix and of the offset.

    Args:
        gradients: (N, d_model), (V, d_model) and (V,); None for one that is not needed.
        chunk: the rows of the chunk among all N.
        gradient: by its logits (rows, V).
        inputs: of the chunk (rows, d_model).
        real: (rows, 1), 0 where there is padding.
        matrix: (V, d_model).
    """
    by_inputs, by_matrix, by_offset = gradients
    if by_inputs is not None:
        by_inputs[chunk] = gradient @ matrix
    if by_matrix is not None:
        by_matrix += gradient.t() @ (inputs * real)
    if by_offset is not None:
        by_offset += (gradient.t() @ real)[:, 0]


def _subtract_uniform_part(
    gradients: list[torch.Tensor | None],
    states: torch.Tensor,
    real: torch.Tensor,
    others: torch.Tensor,
    uniform: float,
    pad_token_id: int,
) -> None:
    """Subtract from the gradients of the states, the weight and the bias what is due to the uniform part of q.

    Args:
        states: (N, d_model).
        real: (N, 1), 0 at padded positions, at which the gradient of the states is set to 0.
        others: (d_model,), the sum of the rows of the weight except that of padding.
    """
    of_states, of_weight, of_bias = gradients
    if of_states is not None:
        of_states -= uniform * others
        of_states *= real
    for gradient, factors in ((of_weight, states * real), (of_bias, real[:, 0])):
        if gradient is not None:
            share = uniform * factors.sum(0, dtype=gradient.dtype)
            gradient -= share
            gradient[pad_token_id] += share


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
        loss_of_chunk: Callable,
    ):
        device = states.device.type
        # autocast does not cast the operands of a product with `out`
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        # of the loss and of the sums over chunks
        wide = wide_dtype(dtype)
        inputs = states.to(dtype)
        matrix = weight.to(dtype)
        offset = matrix.new_zeros(len(matrix)) if bias is None else bias.to(dtype)
        # sums over all tokens but padding, (d_model,) and a number
        others = matrix.sum(0, dtype=wide) - matrix[pad_token_id]
        other_offsets = offset.sum(dtype=wide) - offset[pad_token_id]
        uniform = smoothing / (len(matrix) - 1)
        padded = labels == IGNORED_LABEL
        real = (~padded).to(dtype)[:, None]
        # any token will do where there is padding
        index = labels.masked_fill(padded, 0)[:, None]
        gradients = [
            torch.zeros_like(value, dtype=wide) if need else None
            for value, need in zip((inputs, matrix, offset), ctx.needs_input_grad[:3], strict=True)
        ]
        loss = states.new_zeros((), dtype=wide)
        cross_entropy = torch.zeros_like(loss)
        chunk_rows = CHUNK_ROWS if device == "cpu" else GPU_CHUNK_ROWS
        narrow_buffer = inputs.new_empty(min(chunk_rows, len(inputs)), len(matrix))
        # the same memory if the dtypes are equal
        wide_buffer = narrow_buffer.to(wide) if device == "cpu" else None
        for start in range(0, len(inputs), chunk_rows):
            chunk = slice(start, start + chunk_rows)
            part = inputs[chunk]
            # (rows of the chunk, V); the last chunk may be shorter
            logits = torch.addmm(offset, part, matrix.t(), out=narrow_buffer[: len(part)])
            # not a matrix product, which autocast would round
            uniform_logits = uniform * ((part * others).sum(-1) + other_offsets) if smoothing else 0.0
            buffer = None if wide_buffer is None else wide_buffer[: len(part)]
            chunk_loss, chunk_entropy, of_labels = loss_of_chunk(
                logits, uniform_logits, index[chunk], padded[chunk], smoothing, buffer
            )
            loss += chunk_loss
            cross_entropy += chunk_entropy
            # matrix products in the dtype of autocast, as a linear layer computes them
            gradient = logits.scatter_(1, index[chunk], of_labels)
            _add_gradients(gradients, chunk, gradient, part, real[chunk], matrix)
        _subtract_uniform_part(gradients, inputs, real, others, uniform, pad_token_id)
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
        return *scaled, None, None, None, None


@torch.compiler.disable  # the number of chunks changes with the batch, which would be compiled again each time
def projected_cross_entropy(
    projection: nn.Module,
    states: torch.Tensor,
    labels: torch.Tensor,
    smoothing: float,
    pad_token_id: int,
    loss_of_chunk: Callable = losses_and_probabilities,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `cross_entropies` of the logits `projection(states)`, in chunks if it is a plain linear layer.

    Args:
        projection: layer from d_model to V.
        states: (..., d_model), output of the decoder.
        labels: (...), -100 at padded positions.
        loss_of_chunk: `losses_and_probabilities`, which may be compiled.
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
    return _ProjectedCrossEntropy.apply(*inputs, labels.flatten(), smoothing, pad_token_id, loss_of_chunk)
