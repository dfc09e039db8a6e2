import itertools
from types import SimpleNamespace

import pytest
from unequal_pairs import UNEQUAL

from hf_vanilla_transformer.training import callbacks


@pytest.fixture
def two_second_clock(monkeypatch):
    """A clock for the callbacks that advances by two seconds with every reading; each step ends with one reading."""
    clock = itertools.count(step=2)
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(perf_counter=lambda: next(clock)))


def test_every_epoch_uses_every_pair_in_a_new_order(trainer):
    run = trainer(max_tokens=32, max_steps=-1, num_train_epochs=3)
    seen = []
    collate = run.data_collator

    def recording(rows):
        seen.extend(tuple(row["input_ids"]) for row in rows)
        return collate(rows)

    run.data_collator = recording
    run.train()
    epochs = [seen[start : start + 8] for start in (0, 8, 16)]
    everything = {tuple(row["input_ids"]) for row in run.train_dataset}
    assert all(set(epoch) == everything for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_logged_speed_is_in_real_target_tokens_per_second(trainer, two_second_clock):
    run = trainer(max_tokens=16, gradient_accumulation_steps=8)
    run.train()
    speeds = [entry["tokens_per_second"] for entry in run.state.log_history if "tokens_per_second" in entry]
    assert speeds == pytest.approx([sum(target for _, target in UNEQUAL) / 2] * 3, abs=0.1)


def test_the_seconds_of_a_run_include_steps_that_are_not_logged(trainer, two_second_clock):
    run = trainer(logging_steps=10**6, max_steps=3)
    run.train()
    assert run.speed.total_seconds == 6
