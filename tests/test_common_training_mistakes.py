"""Common mistakes in training the Transformer, with one test per mistake, as in `test_common_mistakes.py`."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hf_vanilla_transformer.model.loss_vanilla_transformer import smoothed_cross_entropy
from hf_vanilla_transformer.training.arguments import VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.schedule import get_noam_schedule, noam
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer


def differ(wrong, right) -> bool:
    """Return whether two tensors, which must have the same shape, differ by much more than rounding errors."""
    wrong, right = torch.as_tensor(wrong), torch.as_tensor(right)
    assert wrong.shape == right.shape
    return not torch.allclose(wrong.to(right), right, atol=1e-3)


def test_the_first_update_uses_the_learning_rate_of_step_1():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([parameter], lr=1.0)
    schedule = get_noam_schedule(optimizer, d_model=512, warmup_steps=4000)
    rates = []
    for _ in range(3):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([512**-0.5 * 4000**-1.5 * step for step in (1, 2, 3)])

    with pytest.raises(ValueError, match="Steps count from 1"):  # the wrong variants: step 0, or step 1 twice
        noam(0, 512, 4000)
    assert differ(torch.tensor([noam(max(step, 1), 512, 4000) for step in range(3)]) * 1e7, torch.tensor(rates) * 1e7)


def test_label_smoothing_excludes_padding():
    logits, labels = torch.randn(2, 4, 7), torch.tensor([[3, 4, 2, -100], [5, 2, -100, -100]])
    real = labels != -100
    target = 0.9 * nn.functional.one_hot(labels.clamp(min=0), 7) + 0.1 / 6  # the 6 tokens other than padding
    target[..., 0] = 0.0
    entropy = -(target * logits.log_softmax(-1)).sum(-1)
    right = entropy[real].sum()
    torch.testing.assert_close(smoothed_cross_entropy(logits, labels, 0.1, pad_token_id=0), right)
    assert differ(entropy.sum(), right)  # the wrong variant includes padded positions
    mass_on_padding = cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=0.1, ignore_index=-100
    )
    assert differ(mass_on_padding, right)


def test_the_validation_loss_is_not_smoothed(small_model, tmp_path):
    rows = [{"input_ids": [4, 5, 2], "labels": [6, 7, 2]}, {"input_ids": [8, 2], "labels": [9, 10, 11, 2]}]
    args = VanillaTransformerTrainingArguments(tmp_path, use_cpu=True, eval_bleu=False, label_smoothing_factor=0.5)
    model = small_model()
    metrics = VanillaTransformerTrainer(model, args, eval_dataset=rows).evaluate()
    logits = [model(input_ids=torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])) for row in rows]
    plain, smoothed = (
        sum(
            cross_entropy(output.logits[0], torch.tensor(row["labels"]), reduction="sum", label_smoothing=smoothing)
            for row, output in zip(rows, logits, strict=True)
        ).item()
        / 7
        for smoothing in (0.0, 0.5)
    )
    assert metrics["eval_loss"] == pytest.approx(plain, rel=1e-5)
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(plain), rel=1e-4)
    assert abs(smoothed - plain) > 1e-3


def test_accumulated_gradients_equal_those_of_one_large_batch(small_model):
    model = small_model()
    source, labels = torch.randint(4, 50, (2, 6)), torch.randint(4, 50, (2, 6))
    labels[1, 1:] = -100  # 6 tokens in the first row, 1 in the second

    def gradient(rows: list[slice], divisor) -> torch.Tensor:
        model.zero_grad()
        for row in rows:
            loss = model(input_ids=source[row], labels=labels[row], num_items_in_batch=divisor).loss
            (loss if divisor else loss / len(rows)).backward()
        return model.model.shared.weight.grad.clone()

    whole = gradient([slice(0, 2)], 7)
    accumulated = gradient([slice(0, 1), slice(1, 2)], 7)
    torch.testing.assert_close(accumulated, whole, atol=1e-6, rtol=1e-4)
    wrong = gradient([slice(0, 1), slice(1, 2)], None)  # the wrong variant: the mean of two means
    assert differ(wrong, whole)
