from types import SimpleNamespace

import pytest
import torch
from sacrebleu import BLEU
from safetensors.torch import load_file
from torch import nn

from hf_vanilla_transformer import VanillaTransformerTrainingArguments

EVERY_UPDATE = {"save_strategy": "steps", "eval_strategy": "steps", "save_steps": 1, "save_total_limit": None}
DECAY = 0.3


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().double() for name, weight in model.named_parameters()}


def expected_average(first: dict[str, torch.Tensor], folder, updates: int) -> dict[str, torch.Tensor]:
    """Compute the average from the initial weights and a checkpoint of every update."""
    average = first
    for update in range(1, updates + 1):
        after = load_file(folder / f"checkpoint-{update}" / "model.safetensors")
        decay = min(DECAY, (1 + update) / (10 + update))
        average = {name: decay * value + (1 - decay) * after[name].double() for name, value in average.items()}
    return average


def test_training_ends_with_the_average_of_all_updates(trainer, tmp_path):
    run = trainer(max_steps=6, ema_decay=DECAY, eval_bleu=False, **EVERY_UPDATE)
    first = weights(run.model)
    run.train()
    last = load_file(tmp_path / "checkpoint-6" / "model.safetensors")
    expected, final = expected_average(first, tmp_path, 6), weights(run.model)
    for name, value in final.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)
    assert any(not torch.equal(value.float(), last[name]) for name, value in final.items())


def test_validation_uses_the_average(trainer):
    run = trainer(max_steps=4, ema_decay=DECAY, eval_bleu=False, **EVERY_UPDATE)
    run.train()
    reported = [log["eval_loss"] for log in run.state.log_history if "eval_loss" in log]
    assert reported[-1] == pytest.approx(run.evaluate()["eval_loss"], rel=1e-6)  # by now, the model is the average
    assert reported[0] != reported[-1]


def test_a_resumed_run_ends_with_the_same_average(trainer, small_model, tmp_path):
    whole = trainer(small_model(), max_steps=6, ema_decay=DECAY, eval_bleu=False, **EVERY_UPDATE)
    whole.train()
    resumed = trainer(small_model(), max_steps=6, ema_decay=DECAY, eval_bleu=False, **EVERY_UPDATE)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for name, value in weights(whole.model).items():
        assert torch.equal(value, weights(resumed.model)[name]), name


def test_the_best_model_is_the_average_at_its_update(trainer, tmp_path, monkeypatch):
    run = trainer(max_steps=5, ema_decay=DECAY, load_best_model_at_end=True, **EVERY_UPDATE)
    first, scores = weights(run.model), iter([1.0, 9.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(BLEU, "corpus_score", lambda *texts: SimpleNamespace(score=next(scores)))
    run.train()
    expected = expected_average(first, tmp_path, 2)
    for name, value in weights(run.model).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_out_of_range_is_rejected(decay, tmp_path):
    with pytest.raises(ValueError, match="ema_decay"):
        VanillaTransformerTrainingArguments(str(tmp_path), ema_decay=decay)
