"""Callbacks of the trainer: the epoch of the batch sampler, the training speed and the progress bar."""

import time

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback

from ..data.batching import MaxTokensBatchSampler


class SetEpoch(TrainerCallback):
    """Set the epoch of the batch sampler, which accelerate's wrappers hide from `Trainer` after a resume."""

    def __init__(self, sampler: MaxTokensBatchSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.sampler.set_epoch(int(state.epoch or 0))


class TrainingSpeed(TrainerCallback):
    """Measure real target tokens per second and the seconds of the whole run, excluding validation and checkpoints.

    Attributes:
        tokens: real target tokens since the last call of `tokens_per_second`; the trainer adds to it.
        total_seconds: seconds of training, including those before a resume, which are read from the log.
    """

    def __init__(self):
        self.tokens: int | torch.Tensor = 0
        self.total_seconds = 0.0
        self._seconds = 0.0  # since the last call of tokens_per_second
        self._last_reading = 0.0

    def tokens_per_second(self) -> float:
        """Return the speed since the last call, and reset its counters."""
        speed = float(self.tokens) / self._seconds if self._seconds else 0.0
        self.tokens = 0
        self._seconds = 0.0
        return speed

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self._seconds += now - self._last_reading
        self.total_seconds += now - self._last_reading
        self._last_reading = now

    def _restart_clock(self, args, state, control, **kwargs):
        self._last_reading = time.perf_counter()

    on_evaluate = on_save = _restart_clock

    def on_train_begin(self, args, state, control, **kwargs):
        self._restart_clock(args, state, control)
        self.total_seconds = max((log.get("seconds", 0.0) for log in state.log_history), default=0.0)


class ProgressBar(ProgressCallback):
    """Show the last logged loss and speed next to transformers' progress bar."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        super().on_log(args, state, control, logs=logs, **kwargs)
        if self.training_bar is not None and logs and "tokens_per_second" in logs:
            self.training_bar.set_postfix(loss=logs["loss"], tokens_per_second=logs["tokens_per_second"])
