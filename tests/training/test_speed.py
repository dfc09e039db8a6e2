import itertools
from types import SimpleNamespace

import pytest
from unequal_pairs import UNEQUAL

from hf_vanilla_transformer.training import progress


@pytest.fixture
def two_second_clock(monkeypatch):
    """A clock for the callback that advances by two seconds with every reading; each step ends with one reading."""
    clock = itertools.count(step=2)
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: next(clock)))


def test_the_logged_speed_is_in_real_target_tokens_per_second(trainer, two_second_clock):
    run = trainer(max_tokens=16, gradient_accumulation_steps=8)
    run.train()
    speeds = [entry["tokens_per_second"] for entry in run.state.log_history if "tokens_per_second" in entry]
    assert speeds == pytest.approx([sum(target for _, target in UNEQUAL) / 2] * 3, abs=0.1)


def test_the_seconds_of_a_run_include_steps_that_are_not_logged(trainer, two_second_clock):
    run = trainer(logging_steps=10**6, max_steps=3)
    run.train()
    assert run.meter.total_seconds == 6
