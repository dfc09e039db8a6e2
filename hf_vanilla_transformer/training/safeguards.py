"""Protect long runs: one run per folder, SIGTERM, non-finite losses, lost workers and processes."""

import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout
from tqdm import tqdm
from transformers import TrainerCallback

from ..model.configuration_vanilla_transformer import IGNORED_LABEL

if TYPE_CHECKING:
    from accelerate.accelerator import Accelerator
    from transformers import PreTrainedTokenizerBase

MAX_BAD_UPDATES = 3  # in a row
_LOST_WORKER = ("DataLoader worker", "abruptly died")
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Gloo", "gloo", "NCCL")


@contextmanager
def one_run(folder: str | Path) -> Iterator[None]:
    """Lock `folder` for a single run; the lock is released even if its process is killed.

    Raises:
        ValueError: if another run is using the folder.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "run.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"Another run is using {folder}; wait until it ends or choose another folder.") from None
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
        if not any(folder.iterdir()):
            folder.rmdir()


class Safeguards(TrainerCallback):
    """Stop on SIGTERM and skip updates with a non-finite loss, on all processes at the same update.

    After SIGTERM, which clusters send before they reclaim a machine, training finishes the current update, writes a
    checkpoint and stops. An update whose loss is not finite is skipped, and `MAX_BAD_UPDATES` of them in a row raise a
    `FloatingPointError`.
    """

    def __init__(self, accelerator: "Accelerator", tokenizer: "PreTrainedTokenizerBase | None"):
        self.accelerator, self.tokenizer = accelerator, tokenizer
        self.signalled = self.stopped = False
        self._bad_batch: str | None = None  # description of the last batch with a non-finite loss
        self._bad_updates = 0  # in a row
        self._previous_handler: Any = None

    def _on_signal(self, *_: Any) -> None:
        self.signalled = True

    def on_train_begin(self, args, state, control, **kwargs):
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._on_signal)

    def restore_signals(self) -> None:
        """Restore the SIGTERM handler from before training, however training ended."""
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None

    def check_loss(self, loss: torch.Tensor, labels: torch.Tensor) -> None:
        """Remember a batch whose loss is not finite, so that its update is skipped."""
        if not torch.isfinite(loss):
            ids = labels[0][labels[0] != IGNORED_LABEL].tolist()
            text = self.tokenizer.decode(ids, skip_special_tokens=True) if self.tokenizer else ids
            self._bad_batch = f"loss {loss.item()} on a batch of {len(labels)} pairs, the first with target {text!r}"

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        flags = torch.tensor([self.signalled, self._bad_batch is not None], dtype=torch.float32)
        if self.accelerator.num_processes > 1:
            flags = self.accelerator.reduce(flags.to(self.accelerator.device), "sum")
        self.stopped, bad = (flags > 0).tolist()
        if not bad:
            self._bad_updates = 0
            return
        self._bad_updates += 1
        if self.accelerator.scaler is None:  # a gradient scaler skips the update itself, and needs the gradients
            for parameter in model.parameters():
                parameter.grad = None
        reason = self._bad_batch or "non-finite loss on another process"
        message = f"Update {state.global_step + 1} was skipped: {reason}."
        self._bad_batch = None
        if self._bad_updates == MAX_BAD_UPDATES:
            raise FloatingPointError(
                f"{message} That makes {MAX_BAD_UPDATES} in a row. The last checkpoint predates them; try a "
                "lower --learning_rate, more --warmup_steps, or --bf16 instead of --fp16."
            )
        tqdm.write(message, file=sys.stderr)  # print would break a progress bar

    def on_step_end(self, args, state, control, **kwargs):
        if self.stopped:
            control.should_save = control.should_training_stop = True


def reason_for(error: BaseException) -> str | None:
    """Return a one-line explanation if memory has run out or a process was lost, or None for any other error."""
    text = str(error)
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in text:
        place = "on the GPU" if isinstance(error, torch.OutOfMemoryError) else "on this machine"
        return f"Out of memory {place}: use smaller batches (--max_tokens, --gradient_accumulation_steps in training)."
    if isinstance(error, BrokenExecutor) or any(words in text for words in _LOST_WORKER):
        return "A data-loading process died, possibly out of memory; run the same command again to resume."
    if any(words in text for words in _LOST_PEER):
        return "Another process of this run was lost; run the same command again to resume from the newest checkpoint."
    return None


@contextmanager
def explain_failures() -> Iterator[None]:
    """Turn errors that `reason_for` can explain into a one-line `OSError`."""
    try:
        yield
    except (RuntimeError, MemoryError, ConnectionResetError, EOFError) as error:
        with suppress(RuntimeError):  # torch's SIGCHLD handler may raise for the same lost worker
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        lost = isinstance(error, (ConnectionResetError, EOFError))  # raised if a worker dies while sending data
        reason = reason_for(RuntimeError(_LOST_WORKER[0]) if lost else error)
        if reason is None:
            raise
        raise OSError(reason) from error
