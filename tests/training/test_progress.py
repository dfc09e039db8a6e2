"""What a training run tells about its progress: its lines, the loss without smoothing, and overfitting."""

import math
from weakref import WeakSet

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import write_moses
from terminal import Terminal
from torch import nn
from tqdm import tqdm
from transformers import TrainerCallback
from unequal_pairs import UNEQUAL, pairs

from hf_vanilla_transformer.data.batching import Seq2SeqCollator
from hf_vanilla_transformer.training.progress import (
    COLUMNS,
    TrainingMeter,
    overfitting,
    print_lines,
    training_line,
    validation_lines,
    validations,
)


def mean_cross_entropy(run) -> float:
    """Return torch's cross-entropy of the model per target token of the training pairs, one pair at a time."""
    loss, tokens = 0.0, 0
    with torch.no_grad():
        for row in run.train_dataset:
            batch = Seq2SeqCollator(0, 1)([row])
            logits = run.model(**batch).logits[0].double()
            loss += nn.functional.cross_entropy(logits, batch["labels"][0], reduction="sum").item()
            tokens += len(row["labels"])
    return loss / tokens


@pytest.mark.parametrize(
    "settings", [{}, {"r_drop_alpha": 5.0}, {"simcut_alpha": 3.0}, {"label_smoothing_factor": 0.0}], ids=str
)
def test_the_training_loss_without_smoothing_is_logged_per_token_of_the_whole_update(trainer, settings):
    run = trainer(max_tokens=16, gradient_accumulation_steps=len(UNEQUAL), max_steps=1, **settings)
    expected = mean_cross_entropy(run)
    run.train()
    (log,) = (entry for entry in run.state.log_history if "loss" in entry)
    assert log["unsmoothed_loss"] == pytest.approx(expected, rel=1e-5)
    assert log["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)


def test_the_mean_is_over_all_updates_since_the_last_log(trainer):
    # Each update has all pairs, and so as many tokens as the others
    settings = {"max_tokens": 16, "max_steps": 6, "gradient_accumulation_steps": len(UNEQUAL)}
    found = []
    for logging_steps in (1, 6):
        run = trainer(**settings, logging_steps=logging_steps)
        run.train()
        found.append([entry["unsmoothed_loss"] for entry in run.state.log_history if "unsmoothed_loss" in entry])
    assert len(set(found[0])) == 6
    assert found[1] == [pytest.approx(sum(found[0]) / 6, rel=1e-5)]


def test_a_batch_whose_loss_is_not_finite_is_left_out_of_the_mean(trainer):
    meter = TrainingMeter(trainer().accelerator)
    assert "unsmoothed_loss" not in meter.read()
    for nats, tokens in ((6.0, 2), (math.nan, 5), (math.inf, 5), (3.0, 1)):
        meter.add(torch.tensor(nats), torch.tensor(tokens))
    assert meter.read()["unsmoothed_loss"] == 3.0
    assert "unsmoothed_loss" not in meter.read()
    # a model of another class does not tell
    meter.add(None, torch.tensor(4))
    assert "unsmoothed_loss" not in meter.read()


def log_of(perplexities: list[float], losses: list[float], name: str = "") -> list[dict[str, float]]:
    """Return a log with a loss and a validation every 100 updates."""
    rows = []
    for i, (perplexity, loss) in enumerate(zip(perplexities, losses, strict=True), start=1):
        rows += [{"step": 100 * i, "loss": loss}, {"step": 100 * i, f"eval_{name}perplexity": perplexity}]
    return rows


@pytest.mark.parametrize(
    ("perplexities", "losses", "best"),
    [
        ([30, 20, 25], [5, 4, 3], 200),
        ([20, 30, 40], [5, 4, 3], 100),
        ([30, math.nan, 20, math.nan, 25], [5, 4, 3, 2, 1], 300),
        ([30, 20, 19], [5, 4, 3], None),  # still better
        ([30, 20, 20.5], [5, 4, 3], None),  # perhaps chance
        ([30, 20, 900], [5, 4, 8], None),  # training diverges
        ([30, 20, 25, 18], [5, 4, 3, 2], None),  # over again
        ([30], [5], None),
        ([math.nan, math.nan], [5, 4], None),
        ([], [], None),
    ],
)
def test_a_run_overfits_if_validation_becomes_worse_while_training_does_not(perplexities, losses, best):
    found = overfitting(log_of(perplexities, losses))
    assert (found and found[0].updates) == best


def test_of_several_validation_texts_the_first_tells_whether_a_run_overfits():
    news, talks = log_of([30, 20, 25], [5, 4, 3], "news_"), log_of([10, 9, 8], [5, 4, 3], "talks_")
    logs = [sorted(log, key=lambda entry: entry["step"]) for log in (news + talks, talks + news)]
    assert [bool(overfitting(log)) for log in logs] == [True, False]
    assert [each.text for each in validations(logs[0])] == ["news", "talks"] * 3


def test_overfitting_is_named_once_with_its_best_update(trainer, capfd):
    schedule = {"lr_scheduler_type": "constant", "learning_rate": 3e-3, "max_steps": 60, "logging_steps": 10}
    validation = {"eval_strategy": "steps", "eval_steps": 10, "eval_bleu": False, "metric_for_best_model": "loss"}
    run = trainer(train_dataset=pairs(UNEQUAL), **schedule, **validation)
    run.train()
    found = {log["step"]: log["eval_perplexity"] for log in run.state.log_history if "eval_perplexity" in log}
    best = min(found, key=found.get)
    assert found[60] > 1.05 * found[best]
    lines = [line for line in capfd.readouterr().err.splitlines() if "Overfitting" in line]
    (line,) = lines
    first = next(step for step in found if step > best and found[step] > 1.05 * found[best])
    expected = f"was lowest after {best} updates, {found[best]:,.2f}, and is {found[first]:,.2f} after {first}"
    assert expected in line


def test_a_run_that_overfits_says_so_next_to_its_best_score(train, run_flags, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    text = write_moses(tmp_path / "text", en=["a dog runs", "two men sit"], fr=["un chien court", "deux hommes"])
    other = write_moses(tmp_path / "other", en=["the zebra"], fr=["le zèbre"])
    flags = ["--train_file", str(text), "--validation_file", str(other), "--target_lang", "fr", "--vocab_size", "262"]
    flags += ["--lr_scheduler_type", "constant", "--learning_rate", "0.01", "--no_eval_bleu", "--dropout", "0"]
    run = train(*run_flags(tmp_path / "run", *flags, "--max_steps", "40", "--eval_steps", "10", "--save_steps", "40"))
    printed = capfd.readouterr().err
    assert f"lowest after {run.state.best_global_step or 10} updates" in printed
    assert printed.index("Overfitting") < printed.index("Best loss")


NUMBERS = st.floats() | st.sampled_from([1e6, 999_999.999, -1e-5])
ENDS = [sum(widths) + 2 * i for i, widths in enumerate([*COLUMNS.values()][: i + 1] for i in range(len(COLUMNS)))]


@given(
    st.integers(0, 10**8 - 1),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("unsmoothed_loss", "perplexity", "tokens_per_second"), NUMBERS)),
    st.floats(0, 10**7),
)
def test_training_lines_are_aligned_and_at_most_79_columns_wide(updates, logs, seconds):
    line = training_line(logs, updates, seconds)
    assert len(line) == ENDS[-1] <= 79
    # a gap before each column, at the same place in every line
    for end in ENDS[:-1]:
        assert line[end : end + 2] == "  "
    assert line[: ENDS[0]].strip() == f"{updates:,}"


@given(
    st.integers(0, 10**8 - 1),
    st.lists(st.text("abc-_ .é", min_size=1, max_size=99), min_size=1, max_size=3, unique=True),
    NUMBERS,
    st.none() | st.floats(0, 100),
    st.integers(0, 10**9),
)
def test_validation_lines_are_at_most_79_columns_wide(updates, names, value, bleu, untranslated):
    logs = {}
    for name in names:
        logs |= {
            f"eval_{name}_loss": value,
            f"eval_{name}_perplexity": value,
            f"eval_{name}_untranslated": untranslated,
        }
        logs |= {} if bleu is None else {f"eval_{name}_bleu": bleu}
    lines = [*validation_lines(logs, updates)]
    assert len(lines) == len(names)
    for line in lines:
        assert len(line) <= 79
        assert line[: ENDS[0]].strip() == f"{updates:,}"
        assert line[ENDS[2] : ENDS[3]].strip() == ("" if bleu is None else f"{bleu:.2f}")


def test_lines_show_the_loss_without_smoothing_and_the_scores_of_each_text():
    logs = {"loss": 5.1, "unsmoothed_loss": 4.75, "perplexity": 115.54, "tokens_per_second": 3593.2, "epoch": 0.3}
    expected = ["1,200", "4.750", "115.54", "3,593", "01:40"]
    assert training_line(logs, 1200, 100.0).split() == expected
    logs = {"eval_news_loss": 0.6262, "eval_news_perplexity": 1.87, "eval_news_bleu": 69.612, "eval_news_runtime": 2}
    assert [line.split() for line in validation_lines(logs, 700)] == [
        ["700", "0.626", "1.87", "69.61", "validation,", "news"]
    ]
    assert training_line({"perplexity": 1.234e9, "unsmoothed_loss": math.nan}, 1, 0).split()[:3] == [
        "1",
        "nan",
        "1.23e+09",
    ]


class Tracker(TrainerCallback):
    """Keep the metrics that every tracker receives."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


def test_a_run_prints_a_line_per_log_to_stderr_and_trackers_receive_the_same_as_ever(
    train, run_flags, text_flags, tmp_path, capfd, monkeypatch
):
    flags = [*text_flags, "--eval_steps", "2", "--save_steps", "2", "--max_steps", "4"]
    received = {}
    for name, printing in (("lines", print_lines), ("dictionaries", lambda trainer: None)):
        tracker = Tracker()

        def add(trainer, printing=printing, tracker=tracker):
            printing(trainer)
            # where transformers puts those of --report_to: before any that prints
            trainer.callback_handler.callbacks.insert(0, tracker)

        monkeypatch.setattr("hf_vanilla_transformer.training.run.print_lines", add)
        run = train(*run_flags(tmp_path / name, *flags))
        clocks = ("tokens_per_second", "seconds", "runtime", "per_second")
        kept = [
            [{k: v for k, v in log.items() if not k.endswith(clocks)} for log in logs]
            for logs in (tracker.logs, run.state.log_history)
        ]
        received[name] = kept
        printed = capfd.readouterr()
        # results of a run are its folder
        assert printed.out == ""
        if name == "dictionaries":
            assert "{'loss'" in printed.err
            continue
        lines = printed.err.splitlines()
        header = next(i for i, line in enumerate(lines) if line.split() == " ".join(COLUMNS).split())
        assert "without label smoothing" in lines[header - 1]
        assert [line.split()[0] for line in lines[header + 1 : header + 7]] == ["1", "2", "2", "3", "4", "4"]
        assert [line.endswith("  validation") for line in lines[header + 1 : header + 7]] == [False, False, True] * 2
        assert max(map(len, lines[header - 1 : header + 7])) <= 79
    assert received["lines"] == received["dictionaries"]
    assert {"loss", "learning_rate", "grad_norm", "unsmoothed_loss", "perplexity"} <= received["lines"][0][0].keys()


def test_the_bar_of_a_run_is_drawn_in_a_terminal_between_the_lines(trainer, monkeypatch):
    for disable_tqdm in (False, True):
        run = trainer(disable_tqdm=disable_tqdm, max_steps=3, logging_steps=1)
        print_lines(run)
        with Terminal() as terminal, monkeypatch.context() as patch:
            patch.setattr("sys.stderr", terminal.stream)
            # without the bars that other tests have left open, below which this one would be drawn
            patch.setattr(tqdm, "_instances", WeakSet())
            run.train()
            shown = terminal.read()
        # every line is drawn at the start of a line of the screen, over what was left of the bar
        lines = [line.rpartition("\r")[2] for line in shown.splitlines()]
        assert [line.split()[0] for line in lines if line.split() and line.split()[0].isdigit()] == ["1", "2", "3"]
        assert ("updates/s" in shown or "/ updates" in shown or "? updates" in shown) is not disable_tqdm
        assert max(len(part) for line in shown.splitlines() for part in line.split("\r")) <= 79


@pytest.mark.parametrize("lines", [True, False])
def test_a_run_that_fails_closes_its_bars(trainer, lines, monkeypatch):
    class Failing(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            open_bars.extend(tqdm._instances)
            raise RuntimeError("on purpose")

    open_bars = []
    run = trainer(disable_tqdm=False, max_steps=3)
    if lines:
        print_lines(run)
    run.add_callback(Failing)
    with Terminal() as terminal, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal.stream)
        patch.setattr(tqdm, "_instances", WeakSet())
        with pytest.raises(RuntimeError, match="on purpose"):
            run.train()
        assert len(open_bars) == 1
        assert not tqdm._instances


def test_a_log_file_gets_lines_and_no_bar(trainer, capfd):
    run = trainer(disable_tqdm=False, max_steps=3, logging_steps=1)
    print_lines(run)
    run.train()
    printed = capfd.readouterr()
    assert "\r" not in printed.err
    assert printed.err.count("\n") >= 5
    assert printed.out == ""
