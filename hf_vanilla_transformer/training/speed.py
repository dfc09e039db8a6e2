"""The speed of training, in real target tokens per second, and its duration."""

import time

import torch
from transformers import TrainerCallback


class TrainingSpeed(TrainerCallback):
    """Measure real target tokens per second and the seconds of the whole run, excluding validation and checkpoints.

    Attributes:
        tokens: real target tokens since the last call of `tokens_per_second`; the trainer adds to it.
        total_seconds: seconds of training, including those before a resume, which are read from the log.
    """

    def __init__(self):
        # The trainer adds a tensor on the device, because reading the count in each update would wait for a GPU
        self.tokens: int | torch.Tensor = 0
        self.total_seconds = 0.0
        # since the last call of tokens_per_second
        self._seconds = 0.0
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

    # transformers validates and saves after on_step_end, so what these took is not counted in the next step
    on_evaluate = on_save = _restart_clock

    def on_train_begin(self, args, state, control, **kwargs):
        self._restart_clock(args, state, control)
        # A resumed run starts with a new callback, but its state holds the log of the checkpoint
        self.total_seconds = max((log.get("seconds", 0.0) for log in state.log_history), default=0.0)
