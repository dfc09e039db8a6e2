import json
import math

import pytest
import torch
from PIL import Image

from hf_vanilla_transformer import noam
from hf_vanilla_transformer.study.range_test import HIGHEST, LOWEST


def test_the_range_test_raises_the_rate_exponentially_and_then_tries_factors(tune, flags, tmp_path, capsys):
    folder = tmp_path / "range"
    assert tune(flags, folder, "--method", "range", "--max_steps", "40", "--learning_rate", "0.5") == 0
    result = json.loads((folder / "range.json").read_text())
    rates = result["schedule_off"]["rates"]
    assert rates[0] == pytest.approx(LOWEST)
    for i, rate in enumerate(rates):
        assert math.log(rate / LOWEST) == pytest.approx(i / 39 * math.log(HIGHEST / LOWEST))
    assert result["schedule_off"]["steepest"] <= result["schedule_off"]["lowest"]
    assert [row["factor"] for row in result["schedule_on"]] == [0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0]
    for row in result["schedule_on"]:
        assert row["peak_rate"] == pytest.approx(noam(8, 16, 8, row["factor"]))
    losses = {row["factor"]: row["eval_loss"] for row in result["schedule_on"]}
    assert losses[0.5] < losses[0.0625]  # 40 updates at tiny rates learn less
    out = capsys.readouterr().out
    assert out.startswith("Schedule off: the loss falls fastest at ")
    assert "| 0.5 |" in out
    with Image.open(folder / "range.png") as picture:
        assert picture.width > 1000


def test_the_reported_rates_are_those_of_the_optimiser(tune, flags, tmp_path, monkeypatch):
    used = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        "torch.optim.AdamW.step", lambda self, *args, **kw: (used.append(self.param_groups[0]["lr"]), step(self))[1]
    )
    assert tune(flags, tmp_path / "range", "--method", "range", "--max_steps", "20") == 0
    rates = json.loads((tmp_path / "range" / "range.json").read_text())["schedule_off"]["rates"]
    assert used[: len(rates)] == pytest.approx(rates)


def test_of_several_validation_texts_the_loss_of_the_first_is_compared(tune, flags, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_vanilla_transformer.study.range_test.FACTORS", (1.0,))
    train, val = str(tmp_path / "train"), str(tmp_path / "val")
    results = []
    for name, second in (("one", val), ("two", train)):
        texts = ["--train_file", train, train, "--validation_file", val, second, "--max_steps", "20"]
        assert tune(flags, tmp_path / name, "--method", "range", *texts) == 0
        results.append(json.loads((tmp_path / name / "range.json").read_text())["schedule_on"])
    assert results[0] == results[1]


def test_a_stopped_range_test_prints_no_results(tune, flags, stop_at, tmp_path, capsys, monkeypatch):
    stop_at(25, monkeypatch)  # in the first training run with a factor
    assert tune(flags, tmp_path / "range", "--method", "range", "--max_steps", "20") == 130
    assert capsys.readouterr().out == ""


def test_a_range_test_needs_20_updates(tune, flags, tmp_path, capsys):
    assert tune(flags, tmp_path / "study", "--method", "range", "--max_steps", "5") == 1
    assert "at least 20 updates" in capsys.readouterr().err
