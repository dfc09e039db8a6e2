"""Callbacks of the trainer: the epoch of the batches, the speed of training, and its progress bar."""

import time

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback

from ..data.batching import MaxTokensBatchSampler


class SetEpoch(TrainerCallback):
    """Tells the batch sampler its epoch: accelerate's wrappers hide it from `Trainer` after a resume."""

    def __init__(self, sampler: MaxTokensBatchSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.sampler.set_epoch(int(state.epoch or 0))


class TrainingSpeed(TrainerCallback):
    """Real target tokens a second, and the seconds of the whole run; validation and checkpoints do not count."""

    def __init__(self):
        self.tokens: int | torch.Tensor = 0
        self.total_seconds = 0.0  # with those before a resume, as the log has them
        self._seconds = 0.0
        self._since = 0.0

    def tokens_per_second(self) -> float:
        """The rate since the last call."""
        rate = float(self.tokens) / self._seconds if self._seconds else 0.0
        self.tokens, self._seconds = 0, 0.0
        return rate

    def on_step_end(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self._seconds += now - self._since
        self.total_seconds += now - self._since
        self._since = now

    def _restart(self, args, state, control, **kwargs):
        self._since = time.perf_counter()

    on_evaluate = on_save = _restart

    def on_train_begin(self, args, state, control, **kwargs):
        self._restart(args, state, control)
        self.total_seconds = max((log.get("seconds", 0.0) for log in state.log_history), default=0.0)


class ProgressBar(ProgressCallback):
    """transformers' progress bar, with the last logged loss and speed beside it."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        super().on_log(args, state, control, logs=logs, **kwargs)
        if self.training_bar is not None and logs and "tokens_per_second" in logs:
            self.training_bar.set_postfix(loss=logs["loss"], tokens_per_second=logs["tokens_per_second"])
