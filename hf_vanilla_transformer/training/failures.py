"""Protect long runs: SIGTERM, non-finite losses, lost processes, too little memory."""

import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from accelerate.accelerator import Accelerator
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase, TrainerCallback

from ..errors import UserError
from ..model.configuration_vanilla_transformer import IGNORED_LABEL
from .sharding import is_sharded

MAX_BAD_UPDATES = 3  # in a row
_MAX_UNREPORTED = 1000  # updates
_EXAMPLE_TOKENS = 64  # of a target whose batch has a non-finite loss, for the message

# The modules that exchange data between processes: Python's, and the copy of them that datasets uses
_CONNECTIONS = tuple(
    (package, module)
    for package in ("multiprocessing", "multiprocess")
    for module in ("connection.py", "reduction.py")
)
# Parts of the messages of torch, gloo and NCCL, which raise a plain RuntimeError for a lost process
_LOST_WORKER = ("DataLoader worker", "abruptly died")
_LOST_PEER = (
    *("Connection closed by peer", "Connection reset by peer", "Gloo", "gloo"),
    *("ncclRemoteError", "remote process exited", "NCCL communicator was aborted", "collective operation timeout"),
)


class DivergedError(UserError, FloatingPointError):
    """Training has diverged: the losses of several updates in a row were not finite."""


class _Batch(NamedTuple):
    """The loss and the first target of a batch, which stay on the device until the next report."""

    loss: torch.Tensor
    pairs: int
    first_target: torch.Tensor


class UpdateGuard(TrainerCallback):
    """Stop on SIGTERM and skip updates with a non-finite loss, on all processes at the same update.

    After SIGTERM, which clusters send before they reclaim a machine, training finishes the current update (the next
    one if there are several processes), writes a checkpoint and stops. An update whose loss is not finite leaves the
    weights as they are. `report`, called at each log and before each checkpoint, prints which updates these were, and
    raises a `DivergedError` if there were `MAX_BAD_UPDATES` in a row. DeepSpeed, which updates the weights by
    itself, only reports.

    With one process, nothing here waits for a GPU between two reports, unless the optimizer cannot skip an update
    itself. With several, each update waits until the one before it has been computed.
    """

    def __init__(self, accelerator: Accelerator, tokenizer: PreTrainedTokenizerBase | None):
        self.accelerator = accelerator
        self.tokenizer = tokenizer
        self.signalled = False
        self.stopped = False
        self._last_finite: torch.Tensor | float = 0.0
        self._previous_handler: Callable[..., object] | int | None = None
        self._start_over()

    def _start_over(self) -> None:
        """Forget the updates of an earlier training, which may have failed in the middle of one."""
        self._batches: list[_Batch] = []  # of the current update
        # number, flags and batches since the report
        self._updates: list[tuple[int, torch.Tensor, list[_Batch]]] = []
        self._bad_updates = 0  # in a row
        # Of the last update: is it bad, has a process received SIGTERM? And when has a GPU computed and copied them?
        self._flags = torch.zeros(2)
        self._copied: torch.cuda.Event | None = None

    def _on_signal(self, *_) -> None:
        self.signalled = True

    def on_train_begin(self, args, state, control, **kwargs):
        self._start_over()
        # Python allows only its main thread to handle signals
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._on_signal)

    def restore_signals(self) -> None:
        """Restore the SIGTERM handler from before training, however training ended."""
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None

    def record_loss(self, loss: torch.Tensor, labels: torch.Tensor) -> None:
        """Record a batch of the current update, which is skipped if the loss is not finite."""
        # A copy of the start of one target, because a view would keep all labels of all batches in memory
        self._batches.append(_Batch(loss, len(labels), labels[0, :_EXAMPLE_TOKENS].clone()))

    def last_finite(self, loss: torch.Tensor) -> torch.Tensor:
        """Return `loss` if it is finite, otherwise the last loss that was, so that the logged mean stays finite."""
        self._last_finite = torch.where(loss.isfinite(), loss, self._last_finite)
        return self._last_finite

    def on_pre_optimizer_step(self, args, state, control, model=None, optimizer=None, **kwargs):
        # torch.tensor(True, device=...) would copy from the host, and wait for the GPU
        finite = torch.ones((), dtype=torch.bool, device=self.accelerator.device)
        for batch in self._batches:
            finite = finite & batch.loss.isfinite()
        flags = torch.stack([~finite, torch.full_like(finite, self.signalled)]).float()

        if self.accelerator.num_processes > 1:
            # A process that alone skipped or stopped would leave the others waiting for its gradients
            flags = self.accelerator.reduce(flags, "sum")
            # The flags of the update before, because reading those of this one would wait until its end
            if self._copied is not None:
                self._copied.synchronize()
            self.stopped = bool(self._flags[1] > 0)
            self._flags = flags.to("cpu", non_blocking=True)
            self._copied = torch.cuda.current_stream(flags.device).record_event() if flags.is_cuda else None
        else:
            self.stopped = self.signalled
        self._updates.append((state.global_step + 1, flags, self._batches))
        self._batches = []

        # A gradient scaler skips the update itself, and needs the gradients to lower its scale
        if self.accelerator.scaler is not None:
            return
        bad = flags[0] > 0
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        if getattr(inner, "_step_supports_amp_scaling", False) and not is_sharded(model):
            # The attributes that torch's gradient scaler sets, too: the kernel reads them, and the host need not wait
            inner.grad_scale = None
            inner.found_inf = bad.float()
        elif bad:
            # torch's optimizers pass over a parameter without a gradient, moments included
            model.zero_grad()

    def report(self) -> None:
        """Print which updates were skipped since the last report.

        Raises:
            DivergedError: if `MAX_BAD_UPDATES` in a row were skipped.
        """
        if not self._updates:
            return
        updates = self._updates
        self._updates = []
        # Stacked first, so that there is only one copy from the device for all updates
        skipped = torch.stack([flags[0] for _, flags, _ in updates]).tolist()
        for (number, _, batches), bad in zip(updates, skipped, strict=True):
            self._bad_updates = self._bad_updates + 1 if bad else 0
            if bad:
                message = f"Update {number} was skipped: {self._describe(batches)}."
                if self._bad_updates == MAX_BAD_UPDATES:
                    precision = ", or --bf16 instead of --fp16" if self.accelerator.scaler is not None else ""
                    # The run in this folder may not change its schedule or precision
                    raise DivergedError(
                        f"{message} That makes {MAX_BAD_UPDATES} in a row. The last checkpoint, if any, predates "
                        "them: train in another --output_dir, from the beginning or with that checkpoint as "
                        f"--model_name_or_path, with a lower --learning_rate or more --warmup_steps{precision}."
                    )
                # print would break a progress bar
                tqdm.write(message, file=sys.stderr)

    def _describe(self, batches: list[_Batch]) -> str:
        """Describe the first of `batches` whose loss is not finite."""
        for loss, pairs, target in batches:
            if not loss.isfinite():
                ids = target[target != IGNORED_LABEL].tolist()
                text = self.tokenizer.decode(ids, skip_special_tokens=True) if self.tokenizer else ids
                return f"loss {loss.item()} on a batch of {pairs} pairs, the first with target {text!r}"
        return "non-finite loss on another process"

    def on_step_end(self, args, state, control, **kwargs):
        if self.stopped:
            control.should_save = True
            control.should_training_stop = True
        # Without logs or checkpoints, the losses and targets of all updates would stay in memory
        if len(self._updates) >= _MAX_UNREPORTED:
            self.report()

    def on_train_end(self, args, state, control, **kwargs):
        self.report()


def _lost_connection(error: BaseException) -> bool:
    """Return whether a process died while it sent data, or before its file descriptors were fetched.

    Depending on the moment, its connection is closed, reset or refused, or its socket is no longer there. The same
    errors raised elsewhere are those of the network or of files.
    """
    if not isinstance(error, (EOFError, ConnectionError, FileNotFoundError, RuntimeError)):
        return False
    origin = traceback.extract_tb(error.__traceback__)[-1:]
    return any(Path(frame.filename).parts[-2:] in _CONNECTIONS for frame in origin)


def reason_for(error: BaseException) -> str | None:
    """Return a one-line explanation if memory has run out or a process was lost, or None for any other error."""
    text = str(error)
    on_gpu = isinstance(error, torch.OutOfMemoryError)
    if on_gpu or isinstance(error, MemoryError) or "DefaultCPUAllocator" in text:
        place = "on the GPU" if on_gpu else "on this machine"
        # Accumulation alone saves nothing, and neither may change in the folder of a run
        training = "--gradient_accumulation_steps N with an N-th of --max_tokens, in another --output_dir"
        return f"Out of memory {place}: use smaller batches (--max_tokens; in training, {training})."
    if _lost_connection(error) or isinstance(error, BrokenExecutor) or any(words in text for words in _LOST_WORKER):
        return "A data-loading process died, possibly out of memory; run the same command again to resume."
    if isinstance(error, RuntimeError) and any(words in text for words in _LOST_PEER):
        return "Another process of this run was lost; run the same command again to resume from the newest checkpoint."
    return None
