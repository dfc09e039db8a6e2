"""Compile the layers of a model, and its loss, with torch's compiler while it trains (`--torch_compile`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import nn
from torch.fx.experimental import _config as fx_config
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging

from ..errors import UserError
from ..model.loss_vanilla_transformer import losses_and_probabilities
from .arguments import AUTO, VanillaTransformerTrainingArguments
from .sharding import shards_model

logger = logging.get_logger(__name__)

_SLOWER_ON = ("cpu",)  # types of devices on which compiled layers are slower
# On an H100, compiling `base` takes 16 to 46 s, and saves 11 ms per update
_WORTHWHILE_UPDATES = 5000


def choose_compilation(args: VanillaTransformerTrainingArguments) -> None:
    """Replace the value "auto" of `args.torch_compile` by a choice, the same one in all processes.

    Raises:
        ValueError: if the model is to be compiled, but torch cannot.
    """
    if args.torch_compile == AUTO:
        # layers that are sharded, or watched by a debugger, are compiled only on request
        plain = not (shards_model(args) or args.debug)
        worthwhile = args.device.type == "cuda" and args.max_steps >= _WORTHWHILE_UPDATES and plain
        args.torch_compile = all(gather_object([worthwhile and not _compiler_fault(args)]))
    elif args.torch_compile and not is_compiled(args):
        logger.warning("--torch_compile is ignored on a CPU, where compiled layers are slower.")
    elif args.torch_compile and (fault := _compiler_fault(args)):
        raise UserError(f"--torch_compile: torch cannot compile here ({fault}); omit the flag.")


def is_compiled(args: VanillaTransformerTrainingArguments) -> bool:
    """Return whether a run with these arguments trains a compiled model."""
    return bool(args.torch_compile) and args.device.type not in _SLOWER_ON


def _settings(args: VanillaTransformerTrainingArguments) -> dict[str, Any]:
    """Return the settings of the compiler, which compiles for batches of all shapes."""
    return {"dynamic": True, "backend": args.torch_compile_backend or "inductor", "mode": args.torch_compile_mode}


def _compiler_fault(args: VanillaTransformerTrainingArguments) -> str:
    """Return why torch cannot compile for the device, for example without a C compiler; "" if it can."""
    try:
        torch.compile(torch.sin, **_settings(args))(torch.zeros(2, device=args.device))
    except (RuntimeError, ImportError, OSError) as error:
        return " ".join(str(error).split("\n\n")[0].split())
    return ""


@contextmanager
def compiled(model: nn.Module, args: VanillaTransformerTrainingArguments) -> Iterator[None]:
    """Compile each layer of a model, in place, and its loss of a chunk; none is compiled any more on exit.

    The names of the weights stay. Validation runs the model as it is (`torch.compiler.set_stance`).

    Args:
        model: of this package, or an adapter around one, before it is sharded.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    owners: list[Any] = [module for module in model.modules() if hasattr(module, "loss_of_chunk")]
    compiled_loss: Any = torch.compile(losses_and_probabilities, **_settings(args))

    def loss_of_chunk(logits: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # the vocabulary never changes, and rows whose length is known are read faster
        torch._dynamo.mark_static(logits, 1)
        # compiled code has no use for the last one, a buffer
        return compiled_loss(logits, *others[:-1], None)

    # A run that resumes must compile the same code again, whatever batches it begins with. So two sizes that happen to
    # be equal are different variables, and the compilations are not limited: beyond a limit, layers run uncompiled.
    # DDP's buckets are as large as a layer, so there is nothing to gain by splitting one, which fails for some shapes.
    dynamo: dict[str, Any] = {"specialize_float": True, "optimize_ddp": False}
    dynamo |= {"recompile_limit": 1000, "accumulated_recompile_limit": 1000}
    # install_config_module gives fx_config this method
    with torch._dynamo.config.patch(dynamo), fx_config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
        for layer in layers:
            layer.compile(**_settings(args))
        for owner in owners:
            owner.loss_of_chunk = loss_of_chunk
        try:
            yield
        finally:
            for layer in layers:
                layer._compiled_call_impl = None
            for owner in owners:
                del owner.loss_of_chunk
