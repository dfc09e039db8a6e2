"""Prepare the device for training: one GPU per process, bfloat16 or float32, and the fastest attention."""

import copy
from collections.abc import Callable

import torch
from accelerate.utils import gather_object
from transformers import PreTrainedModel
from transformers.debug_utils import DebugOption
from transformers.utils import logging

from ..inference.hardware import OPERATIONS, avoid_cudnn_attention, has_native_bfloat16, is_faster_in_bfloat16
from .arguments import AUTO, VanillaTransformerTrainingArguments
from .sharding import shards_model

logger = logging.get_logger(__name__)

_LENGTH = 32  # tokens of each source and target in a measured batch


def prepare_device(args: VanillaTransformerTrainingArguments) -> None:
    """Use one GPU in this process, and its fastest kernels of attention."""
    if args.n_gpu > 1:
        # `Trainer` would wrap the model in `DataParallel`, which torch advises against
        logger.warning(
            f"{args.n_gpu} GPUs are visible, but a single process uses only one: launch with `torchrun "
            f"--nproc_per_node {args.n_gpu}` to use them all, or select one with CUDA_VISIBLE_DEVICES."
        )
        args._n_gpu = 1
    if args.device.type == "cuda":
        avoid_cudnn_attention()
        # The kernels of FlashAttention are made for long texts: in training with sentences, they take twice as long as
        # torch's memory-efficient ones
        torch.backends.cuda.enable_flash_sdp(False)


def choose_attention(model: PreTrainedModel, args: VanillaTransformerTrainingArguments) -> None:
    """Choose the attention with which `model` trains."""
    _use_faster_attention(model, args.device, bool(args.bf16))
    # transformers' debugger requires masks of floats
    if DebugOption.UNDERFLOW_OVERFLOW in args.debug:
        model.set_attn_implementation("eager")


def _use_faster_attention(model: PreTrainedModel, device: torch.device, bfloat16: bool) -> None:
    """Let a model that trains in bfloat16 on a CPU use eager attention.

    There, the backward pass of torch's fused attention takes many times as long as that of the matrix products.
    """
    if bfloat16 and device.type == "cpu" and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation("eager")


def choose_precision(model: PreTrainedModel | None, args: VanillaTransformerTrainingArguments) -> None:
    """Replace the value "auto" of `args.bf16` by the faster choice for a model, the same one in all processes."""
    if args.bf16 == AUTO:
        # A model that is sharded may be too large to run here in one piece, and one in a search has not been built yet
        if model is None or shards_model(args):
            faster = has_native_bfloat16(args.device)
        else:
            faster = _is_faster(model.to(args.device), args.max_tokens)  # type: ignore[arg-type]
        args.set_precision(gather_object([faster])[0])
    if args.bf16 and args.device.type == "cpu" and not has_native_bfloat16(args.device):
        logger.warning("This processor has no native bfloat16: training without --bf16 would be faster.")


def _is_faster(model: PreTrainedModel, max_tokens: int) -> bool:
    """Return whether training steps of a model, which stays as it is, are faster in bfloat16."""
    # Three times the forward pass, which takes two operations per parameter and token
    tokens = min(max_tokens, int(OPERATIONS / (6 * model.num_parameters())))
    shape = (max(1, tokens // _LENGTH), _LENGTH)
    ids = torch.randint(model.config.vocab_size, shape, generator=torch.Generator().manual_seed(0)).to(model.device)

    def step_in(dtype: torch.dtype) -> Callable[[], object]:
        trained = copy.deepcopy(model).train()
        _use_faster_attention(trained, model.device, dtype == torch.bfloat16)

        def step() -> None:
            trained.zero_grad()
            with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                loss = trained(input_ids=ids, labels=ids).loss
            loss.backward()

        return step

    # Dropout in these steps must not change the numbers that the run draws
    with torch.random.fork_rng():
        return is_faster_in_bfloat16(model.device, step_in)
