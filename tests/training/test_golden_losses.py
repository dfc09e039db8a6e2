"""Training learns exactly what it has learned since its losses were recorded (`support/golden_run.py`)."""

import pytest
from golden_run import UPDATES, golden_losses, recorded

# In float64, the losses with and without vector instructions differ by 3e-16. A label smoothing of 0.11 instead of 0.1
# changes the first loss by 3e-5.
TOLERANCE = 1e-9


def test_a_run_on_the_cpu_has_the_recorded_losses():
    losses = golden_losses("cpu")
    assert len(losses) == UPDATES
    assert losses == pytest.approx(recorded()["cpu"], rel=TOLERANCE)


@pytest.mark.parametrize(
    "change", [{"label_smoothing_factor": 0.1001}, {"adam_beta2": 0.99}, {"learning_rate": 1.0001}, {"seed": 43}]
)
def test_a_small_change_of_what_is_learned_shows(change):
    losses = golden_losses("cpu", max_steps=3, **change)
    difference = max(abs(loss / expected - 1) for loss, expected in zip(losses, recorded()["cpu"], strict=False))
    assert difference > 10 * TOLERANCE
