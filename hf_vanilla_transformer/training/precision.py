"""Choose whether to train in bfloat16."""

import copy
from collections.abc import Callable

import torch
from accelerate.utils import gather_object
from transformers import PreTrainedModel

from ..inference.precision import OPERATIONS, has_native_bfloat16, is_faster_in_bfloat16
from .arguments import AUTO, VanillaTransformerTrainingArguments

_LENGTH = 32  # tokens of each source and target in a measured batch


def use_faster_attention(model: PreTrainedModel, device: torch.device, bfloat16: bool) -> None:
    """Let a model that trains in bfloat16 on a CPU use eager attention.

    There, the backward pass of torch's fused attention takes many times as long as that of the matrix products.
    """
    if bfloat16 and device.type == "cpu" and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation("eager")


def avoid_flash_attention() -> None:
    """Leave fused attention on a GPU to torch's memory-efficient kernels, in all of this process.

    The kernels of FlashAttention are made for long texts. In training with sentences, they take twice as long.
    """
    torch.backends.cuda.enable_flash_sdp(False)


def choose_precision(model: PreTrainedModel | None, args: VanillaTransformerTrainingArguments) -> None:
    """Replace the value "auto" of `args.bf16` by the faster choice for a model, the same one in all processes."""
    if args.bf16 != AUTO:
        return
    # A model that is sharded may be too large to run here in one piece, and one in a search has not been built yet
    if model is None or args.fsdp or args.deepspeed:
        faster = has_native_bfloat16(args.device)
    else:
        faster = _is_faster(model.to(args.device), args.max_tokens)  # type: ignore[arg-type]
    args.set_precision(gather_object([faster])[0])


def _is_faster(model: PreTrainedModel, max_tokens: int) -> bool:
    """Return whether training steps of a model, which stays as it is, are faster in bfloat16."""
    # Three times the forward pass, which takes two operations per parameter and token
    tokens = min(max_tokens, int(OPERATIONS / (6 * model.num_parameters())))
    shape = (max(1, tokens // _LENGTH), _LENGTH)
    ids = torch.randint(model.config.vocab_size, shape, generator=torch.Generator().manual_seed(0)).to(model.device)

    def step_in(dtype: torch.dtype) -> Callable[[], object]:
        trained = copy.deepcopy(model).train()
        use_faster_attention(trained, model.device, dtype == torch.bfloat16)

        def step() -> None:
            trained.zero_grad()
            with torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                loss = trained(input_ids=ids, labels=ids).loss
            loss.backward()

        return step

    # Dropout in these steps must not change the numbers that the run draws
    with torch.random.fork_rng():
        return is_faster_in_bfloat16(model.device, step_in)
