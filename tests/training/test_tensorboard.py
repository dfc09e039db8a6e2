"""The events of TensorBoard, read by its own reader."""

from pathlib import Path
from unittest.mock import MagicMock

import pytest
from transformers import TrainerControl, TrainerState

from hf_vanilla_transformer import VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.progress import RunCurve

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def curves(folder: Path) -> dict[str, dict[int, float]]:
    """Return the values of each curve in a folder by update, which may have only one."""
    events = event_accumulator.EventAccumulator(str(folder)).Reload()
    result = {}
    # The epoch is part of every log, that of a validation too
    for name in {*events.Tags()["scalars"]} - {"train/epoch", "eval/epoch"}:
        result[name] = {event.step: event.value for event in events.Scalars(name)}
        assert len(result[name]) == len(events.Scalars(name)), name
    return result


def logged(run, name: str) -> dict[int, float]:
    return {entry["step"]: entry[name] for entry in run.state.log_history if name in entry}


def event_folders(run: Path) -> set[Path]:
    return {file.parent for file in run.rglob("events.out.tfevents.*")}


@pytest.fixture
def flags(run_flags, text_flags, tmp_path):
    more = ["--report_to", "tensorboard", "--save_steps", "2", "--eval_steps", "1", "--no_eval_bleu"]
    return run_flags(tmp_path / "run", *text_flags, *more)


def lose_the_last_checkpoint(folder: Path) -> None:
    """Leave a run as if it had been killed after the update of its last checkpoint, but before this was written."""
    newest = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.removeprefix("checkpoint-")))
    (newest / "model.safetensors").unlink()


def test_a_resumed_run_is_one_curve(train, flags, tmp_path):
    train(*flags, "--max_steps", "4")
    lose_the_last_checkpoint(tmp_path / "run")
    train(*flags, "--max_steps", "5")
    run = train(*flags, "--max_steps", "6")
    assert event_folders(tmp_path / "run") == {tmp_path / "run" / "runs"}
    found = curves(tmp_path / "run" / "runs")
    for curve, name in (("train/loss", "loss"), ("train/perplexity", "perplexity"), ("eval/loss", "eval_loss")):
        assert found[curve] == pytest.approx(logged(run, name), rel=1e-5)
        assert list(found[curve]) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("search", "purged"), [(False, 5), (True, None)])
def test_only_a_run_takes_back_its_own_events_and_no_trial_of_a_search(tmp_path, search, purged):
    events = RunCurve()
    events._SummaryWriter = MagicMock()
    args = VanillaTransformerTrainingArguments(str(tmp_path), use_cpu=True)
    events.on_train_begin(args, TrainerState(global_step=4, is_hyper_param_search=search), TrainerControl())
    assert events._SummaryWriter.call_args.kwargs["purge_step"] == purged


def test_a_run_that_lost_all_checkpoints_begins_its_curve_again(train, flags, tmp_path):
    run_folder = tmp_path / "run"
    train(*flags, "--save_strategy", "no", "--max_steps", "4")
    # as if it had been killed before its end
    for name in ("trainer_state.json", "model.safetensors"):
        (run_folder / name).unlink()
    run = train(*flags, "--save_strategy", "no", "--max_steps", "3")
    assert curves(run_folder / "runs")["train/loss"] == pytest.approx(logged(run, "loss"), rel=1e-5)


def test_a_validation_after_training_takes_nothing_back(train, flags, tmp_path):
    run = train(*flags)
    run.evaluate(metric_key_prefix="eval_later")
    found = curves(tmp_path / "run" / "runs")
    assert list(found["train/loss"]) == [1, 2]
    assert list(found["eval/later_loss"]) == [2]


def test_callbacks_of_the_caller_keep_their_writer(trainer, tmp_path):
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback

    own = TensorBoardCallback(SummaryWriter(str(tmp_path / "own")))
    trainer(callbacks=[own]).train()
    assert list(curves(tmp_path / "own")["train/loss"]) == [1, 2, 3]
