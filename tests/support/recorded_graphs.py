"""A stand-in for CUDA graphs, which records the operators of a step and repeats them on the same tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def _reads_values(func, args: tuple) -> bool:
    """Return whether the host has to know values in order to call an operator or to allocate its result."""
    if func is torch.ops.aten.index.Tensor:
        return any(index is not None and index.dtype == torch.bool for index in args[1])
    return not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.isdisjoint(func.tags)


class _Recording(TorchDispatchMode):
    """Record all operators; those that read a value on the host fail, as during the capture of a CUDA graph."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, list]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if _reads_values(func, args):
            raise RuntimeError("operation not permitted when stream is capturing")
        output = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, tree_leaves(output)))
        return output

    def replay(self) -> None:
        """Repeat the operators, whatever the Python code that called them would do now, and put results in place."""
        for func, args, kwargs, outputs in self.calls:
            for place, result in zip(outputs, tree_leaves(func(*args, **kwargs)), strict=True):
                # views and operators in place return the same memory
                if isinstance(place, torch.Tensor) and place.data_ptr() != result.data_ptr():
                    place.copy_(result)


class GraphRecorder:
    """Takes the place of `CudaRecorder`, for tests.

    Attributes:
        captures: how many functions have been captured.
        replays: how many graphs have been replayed.
        fails: whether each capture fails.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.memory = 2**40
        self.captures = 0
        self.replays = 0
        self.fails = False

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1
        for _ in range(2):
            step()
        recording = _Recording()
        with recording:
            step()
            if self.fails:
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

        def replay() -> None:
            self.replays += 1
            recording.replay()

        return replay
