import io

import numpy as np
import pytest
import torch
from small import SIZES

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
)
from hf_vanilla_transformer.training.schedule import get_noam_schedule, noam


def formula(step: np.ndarray, d_model: int, warmup_steps: int) -> np.ndarray:
    """Equation 3 of the paper, in float64."""
    step = np.asarray(step, dtype=np.float64)
    return 1 / np.sqrt(d_model) * np.minimum(1 / np.sqrt(step), step / warmup_steps**1.5)


def optimizer_and_schedule(d_model: int = 64, warmup_steps: int = 5, factor: float = 1.0):
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=factor)
    return optimizer, get_noam_schedule(optimizer, d_model, warmup_steps)


def train(optimizer, schedule, updates: int) -> list[float]:
    rates = []
    for _ in range(updates):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(("d_model", "warmup_steps"), [(512, 4000), (1024, 4000), (128, 400), (2, 1)])
def test_the_rate_matches_equation_3(d_model, warmup_steps):
    steps = np.unique(np.geomspace(1, 300_000, 500).astype(int))
    rates = [noam(int(step), d_model, warmup_steps) for step in steps]
    np.testing.assert_allclose(rates, formula(steps, d_model, warmup_steps), rtol=1e-12)


def test_the_factor_scales_the_rate():
    assert noam(7, 512, 4000, factor=2.5) == pytest.approx(2.5 * formula(7, 512, 4000), rel=1e-12)


def test_the_second_rate_is_twice_the_first():
    assert noam(1, 512, 4000) > 0
    assert noam(2, 512, 4000) == pytest.approx(2 * noam(1, 512, 4000), rel=1e-12)


def test_the_peak_is_at_the_end_of_the_warmup():
    rates = [noam(step, 256, 300) for step in range(1, 2000)]
    assert np.argmax(rates) + 1 == 300
    assert max(rates) == pytest.approx(1 / np.sqrt(256 * 300), rel=1e-12)


def test_the_peak_rate_of_the_base_model_matches_the_paper():
    assert noam(4000, 512, 4000) == pytest.approx(6.99e-4, abs=5e-7)


def test_the_rate_never_jumps():
    rates = np.array([noam(step, 512, 100) for step in range(1, 1000)])
    assert np.abs(np.diff(rates)).max() <= rates.max() / 100 * (1 + 1e-9)


@pytest.mark.parametrize(("step", "warmup_steps"), [(0, 4000), (-1, 4000), (1, 0)])
def test_steps_below_1_are_an_error(step, warmup_steps):
    with pytest.raises(ValueError, match="count from 1"):
        noam(step, 512, warmup_steps)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_optimizer_uses_the_rate_of_step_n_for_its_nth_update(factor):
    rates = train(*optimizer_and_schedule(64, 5, factor), updates=20)
    np.testing.assert_allclose(rates, factor * formula(np.arange(1, 21), 64, 5), rtol=1e-12)


def test_a_resumed_schedule_continues_where_it_stopped():
    optimizer, schedule = optimizer_and_schedule()
    train(optimizer, schedule, 8)
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), schedule.state_dict()], file)
    file.seek(0)
    optimizer, schedule = optimizer_and_schedule()
    for part, state in zip((optimizer, schedule), torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    np.testing.assert_allclose(train(optimizer, schedule, 4), formula(np.arange(9, 13), 64, 5), rtol=1e-12)


def test_inverse_sqrt_rises_to_the_learning_rate_and_falls_with_the_root_of_the_updates(tmp_path):
    """fairseq's schedule from 0, and without its 1e-7; transformers counts updates from 0."""
    flags = {"lr_scheduler_type": "inverse_sqrt", "learning_rate": 5e-4, "warmup_steps": 4000}
    args = VanillaTransformerTrainingArguments(output_dir=str(tmp_path), use_cpu=True, max_steps=100_000, **flags)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=20, **SIZES))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    schedule = VanillaTransformerTrainer(model, args).create_scheduler(args.max_steps, optimizer)
    rates = {update: 5e-4 * schedule.lr_lambdas[0](update) for update in (0, 1000, 4000, 16_000, 99_999)}
    expected = {0: 0.0, 1000: 1.25e-4, 4000: 5e-4, 16_000: 2.5e-4, 99_999: 5e-4 * (4000 / 99_999) ** 0.5}
    assert rates == pytest.approx(expected)
