import json
import math
from types import ModuleType

import pytest
import torch
from PIL import Image
from script_runs import import_script

from hf_vanilla_transformer import noam


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The module scripts/study/range_test.py."""
    return import_script("study/range_test.py")


@pytest.fixture
def measure(script):
    """A function that runs the script with flags in a folder, and returns its exit status or its error message."""

    def run(flags, folder, *more) -> int | str:
        try:
            script.main([*flags, *more, "--output_dir", str(folder)])
        except SystemExit as stop:
            return stop.code
        return 0

    return run


@pytest.mark.slow
def test_the_range_test_raises_the_rate_exponentially_and_then_tries_factors(measure, script, flags, tmp_path, capsys):
    folder = tmp_path / "range"
    assert measure(flags, folder, "--max_steps", "40", "--learning_rate", "0.5") == 0
    result = json.loads((folder / "range.json").read_text())
    rates = result["schedule_off"]["rates"]
    assert rates[0] == pytest.approx(script.LOWEST)
    for i, rate in enumerate(rates):
        assert math.log(rate / script.LOWEST) == pytest.approx(i / 39 * math.log(script.HIGHEST / script.LOWEST))
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


@pytest.mark.slow
def test_the_reported_rates_are_those_of_the_optimiser(measure, flags, tmp_path, monkeypatch):
    used = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        "torch.optim.AdamW.step", lambda self, *args, **kw: (used.append(self.param_groups[0]["lr"]), step(self))[1]
    )
    assert measure(flags, tmp_path / "range", "--max_steps", "20") == 0
    rates = json.loads((tmp_path / "range" / "range.json").read_text())["schedule_off"]["rates"]
    assert used[: len(rates)] == pytest.approx(rates)


@pytest.mark.slow
def test_of_several_validation_texts_the_loss_of_the_first_is_compared(measure, script, flags, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "FACTORS", (1.0,))
    train, val = str(tmp_path / "train"), str(tmp_path / "val")
    results = []
    for name, second in (("one", val), ("two", train)):
        texts = ["--train_file", train, train, "--validation_file", val, second, "--max_steps", "20"]
        assert measure(flags, tmp_path / name, *texts) == 0
        results.append(json.loads((tmp_path / name / "range.json").read_text())["schedule_on"])
    assert results[0] == results[1]


def test_a_stopped_range_test_prints_no_results(measure, flags, stop_at, tmp_path, capsys, monkeypatch):
    stop_at(25, monkeypatch)  # in the first training run with a factor
    assert measure(flags, tmp_path / "range", "--max_steps", "20") == 130
    assert capsys.readouterr().out == ""


def test_a_range_test_needs_20_updates(measure, flags, tmp_path):
    message = "range_test.py: A range test needs at least 20 updates: pass a larger --max_steps."
    assert measure(flags, tmp_path / "study", "--max_steps", "5") == message


def test_flags_that_do_not_exist_are_refused_by_the_name_of_the_script(measure, flags, tmp_path, capsys):
    assert measure(flags, tmp_path / "range", "--trials", "3") == 2
    assert capsys.readouterr().err.startswith("range_test.py: unrecognized arguments: --trials 3")
    assert measure(flags, tmp_path / "range", "--max_steps", "-1").startswith("range_test.py: Tuning needs a fixed")
    assert not (tmp_path / "range").exists()


def test_losses_are_plotted_by_learning_rate_and_by_factor(script):
    off = {"rates": [0.1, 1.0], "smoothed_losses": [3.0, 2.0], "steepest": 0.1, "lowest": 1.0}
    on = [{"factor": 1.0, "eval_loss": 2.5}, {"factor": 2.0, "eval_loss": None}]
    left, right = script.learning_rates({"updates": 9, "schedule_off": off, "schedule_on": on}).axes
    assert [list(axis) for axis in left.lines[0].get_data()] == [[0.1, 1.0], [3.0, 2.0]]
    assert [list(axis) for axis in right.lines[0].get_data()] == [[1.0], [2.5]]
