"""Between two logs, a training update never waits for a value that the device computes."""

import pytest
import torch
from host_waits import HostWaits, count_host_waits
from transformers import TrainerCallback
from unequal_pairs import pairs


class ThreeUpdates(TrainerCallback):
    """Count the waits from the end of update 3 to the end of update 6."""

    def __init__(self):
        self.waits = HostWaits()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            self.waits.start()
        if state.global_step == 6:
            self.waits.stop()


def waits_in_three_updates(trainer, **settings) -> int:
    updates = ThreeUpdates()
    rows = pairs([(1 + i % 9, 1 + i % 7) for i in range(200)])  # an epoch of more than 7 updates
    run = trainer(train_dataset=rows, **{"max_steps": 7, "max_tokens": 32, "save_strategy": "no", **settings})
    run.add_callback(updates)
    run.train()
    return updates.waits.count()


@pytest.mark.parametrize(
    "settings", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}, {"max_grad_norm": 1.0}, {"ema_decay": 0.9}]
)
def test_no_update_waits_for_the_device(trainer, settings):
    assert waits_in_three_updates(trainer, logging_steps=100, **settings) == 0


def test_each_log_waits(trainer):
    assert waits_in_three_updates(trainer, logging_steps=1) >= 3


def test_boolean_indexing_and_conditions_are_counted():
    values = torch.arange(4)
    assert count_host_waits(lambda: values[values > 1]) == 1
    assert count_host_waits(lambda: bool(values.any())) == 1
    assert count_host_waits(lambda: values + 1) == 0
