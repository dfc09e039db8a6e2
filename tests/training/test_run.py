import json
import os
import shutil
import statistics
from pathlib import Path

import pytest
import torch
import yaml
from corpora import ROOT
from foreign_code import pickled
from safetensors.torch import load_file
from sample_text import PAIRS
from small import write_moses
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.errors import UserError
from hf_vanilla_transformer.training.checkpoints import write_checksums
from hf_vanilla_transformer.training.recipes import parse_arguments

RECIPES = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))


def test_a_run_saves_a_model_that_the_auto_classes_load(train, run_flags, text_flags, tmp_path, capfd):
    output = tmp_path / "model"
    train(*run_flags(output, *text_flags, "--num_beams", "5"))
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(output), AutoTokenizer.from_pretrained(output)
    assert (model.config.source_lang, model.config.target_lang) == ("en", "fr")
    assert model.config.vocab_size == len(tokenizer) == 280
    assert tokenizer.model_max_length == model.config.max_position_embeddings
    assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (5, 0.6)
    assert (output / "checkpoint-2" / "model.safetensors").is_file()
    printed = capfd.readouterr().err
    assert "train: 3 of 20 pairs; dropped: 9 duplicate, 4 blank side, 4 too long" in printed
    assert "validation: 12 of 20 pairs; dropped: 4 blank side, 4 too long" in printed


def test_the_resolved_settings_reproduce_the_run(train, run_flags, text_flags, tmp_path):
    train(*run_flags(tmp_path / "one", *text_flags, "--learning_rate", "0.3"))
    train(str(tmp_path / "one" / "settings.yaml"), "--output_dir", str(tmp_path / "two"), "--use_cpu")
    one, two = (yaml.safe_load((tmp_path / name / "settings.yaml").read_text()) for name in ("one", "two"))
    assert one["d_k"] == 8
    assert one["learning_rate"] == 0.3
    assert {**one, "output_dir": ""} == {**two, "output_dir": ""}
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
def test_the_same_command_resumes_from_the_newest_intact_checkpoint(train, run_flags, text_flags, tmp_path, capfd):
    flags = [*text_flags, "--save_steps", "2", "--dropout", "0.3"]
    train(*run_flags(tmp_path / "straight", *flags, "--max_steps", "6"))
    train(*run_flags(tmp_path / "stopped", *flags, "--max_steps", "4"))
    truncated = tmp_path / "stopped" / "checkpoint-4" / "model.safetensors"
    truncated.write_bytes(truncated.read_bytes()[:-100])
    assert "Tokenising" in capfd.readouterr().err
    run = train(*run_flags(tmp_path / "stopped", *flags, "--max_steps", "6"))
    printed = capfd.readouterr().err
    assert f"Resuming from {tmp_path / 'stopped' / 'checkpoint-2'}" in printed
    assert "Tokenising" not in printed  # the tokenised text is cached
    assert [entry["step"] for entry in run.state.log_history if "loss" in entry] == [1, 2, 3, 4, 5, 6]
    straight, stopped = (load_file(tmp_path / name / "model.safetensors") for name in ("straight", "stopped"))
    assert all(torch.equal(straight[name], stopped[name]) for name in straight)


def test_a_run_that_resumes_keeps_its_choice_of_precision(train, run_flags, text_flags, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: True)
    ratios = [0.5]
    monkeypatch.setattr("hf_vanilla_transformer.inference.hardware._time_ratio", lambda *steps: ratios.pop())
    flags = run_flags(tmp_path / "run", *text_flags, "--bf16", "auto")
    train(*flags)
    assert yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())["bf16"] is True
    assert "--bf16 auto: training in bfloat16" in capfd.readouterr().err
    # Elsewhere, float32 may be faster
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: False)
    run = train(*flags, "--max_steps", "4")
    assert run.args.bf16 is True
    assert run.state.global_step == 4
    with pytest.raises(ValueError, match="bf16 was True, now False"):
        train(*run_flags(tmp_path / "run", *text_flags, "--max_steps", "6"))


def logged_updates(run) -> dict[str, list[int]]:
    """Return the updates after which the loss was logged, there was a validation, and a checkpoint remains."""
    checkpoints = sorted(int(path.name[11:]) for path in Path(run.args.output_dir).glob("checkpoint-*"))
    logs = {name: [log["step"] for log in run.state.log_history if name in log] for name in ("loss", "eval_loss")}
    return {**logs, "checkpoints": checkpoints}


def test_changed_intervals_count_from_the_resumed_update_on(train, run_flags, text_flags, tmp_path):
    intervals = [f"--{name}_steps" for name in ("logging", "eval", "save")]
    flags = run_flags(tmp_path / "run", *text_flags, "--no_eval_bleu")
    train(*flags, *(word for name in intervals for word in (name, "4")), "--max_steps", "4")
    run = train(*flags, *(word for name in intervals for word in (name, "2")), "--max_steps", "8")
    updates = [4, 6, 8]
    assert logged_updates(run) == {"loss": updates, "eval_loss": updates, "checkpoints": updates}


@pytest.mark.slow
def test_early_stopping_counts_across_interruptions_and_can_be_added(train, run_flags, text_flags, tmp_path):
    """BLEU is 0 at each validation, so training ends after the fourth."""
    flags = [*text_flags, "--eval_steps", "1", "--save_steps", "1", "--max_steps", "9"]
    straight = train(*run_flags(tmp_path / "straight", *flags, "--early_stopping_patience", "3"))
    assert straight.state.global_step == 4
    train(*run_flags(tmp_path / "stopped", *flags, "--max_steps", "2"))  # without early stopping
    run = train(*run_flags(tmp_path / "stopped", *flags, "--early_stopping_patience", "3"))
    assert run.state.global_step == straight.state.global_step
    assert run.state.best_metric == straight.state.best_metric


def test_another_metric_is_compared_with_its_own_earlier_values(train, run_flags, text_flags, tmp_path):
    flags = run_flags(tmp_path / "run", *text_flags, "--no_eval_bleu", "--eval_steps", "1", "--save_steps", "1")
    train(*flags, "--metric_for_best_model", "loss", "--max_steps", "2")
    state = train(*flags, "--metric_for_best_model", "perplexity", "--max_steps", "4").state
    values = {log["step"]: log["eval_perplexity"] for log in state.log_history if "eval_perplexity" in log}
    assert list(values) == [1, 2, 3, 4]
    assert state.best_metric == min(values.values()) == values[state.best_global_step]


def test_validations_of_another_text_are_forgotten(train, run_flags, text_flags, moses, tmp_path):
    other = write_moses(tmp_path / "other", en=["a cat", "b"], fr=["un chat", "b"])
    flags = run_flags(tmp_path / "run", *text_flags, "--no_eval_bleu", "--eval_steps", "1", "--save_steps", "1")
    train(*flags)
    state = train(*flags, "--validation_file", str(other), "--max_steps", "3").state
    assert [log["step"] for log in state.log_history if "eval_loss" in log] == [3]
    assert state.best_global_step == 3


def test_validations_with_other_decoding_are_forgotten(train, run_flags, text_flags, tmp_path):
    flags = run_flags(tmp_path / "run", *text_flags, "--eval_steps", "1", "--save_steps", "1")
    train(*flags)
    state = train(*flags, "--generation_num_beams", "1", "--max_steps", "3").state
    assert [log["step"] for log in state.log_history if "eval_bleu" in log] == [3]


@pytest.mark.slow
def test_a_run_that_was_killed_after_its_last_checkpoint_is_only_finished(
    train, run_flags, text_flags, tmp_path, capfd
):
    text = tmp_path / "text.fr"
    flags = run_flags(tmp_path / "run", *text_flags, "--save_steps", "2", "--max_tokens", "16")
    before = train(*flags).model.state_dict()
    for name in ("trainer_state.json", "training.json", "README.md", "model.safetensors"):
        (tmp_path / "run" / name).unlink()
    run = train(*flags)
    assert run.state.global_step == 2
    assert all(torch.equal(before[name], weight) for name, weight in run.model.state_dict().items())
    for name in ("trainer_state.json", "training.json", "README.md", "model.safetensors"):
        assert (tmp_path / "run" / name).is_file()
    assert train(*flags) is None
    text.write_text(text.read_text() + "de plus\n")
    (tmp_path / "text.en").write_text((tmp_path / "text.en").read_text() + "more\n")
    advice = f"more text, start a run from its model: --model_name_or_path {tmp_path / 'run'} --train_file OLD NEW"
    with pytest.raises(ValueError, match=rf"training_text has changed.*{advice}"):
        train(*flags, "--max_steps", "4")
    # its command says so even if nothing is left to do
    capfd.readouterr()
    assert train(*flags) is None
    assert advice in capfd.readouterr().err
    with pytest.raises(ValueError, match=f"different settings: train_file was .*{advice}"):
        train(*flags, "--train_file", str(text.with_suffix("")), str(text.with_suffix("")))
    with pytest.raises(ValueError, match="different settings: max_tokens was 16, now 32") as error:
        train(*flags, "--max_tokens", "32")
    assert "more text" not in str(error.value)
    more = ["--train_file", str(text.with_suffix("")), str(text.with_suffix("")), "--target_lang", "fr", "--use_cpu"]
    more += ["--max_steps", "1", "--lr_scheduler_type", "constant", "--learning_rate", "1e-4"]
    start = ["--model_name_or_path", str(tmp_path / "run")]
    assert train(*start, *more, "--output_dir", str(tmp_path / "more")).state.global_step == 1


def test_the_card_of_a_run_leaves_out_what_is_no_language(train, run_flags, moses, tmp_path):
    for old, new in (("en", "Source"), ("fr", "Target")):
        (tmp_path / f"text.{old}").rename(tmp_path / f"text.{new}")
    languages = ["--source_lang", "Source", "--target_lang", "Target"]
    train(*run_flags(tmp_path / "run", "--train_file", str(moses), "--vocab_size", "280", *languages))
    card = (tmp_path / "run" / "README.md").read_text().split("## Training")[0]
    assert "language:" not in card
    assert "from one language to another" in card


def shift_target(prefix: Path) -> None:
    """Shift the target by one line, so that size and number of pairs stay the same, and restore the time."""
    file = Path(f"{prefix}.fr")
    status = file.stat()
    first, *others = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join([*others, first]), encoding="utf-8")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def aligned(tmp_path, monkeypatch) -> Path:
    """The prefix of an English-French text of which every pair is used, however the target is shifted."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return write_moses(tmp_path / "aligned", en=["a dog", "a cat", "men", "a boy"], fr=["un c", "le c", "h", "g"])


@pytest.fixture
def aligned_flags(aligned) -> list[str]:
    return ["--train_file", str(aligned), "--target_lang", "fr", "--vocab_size", "260"]


def test_a_run_does_not_resume_on_other_text_with_as_many_pairs(train, run_flags, aligned_flags, aligned, tmp_path):
    flags = run_flags(tmp_path / "run", *aligned_flags)
    train(*flags)
    before = contents(tmp_path / "run")
    renamed = write_moses(tmp_path / "renamed", en=["a", "b", "c", "d"], fr=["e", "f", "g", "h"])
    with pytest.raises(ValueError, match=f"train_file was {aligned}, now {renamed}; training_text has changed"):
        train(*flags, "--train_file", str(renamed))
    shift_target(aligned)
    with pytest.raises(ValueError, match="different settings: training_text has changed"):
        train(*flags, "--max_steps", "4")
    assert contents(tmp_path / "run") == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.suffix != ".lock"}


def test_the_same_text_under_another_path_resumes_its_run(
    train, run_flags, aligned_flags, aligned, tmp_path, monkeypatch, capfd
):
    flags = [*aligned_flags, "--validation_file", str(aligned), "--no_eval_bleu", "--eval_steps", "1"]
    straight = train(*run_flags(tmp_path / "straight", *flags, "--save_steps", "2", "--max_steps", "4"))
    train(*run_flags(tmp_path / "run", *flags, "--save_steps", "2"))
    (tmp_path / "elsewhere").mkdir()
    for language in ("en", "fr"):
        moved = Path(f"{aligned}.{language}").rename(tmp_path / "elsewhere" / f"corpus.{language}")
        os.utime(moved, (1, 1))
    monkeypatch.chdir(tmp_path / "elsewhere")
    flags = [*flags, "--train_file", "corpus", "--validation_file", "corpus"]
    before = contents(tmp_path / "run")
    assert train(*run_flags(tmp_path / "run", *flags)) is None
    assert contents(tmp_path / "run") == before
    run = train(*run_flags(tmp_path / "run", *flags, "--save_steps", "2", "--max_steps", "4"))
    assert "checkpoint-2" in capfd.readouterr().err
    assert [log["step"] for log in run.state.log_history if "eval_loss" in log] == [1, 2, 3, 4]
    expected = straight.model.state_dict()
    assert all(torch.equal(expected[name], weight) for name, weight in run.model.state_dict().items())


def test_validations_of_changed_text_under_the_same_name_are_forgotten(
    train, run_flags, aligned_flags, moses, tmp_path
):
    flags = run_flags(tmp_path / "run", *aligned_flags, "--validation_file", str(moses), "--no_eval_bleu")
    flags += ["--eval_steps", "1", "--save_steps", "1"]
    train(*flags)
    shift_target(moses)
    state = train(*flags, "--max_steps", "3").state
    assert [log["step"] for log in state.log_history if "eval_loss" in log] == [3]


def test_the_content_of_private_text_is_recorded_but_not_on_the_card(train, run_flags, aligned_flags, tmp_path):
    train(*run_flags(tmp_path / "run", *aligned_flags))
    file = tmp_path / "run" / "settings.yaml"
    content = yaml.safe_load(file.read_text())["training_text"]
    assert "training_text" not in json.loads((tmp_path / "run" / "training.json").read_text())["settings"]
    assert content not in (tmp_path / "run" / "README.md").read_text()
    assert train(str(file)) is None  # it is still a recipe


def test_a_run_whose_card_could_not_be_written_is_not_finished(train, run_flags, text_flags, tmp_path, monkeypatch):
    flags = run_flags(tmp_path / "run", *text_flags)
    with monkeypatch.context() as patch:
        patch.setattr("hf_vanilla_transformer.training.run.write_card", lambda folder: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(*flags)
    assert train(*flags).state.global_step == 2
    assert (tmp_path / "run" / "README.md").is_file()


def test_a_finished_run_is_left_unchanged(train, run_flags, text_flags, tmp_path, capfd):
    flags = run_flags(tmp_path / "run", *text_flags)
    train(*flags)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*")}
    assert train(*flags) is None
    assert "is finished" in capfd.readouterr().err
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*")} == before


def files_in(folder):
    """Return the content of each file in a folder."""
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("lost", "longer"),
    [
        ("checkpoints", ("--max_steps", "4")),
        pytest.param(
            "checkpoints and state", ("--max_steps", "-1", "--num_train_epochs", "9"), marks=pytest.mark.slow
        ),
    ],
)
def test_a_finished_model_without_checkpoints_is_never_overwritten(
    lost, longer, train, run_flags, text_flags, tmp_path
):
    folder = tmp_path / "run"
    flags = run_flags(folder, *text_flags)
    train(*flags)
    shutil.rmtree(folder / "checkpoint-2")
    if lost == "checkpoints and state":
        (folder / "trainer_state.json").unlink()
    before = files_in(folder)
    with pytest.raises(UserError, match=r"no checkpoint, so the run cannot be resumed, .* ANOTHER\.$") as error:
        train(*flags, *longer)
    assert files_in(folder) == before
    # what the message says to type
    *_, advice = str(error.value).rpartition("its weights: ")
    words = advice.rstrip(".").replace("ANOTHER", str(tmp_path / "other")).split()
    run = train(*flags, *longer, *words)
    assert run.state.global_step == run.state.max_steps
    assert files_in(folder) == before


@pytest.mark.slow
def test_a_run_that_was_never_saved_starts_again_and_says_so(train, run_flags, text_flags, tmp_path, capfd):
    flags = run_flags(tmp_path / "run", *text_flags, "--save_strategy", "no")
    train(*flags)
    for name in ("model.safetensors", "trainer_state.json"):
        (tmp_path / "run" / name).unlink()
    assert train(*flags).state.global_step == 2
    assert "has no checkpoint: it starts again from update 0" in capfd.readouterr().err


def test_checkpoints_without_the_settings_of_their_run_are_never_overwritten(train, run_flags, text_flags, tmp_path):
    flags = run_flags(tmp_path / "run", *text_flags)
    train(*flags)
    for file in (tmp_path / "run").iterdir():
        if file.is_file():
            file.unlink()
    before = files_in(tmp_path / "run")
    with pytest.raises(UserError, match=r"run already holds a model; choose another --output_dir\.$"):
        train(*flags)
    assert files_in(tmp_path / "run") == before


def test_fine_tuning_starts_from_a_saved_model(train, run_flags, text_flags, moses, tmp_path):
    train(*run_flags(tmp_path / "first", *text_flags))
    new = [
        "--train_file",
        str(moses),
        "--model_name_or_path",
        str(tmp_path / "first"),
        "--max_steps",
        "1",
        "--use_cpu",
        "--num_heads",  # the same as in the model, as in a recipe
        "2",
    ]
    schedule = ["--lr_scheduler_type", "constant", "--learning_rate", "1e-4", "--max_tokens", "64", "--dropout", "0.2"]
    run = train(*new, *schedule, "--output_dir", str(tmp_path / "second"))
    assert (run.model.config.dropout, run.model.config.d_model, run.model.config.target_lang) == (0.2, 16, "fr")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    assert all((first[name] - second[name]).abs().max() < 1.1e-4 for name in first)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    assert (tmp_path / "second" / "tokenizer.json").read_text() == (tmp_path / "first" / "tokenizer.json").read_text()
    with pytest.raises(ValueError, match=r"--d_model 32: .*first has 16"):
        train(*new, *schedule, "--d_model", "32", "--output_dir", str(tmp_path / "third"))
    assert train(str(tmp_path / "second" / "settings.yaml")) is None  # the same run, already finished


def test_metrics_are_reported_to_tensorboard(train, run_flags, text_flags, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    run = train(*run_flags(tmp_path / "run", *text_flags, "--report_to", "tensorboard", "--save_steps", "1"))
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    logged = {name: [event.value for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    history = run.state.log_history
    for name in ("loss", "tokens_per_second"):
        assert logged[f"train/{name}"] == pytest.approx([entry[name] for entry in history if name in entry])
    for name in ("bleu", "perplexity"):
        values = [entry[f"eval_{name}"] for entry in history if f"eval_{name}" in entry]
        assert len(values) == 2
        assert logged[f"eval/{name}"] == pytest.approx(values, rel=1e-5)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda file: file.stem)
def test_every_recipe_trains_at_reduced_size(train, small_model_flags, recipe, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    settings = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    # English and German pass as French, letters and phonemes; one side of the sample is blank
    for i, language in enumerate((settings["source_lang"], settings["target_lang"])):
        write_moses(tmp_path / "train", **{language: [pair[i] for pair in PAIRS]})
    small = [*small_model_flags, "--d_k", "8", "--d_v", "8", "--vocab_size", "600"]
    small += ["--max_tokens", "512", "--max_steps", "3"]
    files = ["--train_file", str(tmp_path / "train"), "--output_dir", str(tmp_path / "run")]
    run = train(str(recipe), *files, *small, "--use_cpu", "--disable_tqdm", "true")
    assert run.state.global_step == 3
    assert "1 blank side" in capfd.readouterr().err
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_a_validated_run_without_checkpoints_reports_its_best_score(train, run_flags, text_flags, tmp_path, capfd):
    train(*run_flags(tmp_path / "run", *text_flags, "--save_strategy", "no", "--eval_steps", "1"))
    assert "Best bleu: " in capfd.readouterr().err
    assert (tmp_path / "run" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    "flags",
    [
        ["--debug", "underflow_overflow"],
        ["--accelerator_config", '{"non_blocking": true}'],
        ["--fsdp_config", '{"min_num_params": 5}'],
    ],
)
def test_settings_of_every_type_are_recorded_as_a_recipe(train, run_flags, text_flags, tmp_path, flags, capfd):
    train(*run_flags(tmp_path / "run", *text_flags, *flags))
    written = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())
    assert flags[1].strip("{}") in written[flags[0][2:]]
    assert train(str(tmp_path / "run" / "settings.yaml")) is None  # the same run, already finished


def test_a_run_resumes_from_the_given_one_of_its_checkpoints(train, run_flags, text_flags, tmp_path, capfd):
    flags = run_flags(tmp_path / "run", *text_flags, "--save_steps", "2", "--dropout", "0.3", "--max_steps", "6")
    train(*flags)
    straight = load_file(tmp_path / "run" / "model.safetensors")
    checkpoint = str(tmp_path / "run" / "checkpoint-2")
    capfd.readouterr()
    run = train(*flags, "--resume_from_checkpoint", checkpoint)
    assert f"Resuming from {checkpoint}" in capfd.readouterr().err
    assert [entry["step"] for entry in run.state.log_history if "loss" in entry] == [1, 2, 3, 4, 5, 6]
    resumed = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)
    assert "resume_from_checkpoint" not in (tmp_path / "run" / "settings.yaml").read_text()


def test_a_checkpoint_from_which_the_run_cannot_resume_is_refused(train, run_flags, text_flags, tmp_path):
    flags = run_flags(tmp_path / "run", *text_flags)
    train(*flags)
    checkpoint = tmp_path / "run" / "checkpoint-2"
    advice = f"To start another run from its weights, give --model_name_or_path {checkpoint}"
    for folder in ("empty", "other"):
        other = run_flags(tmp_path / folder, *text_flags)
        if folder == "other":
            train(*other)
        with pytest.raises(ValueError, match=rf"checkpoint-2: it is no checkpoint of a run in .*{folder}\. {advice}"):
            train(*other, "--resume_from_checkpoint", str(checkpoint))
    with pytest.raises(ValueError, match=r"--resume_from_checkpoint .*nowhere: there is no such folder"):
        train(*flags, "--resume_from_checkpoint", str(tmp_path / "run" / "nowhere"))
    (checkpoint / "scheduler.pt").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"--resume_from_checkpoint .*scheduler.pt is corrupt"):
        train(*flags, "--resume_from_checkpoint", str(checkpoint))


def test_another_vocabulary_than_that_of_the_pretrained_model_is_rejected(train, run_flags, text_flags, tmp_path):
    for name, size in (("first", "280"), ("second", "279")):
        train(*run_flags(tmp_path / name, *text_flags, "--vocab_size", size))
    schedule = ["--lr_scheduler_type", "constant", "--learning_rate", "1e-4", "--output_dir", str(tmp_path / "tuned")]
    text = [*text_flags[:6], "--max_steps", "1", "--max_tokens", "64", "--use_cpu", *schedule]
    start = ["--model_name_or_path", str(tmp_path / "first"), "--tokenizer_name"]
    with pytest.raises(ValueError, match="first have different vocabularies: omit --tokenizer_name"):
        train(*text, *start, str(tmp_path / "second"))
    assert train(*text, *start, str(tmp_path / "first")).state.global_step == 1


def test_a_warm_up_longer_than_the_training_is_reported(train, run_flags, text_flags, tmp_path, capfd):
    train(*run_flags(tmp_path / "run", *text_flags, "--warmup_steps", "2"))
    assert "during the warm-up" not in capfd.readouterr().err
    train(*run_flags(tmp_path / "longer", *text_flags, "--warmup_steps", "3"))
    advice = "try --warmup_steps 1 --learning_rate 0.4, which keeps the peak of the learning rate, in another"
    assert f"Training ends during the warm-up of 3 updates: {advice} --output_dir." in capfd.readouterr().err
    train(*run_flags(tmp_path / "another", *text_flags, "--warmup_steps", "1", "--learning_rate", "0.4"))
    assert "during the warm-up" not in capfd.readouterr().err


def test_a_warm_up_longer_than_the_epochs_is_reported(train, run_flags, text_flags, tmp_path, capfd):
    epochs = ["--max_steps", "-1", "--num_train_epochs"]
    train(*run_flags(tmp_path / "run", *text_flags, "--warmup_steps", "3", *epochs, "2"))
    assert "Training ends during the warm-up of 3 updates" in capfd.readouterr().err
    train(*run_flags(tmp_path / "longer", *text_flags, "--warmup_steps", "3", *epochs, "3"))
    assert "during the warm-up" not in capfd.readouterr().err


def test_a_schedule_without_warm_up_is_not_told_to_shorten_it(train, run_flags, text_flags, tmp_path, capfd):
    for schedule in ("constant", "reduce_lr_on_plateau"):
        flags = ["--lr_scheduler_type", schedule, "--learning_rate", "1e-4", "--warmup_steps", "3"]
        train(*run_flags(tmp_path / schedule, *text_flags, *flags))
        assert "during the warm-up" not in capfd.readouterr().err


def test_reporters_that_are_not_installed_are_refused_before_the_text_is_read(train, run_flags, tmp_path, monkeypatch):
    available = "hf_vanilla_transformer.training.arguments.get_available_reporting_integrations"
    monkeypatch.setattr(available, lambda: ["tensorboard"])
    for reporter in ("wandb", "nothing"):
        flags = run_flags(tmp_path / "run", "--train_file", "no-such-text", "--report_to", reporter)
        message = f"--report_to {reporter}: it is unknown or not installed; installed: tensorboard"
        with pytest.raises(ValueError, match=message):
            train(*flags)


def test_what_trackers_print_is_not_on_stdout(train, run_flags, text_flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "hf_vanilla_transformer.training.run.check_reporters", lambda _: print("* The tracker is ready.")
    )
    train(*run_flags(tmp_path / "run", *text_flags))
    output = capsys.readouterr()
    assert output.out == ""
    assert "* The tracker is ready." in output.err


def test_no_updates_at_all_are_refused(run_flags, text_flags, tmp_path, capsys):
    with pytest.raises(SystemExit):
        parse_arguments(run_flags(tmp_path / "run", *text_flags, "--max_steps", "0"))
    assert "max_steps must be at least 1, or -1 to train for num_train_epochs" in capsys.readouterr().err


def test_a_run_with_greedy_search_can_be_saved_continued_and_tuned(train, run_flags, text_flags, tmp_path):
    train(*run_flags(tmp_path / "run", *text_flags, "--num_beams", "1", "--save_steps", "1"))
    saved = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")
    assert saved.generation_config.num_beams == 1
    start = ["--model_name_or_path", str(tmp_path / "run"), "--lr_scheduler_type", "constant"]
    tuned = ["--learning_rate", "1e-4", "--max_steps", "1", "--max_tokens", "64", "--use_cpu"]
    assert train(*text_flags[:6], *start, *tuned, "--output_dir", str(tmp_path / "tuned")) is not None


def test_a_run_and_its_average_know_which_translations_are_doubtful(train, run_flags, text_flags, moses, tmp_path):
    words = [" ".join(["dog", "cat", "runs", "sees", "a", "the"][: 1 + i % 6]) + f" {i}" for i in range(120)]
    write_moses(tmp_path / "val", en=words, fr=words)
    flags = run_flags(tmp_path / "run", *text_flags, "--save_steps", "1", "--generation_num_beams", "1")
    train(*flags, "--validation_file", str(tmp_path / "val"))
    # validation was faster, but the final model is scored with its own beam size
    translator = Translator.load(str(tmp_path / "run"))
    outputs = translator.translate_ids(translator.encode(words), scores=True)
    threshold = statistics.quantiles(translator.mean_log_probs(outputs, {}), n=100)[0]
    assert translator.model.config.doubtful_score == pytest.approx(threshold, rel=2e-3)
    of_checkpoint = AutoConfig.from_pretrained(tmp_path / "run" / "checkpoint-2").doubtful_score
    assert of_checkpoint is not None
    assert of_checkpoint != pytest.approx(threshold, rel=2e-3)
    average = tmp_path / "average"
    assert main(["average", str(tmp_path / "run"), "--last", "2", "--output_dir", str(average)]) == 0
    assert AutoConfig.from_pretrained(average).doubtful_score == pytest.approx(threshold, rel=2e-3)
    # another run from it, which validates nothing, does not know
    start = ["--model_name_or_path", str(tmp_path / "run"), "--max_steps", "1", "--max_tokens", "64", "--use_cpu"]
    train(*text_flags[:2], *text_flags[4:6], *start, "--no_eval_bleu", "--output_dir", str(tmp_path / "tuned"))
    assert AutoConfig.from_pretrained(tmp_path / "tuned").doubtful_score is None


def test_the_report_says_what_was_validated_with_a_moving_average(train, run_flags, text_flags, tmp_path, capfd):
    flags = [*text_flags, "--save_steps", "1", "--metric_for_best_model", "loss", "--learning_rate", "1"]
    flags += ["--lr_scheduler_type", "constant", "--ema_decay", "0.5"]
    run = train(*run_flags(tmp_path / "run", *flags))
    assert run.state.best_global_step == 1
    folder = tmp_path / "run" / "checkpoint-1"
    err = capfd.readouterr().err
    assert f"The best one by validation is in {folder}\n" in err
    assert "Its moving average was validated, which --load_best_model_at_end makes the model" in err
    # which is an average already
    assert "vanilla-transformer average" not in err


def test_the_report_names_the_update_that_is_saved_and_the_best(train, run_flags, text_flags, tmp_path, capfd):
    run = train(*run_flags(tmp_path / "run", *text_flags, "--save_steps", "1", "--metric_for_best_model", "loss"))
    err = capfd.readouterr().err
    assert f"The model of update 2, its tokenizer and its card are in {tmp_path / 'run'}\n" in err
    assert f"Use it with: vanilla-transformer translate {tmp_path / 'run'} < FILE" in err
    command = err.partition("The average of its last 2 checkpoints is often better: vanilla-transformer ")[2]
    assert main(command.split("\n")[0].split()) == 0
    assert (tmp_path / "run-average" / "model.safetensors").is_file()
    best = run.state.best_global_step
    assert (f"The best one by validation is in {tmp_path / 'run' / f'checkpoint-{best}'}" in err) == (best != 2)


def test_a_run_with_a_damaged_state_is_not_considered_finished(train, run_flags, text_flags, tmp_path):
    flags = run_flags(tmp_path / "run", *text_flags)
    train(*flags)
    (tmp_path / "run" / "trainer_state.json").write_text("{")
    assert train(*flags).state.global_step == 2


def test_a_finished_run_without_its_model_writes_it_again_from_its_last_checkpoint(
    train, run_flags, text_flags, tmp_path
):
    flags = run_flags(tmp_path / "run", *text_flags)
    train(*flags)
    weights = tmp_path / "run" / "model.safetensors"
    before = weights.read_bytes()
    weights.unlink()
    assert train(*flags).state.global_step == 2
    assert weights.read_bytes() == before


def test_a_finished_model_whose_checkpoint_has_no_optimizer_is_named_as_a_start(
    train, run_flags, text_flags, tmp_path
):
    flags = run_flags(tmp_path / "run", *text_flags)
    train(*flags)
    (tmp_path / "run" / "checkpoint-2" / "optimizer.pt").unlink()
    with pytest.raises(UserError, match=r"none is intact; to train its model further, give --model_name_or_path"):
        train(*flags, "--max_steps", "4")


def test_a_resumed_run_needs_the_same_number_of_processes(train, run_flags, text_flags, tmp_path):
    flags = run_flags(tmp_path / "run", *text_flags)
    train(*flags)
    file = tmp_path / "run" / "settings.yaml"
    assert "processes: 1" in file.read_text()
    file.write_text(file.read_text().replace("processes: 1", "processes: 2"))
    with pytest.raises(ValueError, match=r"processes was 2, now 1.*torchrun --nproc_per_node 2"):
        train(*flags)
    # as a recipe, the settings fit any number of processes
    assert train(str(file), *run_flags(tmp_path / "elsewhere")).state.global_step == 2


@pytest.mark.parametrize("elsewhere", ["no checkpoint", "finished"])
def test_processes_that_see_different_folders_are_an_error(
    train, run_flags, text_flags, tmp_path, monkeypatch, elsewhere
):
    flags = run_flags(tmp_path / "run", *text_flags)
    train(*flags)
    monkeypatch.setattr("hf_vanilla_transformer.training.run.gather_object", lambda states: [*states, elsewhere])
    with pytest.raises(ValueError, match=rf"checkpoint-2, {elsewhere}\. All machines must share --output_dir"):
        train(*flags, "--max_steps", "4")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("size", [0, 20])
def test_a_resume_restores_damaged_files_of_the_tokenizer_from_the_checkpoint(
    train, run_flags, text_flags, tmp_path, name, size, capfd
):
    flags = run_flags(tmp_path / "run", *text_flags)
    before = train(*flags).model.state_dict()
    (tmp_path / "run" / "trainer_state.json").unlink()
    damaged = tmp_path / "run" / name
    whole = damaged.read_bytes()
    os.truncate(damaged, size)
    run = train(*flags)
    assert all(torch.equal(before[name], weight) for name, weight in run.model.state_dict().items())
    assert damaged.read_bytes() == whole
    assert "is damaged; restoring it from checkpoint-2" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "ema.safetensors"])
@pytest.mark.parametrize("damage", ["code", "text", "empty"])
def test_a_checkpoint_whose_pickles_are_not_plain_data_is_refused(
    name, damage, train, run_flags, text_flags, tmp_path
):
    flags = run_flags(tmp_path / "run", *text_flags, "--save_steps", "2", "--ema_decay", "0.9")
    train(*flags, "--max_steps", "2")
    checkpoint = tmp_path / "run" / "checkpoint-2"
    contents = {"code": pickled(tmp_path / "marker"), "text": b"text", "empty": b""}
    (checkpoint / name).write_bytes(contents[damage])
    (checkpoint / "checksums.json").unlink()
    write_checksums(checkpoint)
    with pytest.raises(OSError, match=rf"^Cannot load {checkpoint}: ") as error:
        train(*flags, "--max_steps", "4")
    # torch's advice for code
    assert "weights_only" not in str(error.value)
    assert not (tmp_path / "marker").exists()
