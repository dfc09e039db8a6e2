"""What keeps long runs from losing work: one run a folder, signals to end, losses that are no numbers, lost peers."""

import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from tqdm import tqdm
from transformers import TrainerCallback

from ..data.batching import IGNORED_LABEL

MAX_BAD_UPDATES = 3  # in a row
_LOST_WORKER = ("DataLoader worker", "abruptly died")
_LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Gloo", "gloo", "NCCL")


@contextmanager
def one_run(folder: str | Path) -> Iterator[None]:
    """Keeps every other run out of `folder`; a killed one keeps nobody out.

    Raises:
        ValueError: if a run is under way there.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "run.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"Another run is under way in {folder}; wait for its end or choose another folder.") from None
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
        if not any(folder.iterdir()):
            folder.rmdir()


class Safeguards(TrainerCallback):
    """Looks after every update, on all processes alike.

    SIGTERM, with which clusters announce that they take a machine away, ends training after the update under way, with
    a checkpoint. An update whose loss is not finite is left out, and `MAX_BAD_UPDATES` of them in a row end training.
    """

    def __init__(self, accelerator: Any, tokenizer: Any):
        self.accelerator, self.tokenizer = accelerator, tokenizer
        self.signalled = self.stopped = False
        self._bad_batch: str | None = None
        self._bad_updates = 0
        self._before: Any = None

    def _on_signal(self, *_: Any) -> None:
        self.signalled = True

    def on_train_begin(self, args, state, control, **kwargs):
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_signal)

    def restore_signals(self) -> None:
        """Leave SIGTERM to whoever had it before training, however training ended."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def check_loss(self, loss: torch.Tensor, labels: torch.Tensor) -> None:
        """At the loss of one batch, before its update."""
        if not torch.isfinite(loss):
            words = labels[0][labels[0] != IGNORED_LABEL].tolist()
            text = self.tokenizer.decode(words, skip_special_tokens=True) if self.tokenizer else words
            self._bad_batch = (
                f"loss {loss.item()} on a batch of {len(labels)} pairs, the first to translate to {text!r}"
            )

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        flags = torch.tensor([self.signalled, self._bad_batch is not None], dtype=torch.float32)
        if self.accelerator.num_processes > 1:
            flags = self.accelerator.reduce(flags.to(self.accelerator.device), "sum")
        self.stopped, bad = (flags > 0).tolist()
        if not bad:
            self._bad_updates = 0
            return
        self._bad_updates += 1
        if self.accelerator.scaler is None:  # which would skip the update itself, and miss the gradients
            for parameter in model.parameters():
                parameter.grad = None
        what = f"Update {state.global_step + 1} is left out: {self._bad_batch or 'bad loss on another process'}."
        self._bad_batch = None
        if self._bad_updates == MAX_BAD_UPDATES:
            raise FloatingPointError(
                f"{what} That makes {MAX_BAD_UPDATES} in a row. The last checkpoint is from before them; try a lower "
                "--learning_rate or a longer --warmup_steps, or --bf16 instead of --fp16."
            )
        tqdm.write(what, file=sys.stderr)  # not into a progress bar

    def on_step_end(self, args, state, control, **kwargs):
        if self.stopped:
            control.should_save = control.should_training_stop = True


def reason_for(error: BaseException) -> str | None:
    """Return in one line what it means that memory has run out or a process has been lost; None for other errors."""
    text = str(error)
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in text:
        place = "on the GPU" if isinstance(error, torch.OutOfMemoryError) else "on this machine"
        return f"Out of memory {place}: use smaller batches (--max_tokens, --gradient_accumulation_steps in training)."
    if isinstance(error, BrokenExecutor) or any(words in text for words in _LOST_WORKER):
        return (
            "A process that reads data was lost, possibly out of memory; run the same command again to resume from "
            "what is done."
        )
    if any(words in text for words in _LOST_PEER):
        return "Another process of this run was lost; run the same command again to resume from the newest checkpoint."
    return None


@contextmanager
def explain_failures() -> Iterator[None]:
    """Turn errors that `reason_for` knows into an `OSError` of one line."""
    try:
        yield
    except (RuntimeError, MemoryError, ConnectionResetError, EOFError) as error:
        with suppress(RuntimeError):  # torch reports a lost worker by a signal too, which must not come later
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        lost = isinstance(error, (ConnectionResetError, EOFError))  # while a worker hands over its data
        reason = reason_for(RuntimeError(_LOST_WORKER[0]) if lost else error)
        if reason is None:
            raise
        raise OSError(reason) from error
