import json
import re
import sys
from itertools import count

import optuna
import pytest
import torch
import yaml
from sqlalchemy import event
from sqlalchemy.engine import Engine

from hf_vanilla_transformer import VanillaTransformerTrainer
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.plugins.study.hyperparameter_search import hyperparameter_search
from hf_vanilla_transformer.plugins.study.plots import read_log


@pytest.mark.slow
def test_the_first_trial_has_the_given_settings_and_train_reproduces_the_best(tune, flags, tmp_path, capsys):
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
    assert out.startswith("| trial |")  # nothing else is printed to stdout
    table = [line for line in out.splitlines() if re.match(r"\| \d", line)]
    assert len(table) == 6
    assert table[0].startswith(f"| {best['number']} | {best['value']:.4f} |")
    settings = yaml.safe_load((folder / "best.yaml").read_text())
    assert settings["max_steps"] * settings["max_tokens"] == 16 * 256
    assert main(["train", str(folder / "best.yaml"), "--output_dir", str(tmp_path / "run")]) == 0
    assert read_log(str(tmp_path / "run"))[-2]["eval_loss"] == best["value"]


@pytest.mark.slow
def test_a_killed_study_resumes_with_its_unfinished_trial(tune, flags, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "study"
    flags = [*flags, "--max_steps", "8", "--method", "random"]
    assert tune(flags, folder, "--trials", "2") == 0
    before = json.loads((folder / "trials.json").read_text())["trials"]
    study = optuna.load_study(study_name="vanilla-transformer", storage=f"sqlite:///{folder / 'study.db'}")
    unfinished = study.ask()  # a trial that was running when the machine was switched off
    unfinished.suggest_float("dropout", 0.0, 0.5)
    assert tune(flags, folder, "--trials", "4") == 0
    after = json.loads((folder / "trials.json").read_text())["trials"]
    assert after[:2] == before
    done = [trial for trial in after if trial["value"] is not None]
    assert len(done) == 4
    assert done[2]["dropout"] == unfinished.params["dropout"]
    assert len({trial["learning_rate"] for trial in done}) == 4  # no settings are drawn twice
    monkeypatch.setattr("transformers.Trainer.train", None)
    assert tune(flags, folder, "--trials", "4") == 0  # nothing is left to train
    capsys.readouterr()
    assert tune([*flags, "--d_model", "32"], folder, "--trials", "5") == 1
    assert "different settings: d_model was 16, now 32; d_k was 8, now 16; d_v was 8" in capsys.readouterr().err


@pytest.mark.slow
def test_a_stopped_first_trial_runs_again_with_the_given_settings(tune, flags, stop_at, tmp_path, monkeypatch):
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


@pytest.mark.slow
def test_trials_that_run_out_of_memory_fail_without_ending_the_search(tune, flags, tmp_path, capsys, monkeypatch):
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


@pytest.fixture
def full_disk():
    """Let no database of SQLite grow, which fails as on a full disk."""

    def limit(connection, _):
        connection.execute("PRAGMA max_page_count = 1")

    event.listen(Engine, "connect", limit)
    yield
    event.remove(Engine, "connect", limit)


@pytest.mark.slow
def test_a_full_disk_is_one_line_whether_a_study_begins_or_resumes(tune, flags, tmp_path, capsys, request):
    flags = [*flags, "--max_steps", "4", "--method", "random"]
    assert tune([*flags, "--trials", "1"], tmp_path / "begun") == 0
    request.getfixturevalue("full_disk")
    for name in ("begun", "new"):
        # what a trial records may fit into the last page
        assert tune([*flags, "--trials", "30"], tmp_path / name) == 1
        error = f"vanilla-transformer: Cannot write {tmp_path / name}: the disk is full or has failed."
        assert capsys.readouterr().err.splitlines()[-1] == error


@pytest.mark.slow
def test_a_study_resumes_whatever_it_records_besides_its_settings(tune, flags, tmp_path):
    more = ("--max_steps", "4", "--license", "mit")
    assert tune(flags, tmp_path / "study", *more, "--trials", "1") == 0
    study = optuna.load_study(study_name="vanilla-transformer", storage=f"sqlite:///{tmp_path / 'study' / 'study.db'}")
    assert study.user_attrs["settings"]["license"] == "mit"  # as studies always recorded it
    assert tune(flags, tmp_path / "study", *more, "--trials", "2") == 0
    assert yaml.safe_load((tmp_path / "study" / "best.yaml").read_text())["license"] == "mit"


@pytest.mark.slow
def test_a_study_with_a_different_vocabulary_is_refused(tune, flags, without_validation, tmp_path, capsys):
    more = ["--max_steps", "8", "--trials", "1"]
    assert tune([*without_validation, *more], tmp_path / "study") == 1
    assert not (tmp_path / "study").exists()
    flags = [*flags, *more]
    flags[flags.index("290")] = "280"
    assert tune(flags, tmp_path / "study") == 0
    assert yaml.safe_load((tmp_path / "study" / "best.yaml").read_text())["vocab_size"] == 280
    flags[flags.index("280")] = "290"
    assert tune(flags, tmp_path / "study") == 1
    assert "different settings: vocab_size was 280, now 290. Choose another --output_dir" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "text"), [("train", "training_text"), ("val", "validation_text")])
def test_a_study_of_other_text_of_the_same_name_and_size_is_refused(tune, flags, tmp_path, capsys, name, text):
    more = ["--max_steps", "2", "--trials", "1"]
    assert tune(flags, tmp_path / "study", *more) == 0
    assert text not in yaml.safe_load((tmp_path / "study" / "best.yaml").read_text())
    file = tmp_path / f"{name}.de"
    first, *others = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*others, first]))
    assert tune(flags, tmp_path / "study", *more) == 1
    assert f"different settings: {text} has changed. Choose another" in capsys.readouterr().err


@pytest.mark.slow
def test_batches_smaller_than_the_longest_sentence_are_not_tried(tune, flags, tmp_path, capsys):
    with open(tmp_path / "val.en", "a") as english, open(tmp_path / "val.de", "a") as german:
        english.write("dog " * 150 + "\n")  # more than half a batch of 256
        german.write("hund " * 150 + "\n")
    assert tune(flags, tmp_path / "study", "--max_steps", "4", "--trials", "5", "--method", "random") == 0
    assert "validation: 21 of 21 pairs" in capsys.readouterr().err
    trials = json.loads((tmp_path / "study" / "trials.json").read_text())["trials"]
    assert {trial["max_tokens"] for trial in trials} == {256, 512}


def test_a_sentence_longer_than_a_batch_is_named(tune, flags, tmp_path, capsys):
    prepared = str(tmp_path / "prepared")
    words = ["prepare", str(tmp_path / "train"), "--source_lang", "en", "--target_lang", "de", "--vocab_size", "290"]
    assert main([*words, "--output_dir", prepared]) == 0
    flags[flags.index(str(tmp_path / "train"))] = prepared
    flags[flags.index("256")] = "16"
    flags = [word for word in flags if word not in ("--vocab_size", "290")]
    assert tune(flags, tmp_path / "study", "--max_steps", "4", "--trials", "1") == 1
    assert "tokens, more than 16; raise --max_tokens" in capsys.readouterr().err.splitlines()[-1]


def test_without_optuna_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[tune\]"'):
        hyperparameter_search(None, None, None)
