import json
import math
import os
import random
import re
import signal
import sys
from itertools import count

import optuna
import pytest
import torch
import yaml
from PIL import Image

from hf_vanilla_transformer import VanillaTransformerTrainer, noam, train_tokenizer
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.preparation import Preparation, prepare
from hf_vanilla_transformer.study.hyperparameter_search import hyperparameter_search as search
from hf_vanilla_transformer.study.plots import read_log
from hf_vanilla_transformer.study.range_test import HIGHEST, LOWEST

WORDS = {"dog": "hund", "cat": "katze", "man": "mann", "sees": "sieht", "has": "hat", "the": "das", "red": "rot"}
SIZE = ["--vocab_size", "290", "--d_model", "16", "--d_ff", "32", "--num_heads", "2", "--num_encoder_layers", "1"]
SIZE += ["--num_decoder_layers", "1", "--max_tokens", "256", "--warmup_steps", "8", "--use_cpu", "--no_eval_bleu"]


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """Flags of a small model on a small text."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    chance = random.Random(0)
    for name, lines in (("train", 120), ("val", 20)):
        texts = [[chance.choice(list(WORDS)) for _ in range(chance.randint(2, 9))] for _ in range(lines)]
        for language, sentences in (("en", texts), ("de", [[WORDS[word] for word in text] for text in texts])):
            content = "".join(" ".join(words) + "\n" for words in sentences)
            (tmp_path / f"{name}.{language}").write_text(content, encoding="utf-8")
    text = ["--train_file", str(tmp_path / "train"), "--validation_file", str(tmp_path / "val")]
    return ["--preset", "tiny", *SIZE, *text, "--disable_tqdm", "true"]


def tune(flags, folder, *more):
    return main(["tune", *flags, *more, "--output_dir", str(folder)])


def test_a_search_starts_from_the_given_settings_and_its_best_is_reproduced_by_train(flags, tmp_path, capsys):
    folder = tmp_path / "study"
    assert tune(flags, folder, "--trials", "6", "--max_steps", "16", "--learning_rate", "0.2") == 0
    result = json.loads((folder / "trials.json").read_text())
    assert [trial["number"] for trial in result["trials"]] == list(range(6))
    given = {"learning_rate": 0.2, "warmup_steps": 8, "dropout": 0.3, "label_smoothing_factor": 0.1}
    assert {name: result["trials"][0][name] for name in given} == given
    complete = [trial for trial in result["trials"] if trial["state"] == "complete"]
    best = min(complete, key=lambda trial: trial["value"])
    assert best["number"] == result["best"]
    out = capsys.readouterr().out
    assert out.startswith("| trial |")  # nothing else goes there
    table = [line for line in out.splitlines() if re.match(r"\| \d", line)]
    assert len(table) == 6
    assert table[0].startswith(f"| {best['number']} | {best['value']:.4f} |")
    with Image.open(folder / "search.png") as picture:
        assert picture.width > 1000
    settings = yaml.safe_load((folder / "best.yaml").read_text())
    assert settings["max_steps"] * settings["max_tokens"] == 16 * 256
    assert main(["train", str(folder / "best.yaml"), "--output_dir", str(tmp_path / "run")]) == 0
    assert read_log(str(tmp_path / "run"))[-2]["eval_loss"] == best["value"]


def test_a_study_goes_on_where_it_was_cut_off(flags, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "study"
    flags = [*flags, "--max_steps", "8", "--method", "random"]
    assert tune(flags, folder, "--trials", "2") == 0
    before = json.loads((folder / "trials.json").read_text())["trials"]
    study = optuna.load_study(study_name="vanilla-transformer", storage=f"sqlite:///{folder / 'study.db'}")
    cut = study.ask()  # a trial under way when the machine was switched off
    cut.suggest_float("dropout", 0.0, 0.5)
    assert tune(flags, folder, "--trials", "4") == 0
    after = json.loads((folder / "trials.json").read_text())["trials"]
    assert after[:2] == before
    done = [trial for trial in after if trial["value"] is not None]
    assert len(done) == 4
    assert done[2]["dropout"] == cut.params["dropout"]
    assert len({trial["learning_rate"] for trial in done}) == 4  # no setting is drawn twice
    monkeypatch.setattr("transformers.Trainer.train", None)
    assert tune(flags, folder, "--trials", "4") == 0  # nothing is left to train
    capsys.readouterr()
    assert tune([*flags, "--d_model", "32"], folder, "--trials", "5") == 1
    assert "different settings: d_model 16 there, 32 now; d_k 8 there, 16 now; d_v 8" in capsys.readouterr().err


def test_the_range_test_raises_the_rate_evenly_and_then_tries_factors(flags, tmp_path, capsys):
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


def test_the_rates_of_the_range_test_are_those_of_the_optimiser(flags, tmp_path, monkeypatch):
    used = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        "torch.optim.AdamW.step", lambda self, *args, **kw: (used.append(self.param_groups[0]["lr"]), step(self))[1]
    )
    assert tune(flags, tmp_path / "range", "--method", "range", "--max_steps", "20") == 0
    rates = json.loads((tmp_path / "range" / "range.json").read_text())["schedule_off"]["rates"]
    assert used[: len(rates)] == pytest.approx(rates)


def stop_at(update, monkeypatch):
    """Sends this process SIGTERM in that update, counted over all trainings."""
    done = count(1)
    step = torch.optim.AdamW.step

    def step_and_stop(self, *args, **kwargs):
        if next(done) == update:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self)

    monkeypatch.setattr("torch.optim.AdamW.step", step_and_stop)


def test_the_given_settings_go_first_even_if_their_trial_is_stopped(flags, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "study"
    flags = [*flags, "--max_steps", "8", "--trials", "2", "--learning_rate", "0.2"]
    with monkeypatch.context() as patch:
        stop_at(3, patch)
        assert tune(flags, folder) == 130
    assert sorted(file.name for file in folder.iterdir()) == ["study.db"]
    assert tune(flags, folder) == 0
    trials = json.loads((folder / "trials.json").read_text())["trials"]
    assert [trial["state"] for trial in trials] == ["fail", "complete", "complete"]
    assert trials[1] == {**trials[0], "number": 1, "state": "complete", "value": trials[1]["value"]}
    assert trials[1]["learning_rate"] == 0.2


def test_a_stopped_range_test_says_nothing(flags, tmp_path, capsys, monkeypatch):
    stop_at(25, monkeypatch)  # in the first training with a factor
    assert tune(flags, tmp_path / "range", "--method", "range", "--max_steps", "20") == 130
    assert capsys.readouterr().out == ""


def test_trials_that_need_too_much_memory_fail_and_the_others_count(flags, tmp_path, capsys, monkeypatch):
    flags = [*flags, "--max_steps", "8", "--trials", "3", "--method", "random"]
    step = VanillaTransformerTrainer.training_step
    steps = count(1)

    def step_or_fail(self, *args, **kwargs):
        if next(steps) == 1 or self.args.max_tokens == 512:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return step(self, *args, **kwargs)

    monkeypatch.setattr(VanillaTransformerTrainer, "training_step", step_or_fail)
    assert tune(flags, tmp_path / "study") == 0
    table = capsys.readouterr().out.splitlines()
    rows = [row for row in table if re.match(r"\| \d", row)]
    assert len(rows) == 3
    assert all(("| failed |" in row) == (row.startswith("| 0 |") or row.endswith("| 512 |")) for row in rows)
    steps = count(1)
    assert tune([*flags, "--trials", "1"], tmp_path / "none") == 1
    assert "No trial finished: try a lower --learning_rate" in capsys.readouterr().err


def test_another_vocabulary_is_another_study(flags, tmp_path, capsys):
    i = flags.index("--validation_file")
    flags = [*flags, "--max_steps", "8", "--trials", "1"]
    assert tune(flags[:i] + flags[i + 2 :], tmp_path / "study") == 1
    assert not (tmp_path / "study").exists()
    flags[flags.index("290")] = "280"
    assert tune(flags, tmp_path / "study") == 0
    assert yaml.safe_load((tmp_path / "study" / "best.yaml").read_text())["vocab_size"] == 280
    flags[flags.index("280")] = "290"
    assert tune(flags, tmp_path / "study") == 1
    assert "different settings: vocab_size 280 there, 290 now. Choose another --output_dir" in capsys.readouterr().err


def test_batches_too_small_for_a_sentence_are_not_tried(flags, tmp_path, capsys):
    with open(tmp_path / "val.en", "a") as english, open(tmp_path / "val.de", "a") as german:
        english.write("dog " * 150 + "\n")  # more than half a batch of 256
        german.write("hund " * 150 + "\n")
    assert tune(flags, tmp_path / "study", "--max_steps", "4", "--trials", "5", "--method", "random") == 0
    assert "validation: 21 of 21 pairs" in capsys.readouterr().err
    trials = json.loads((tmp_path / "study" / "trials.json").read_text())["trials"]
    assert {trial["max_tokens"] for trial in trials} == {256, 512}


def test_prepared_text_and_early_stopping(flags, tmp_path, capsys):
    i = flags.index("--train_file")
    tokenizer = train_tokenizer([" ".join(pair) for pair in WORDS.items()], 262)
    prepare([flags[i + 1]], Preparation(("en", "de")), str(tmp_path / "prepared"), tokenizer, processes=1)
    flags[i + 1] = str(tmp_path / "prepared")
    more = ["--max_steps", "16", "--trials", "1", "--early_stopping_patience", "3", "--save_steps", "4"]
    more += ["--eval_steps", "4", "--metric_for_best_model", "eval_loss"]
    assert tune(flags, tmp_path / "study", *more) == 0
    assert main(["train", str(tmp_path / "study" / "best.yaml"), "--output_dir", str(tmp_path / "run")]) == 0
    assert tune(flags, tmp_path / "other", *more, "--streaming") == 1
    assert "leave out --streaming" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model_name_or_path", "x"], "leave out --model_name_or_path"),
        (["--lr_scheduler_type", "linear"], "leave out --lr_scheduler_type"),
        (["--method", "range", "--max_steps", "5"], "at least 20 updates"),
        (["--max_steps", "-1"], "give their updates as --max_steps"),
    ],
)
def test_what_cannot_be_tuned_is_said_in_one_line(more, message, flags, tmp_path, capsys):
    if "--model_name_or_path" in more:
        size = {"--vocab_size", "--d_model", "--d_ff", "--num_heads", "--num_encoder_layers", "--num_decoder_layers"}
        flags = [word for i, word in enumerate(flags) if word not in size and (i == 0 or flags[i - 1] not in size)]
    assert tune(flags, tmp_path / "study", *more) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--method", "grid"], "method must be one of bayesian, random, range"),
        (["--trials", "0"], "trials must be at least 1"),
    ],
)
def test_values_out_of_range_are_wrong_use(more, message, flags, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        tune(flags, tmp_path / "study", *more)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_without_validation_text_there_is_nothing_to_compare(flags, tmp_path, capsys):
    i = flags.index("--validation_file")
    assert tune(flags[:i] + flags[i + 2 :], tmp_path / "study") == 1
    assert "give --validation_file" in capsys.readouterr().err


def test_without_matplotlib_nothing_is_trained_in_vain(flags, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert tune(flags, tmp_path / "study") == 1
    assert "hf-vanilla-transformer[plots]" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"hf-vanilla-transformer\[tune\]"):
        search(None, None, None)
