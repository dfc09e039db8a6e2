import json
from pathlib import Path

import pytest
import torch
import yaml
from corpora import ROOT
from datasets import Dataset
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.training.arguments import DataArguments
from hf_vanilla_transformer.training.checkpoints import write_checksums
from hf_vanilla_transformer.training.recipes import parse_arguments
from hf_vanilla_transformer.training.record import example_sentence as _example
from hf_vanilla_transformer.training.run import run_train
from hf_vanilla_transformer.training.settings import check_same_run, write_settings

RECIPES = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))
WMT = ROOT.parent / "shared" / "data" / "wmt" / "train"
SMALL = [
    "--d_model",
    "16",
    "--num_heads",
    "2",
    "--num_encoder_layers",
    "1",
    "--num_decoder_layers",
    "1",
    "--d_ff",
    "16",
]


@pytest.fixture
def moses(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    english = ["a dog runs .", "", "two men sit .", "the cat sees a dog .", "very " * 400] * 4
    french = ["un chien court .", "vide", "deux hommes .", "le chat voit un chien .", "long"] * 4
    (tmp_path / "text.en").write_text("\n".join(english) + "\n")
    (tmp_path / "text.fr").write_text("\n".join(french) + "\n")
    return tmp_path / "text"


def test_a_preset_sets_model_and_training_and_flags_win(tmp_path):
    output = ["--output_dir", str(tmp_path), "--use_cpu"]
    model, _, training = parse_arguments(["--preset", "tiny", "--max_steps", "7", "--dropout", "0.1", *output])
    assert model.config_overrides() == {"dropout": 0.1}
    assert (training.max_steps, training.max_tokens, training.warmup_steps) == (7, 1024, 1500)
    _, _, training = parse_arguments(["--preset", "D4", *output])
    assert training.label_smoothing_factor == 0.2


def test_validation_runs_exactly_when_there_is_text_for_it(tmp_path):
    output = ["--output_dir", str(tmp_path), "--use_cpu"]
    for flags, strategy in (
        ([], "steps"),
        (["--train_file", "x"], "no"),
        (["--train_file", "x", "--validation_file", "y"], "steps"),
        (["--eval_strategy", "no"], "no"),
    ):
        assert parse_arguments([*flags, *output])[2].eval_strategy == strategy


def settings(output, *more: str) -> list[str]:
    """Flags for a small and short run that writes to `output`."""
    return [
        *("--preset", "tiny", *SMALL, "--max_steps", "2", "--max_tokens", "64", "--logging_steps", "1", "--use_cpu"),
        *("--disable_tqdm", "true", "--output_dir", str(output), *more),
    ]


def text_flags(moses) -> list[str]:
    return ["--train_file", str(moses), "--validation_file", str(moses), "--target_lang", "fr", "--vocab_size", "280"]


def train(*words: str):
    return run_train(*parse_arguments(words))


def test_a_run_leaves_a_model_that_the_auto_classes_load(moses, tmp_path, capfd):
    output = tmp_path / "model"
    train(*settings(output, *text_flags(moses), "--num_beams", "5"))
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(output), AutoTokenizer.from_pretrained(output)
    assert (model.config.source_lang, model.config.target_lang) == ("en", "fr")
    assert model.config.vocab_size == len(tokenizer) == 280
    assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (5, 0.6)
    assert (output / "checkpoint-2" / "model.safetensors").is_file()
    printed = capfd.readouterr().err
    assert "train: 3 of 20 pairs; dropped: 9 duplicate, 4 blank side, 4 too long" in printed
    assert "validation: 12 of 20 pairs; dropped: 4 blank side, 4 too long" in printed


def test_the_resolved_settings_give_the_same_run(moses, tmp_path):
    train(*settings(tmp_path / "one", *text_flags(moses), "--learning_rate", "0.3"))
    train(str(tmp_path / "one" / "settings.yaml"), "--output_dir", str(tmp_path / "two"), "--use_cpu")
    one, two = (yaml.safe_load((tmp_path / name / "settings.yaml").read_text()) for name in ("one", "two"))
    assert one["d_k"] == 8
    assert one["learning_rate"] == 0.3
    assert {**one, "output_dir": ""} == {**two, "output_dir": ""}
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_same_command_goes_on_from_the_newest_whole_checkpoint(moses, tmp_path, capfd):
    flags = [*text_flags(moses), "--save_steps", "2", "--dropout", "0.3"]
    train(*settings(tmp_path / "straight", *flags, "--max_steps", "6"))
    train(*settings(tmp_path / "stopped", *flags, "--max_steps", "4"))
    torn = tmp_path / "stopped" / "checkpoint-4" / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])
    assert "Tokenising" in capfd.readouterr().err
    run = train(*settings(tmp_path / "stopped", *flags, "--max_steps", "6"))
    printed = capfd.readouterr().err
    assert f"Resuming from {tmp_path / 'stopped' / 'checkpoint-2'}" in printed
    assert "Tokenising" not in printed  # it was kept
    assert [entry["step"] for entry in run.state.log_history if "loss" in entry] == [1, 2, 3, 4, 5, 6]
    straight, stopped = (load_file(tmp_path / name / "model.safetensors") for name in ("straight", "stopped"))
    assert all(torch.equal(straight[name], stopped[name]) for name in straight)


def test_a_finished_run_is_left_alone(moses, tmp_path, capfd):
    flags = settings(tmp_path / "run", *text_flags(moses))
    train(*flags)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*")}
    assert train(*flags) is None
    assert "is finished" in capfd.readouterr().err
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run").rglob("*")} == before


def test_fine_tuning_goes_on_from_a_saved_model(moses, tmp_path):
    train(*settings(tmp_path / "first", *text_flags(moses)))
    new = [
        "--train_file",
        str(moses),
        "--model_name_or_path",
        str(tmp_path / "first"),
        "--max_steps",
        "1",
        "--use_cpu",
        "--num_heads",  # as a recipe may name them
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
    assert train(str(tmp_path / "second" / "settings.yaml")) is None  # the same run, and it is finished


def test_metrics_go_to_tensorboard(moses, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    run = train(*settings(tmp_path / "run", *text_flags(moses), "--report_to", "tensorboard", "--save_steps", "1"))
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    logged = {name: [event.value for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    history = run.state.log_history
    for name in ("loss", "tokens_per_second"):
        assert logged[f"train/{name}"] == pytest.approx([entry[name] for entry in history if name in entry])
    for name in ("bleu", "perplexity"):
        values = [entry[f"eval_{name}"] for entry in history if f"eval_{name}" in entry]
        assert len(values) == 2
        assert logged[f"eval/{name}"] == pytest.approx(values, rel=1e-5)


def test_a_data_set_of_the_hub_is_trained_on(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for split in ("train", "validation"):
        rows = [{"en": f"the dog {i}", "fr": f"le chien {i}"} for i in range(9)]
        (tmp_path / "set").mkdir(exist_ok=True)
        Dataset.from_dict({"translation": rows}).to_parquet(tmp_path / "set" / f"{split}.parquet")
    flags = ["--dataset_name", str(tmp_path / "set"), "--target_lang", "fr", "--vocab_size", "265"]
    run = train(*settings(tmp_path / "run", *flags))
    assert len(run.train_dataset) == len(run.eval_dataset) == 9
    with pytest.raises(SystemExit):
        parse_arguments([*flags, "--train_file", "x", "--output_dir", "y"])
    (tmp_path / "set" / "validation.parquet").rename(tmp_path / "kept")
    assert train(*settings(tmp_path / "other", *flags)).eval_dataset is None
    with pytest.raises(ValueError, match="no split validation, which early stopping needs"):
        train(*settings(tmp_path / "third", *flags, "--early_stopping_patience", "2"))
    (tmp_path / "set" / "train.parquet").unlink()
    (tmp_path / "kept").rename(tmp_path / "set" / "validation.parquet")
    with pytest.raises(ValueError, match="has no split train"):
        train(*settings(tmp_path / "fourth", *flags))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda file: file.stem)
def test_every_recipe_trains_at_reduced_size(recipe, tmp_path, monkeypatch, capfd):
    if not WMT.with_suffix(".en").is_file():
        pytest.skip(f"{WMT}.en is not there")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    if "fr" in recipe.stem.split("_"):  # any second language will do
        for kept, named in (("en", "en"), ("de", "fr")):
            (tmp_path / f"train.{named}").symlink_to(WMT.with_suffix(f".{kept}"))
    train_file = tmp_path / "train" if (tmp_path / "train.fr").exists() else WMT
    small = [*SMALL, "--d_k", "8", "--d_v", "8", "--vocab_size", "600", "--max_tokens", "512", "--max_steps", "3"]
    files = ["--train_file", str(train_file), "--output_dir", str(tmp_path / "run")]
    run = train(str(recipe), *files, *small, "--use_cpu", "--disable_tqdm", "true")
    assert run.state.global_step == 3
    assert "1 blank side" in capfd.readouterr().err
    assert (tmp_path / "run" / "model.safetensors").is_file()


@pytest.mark.slow
def test_the_wmt_sample_trains_and_reports_its_drops(tmp_path, monkeypatch, capfd):
    if not WMT.with_suffix(".en").is_file():
        pytest.skip(f"{WMT}.en is not there")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    files = ["--train_file", str(WMT), "--validation_file", str(WMT.with_name("val"))]
    run = train(*settings(tmp_path / "run", *files, "--vocab_size", "2000", "--max_steps", "50"))
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    printed = capfd.readouterr().err
    assert all(reason in printed for reason in ("1 blank side", "too long", "duplicate"))


def test_an_unknown_preset_lists_the_known_ones(tmp_path, capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["--preset", "huge", "--output_dir", str(tmp_path)])
    assert "no preset 'huge'; choose one of tiny, base, big" in capsys.readouterr().err


def test_a_validated_run_without_checkpoints_ends_with_its_best_score(moses, tmp_path, capfd):
    train(*settings(tmp_path / "run", *text_flags(moses), "--save_strategy", "no", "--eval_steps", "1"))
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
def test_settings_of_every_kind_are_a_recipe_of_their_own(moses, tmp_path, flags, capfd):
    train(*settings(tmp_path / "run", *text_flags(moses), *flags))
    written = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())
    assert flags[1].strip("{}") in written[flags[0][2:]]
    assert train(str(tmp_path / "run" / "settings.yaml")) is None  # the same run, and it is finished


def test_a_run_goes_on_from_the_checkpoint_that_is_asked_for(moses, tmp_path, capfd):
    flags = [*text_flags(moses), "--save_steps", "2", "--dropout", "0.3"]
    train(*settings(tmp_path / "run", *flags, "--max_steps", "6"))
    straight = load_file(tmp_path / "run" / "model.safetensors")
    checkpoint = str(tmp_path / "run" / "checkpoint-2")
    for folder in ("run", "elsewhere"):
        capfd.readouterr()
        resume = ["--max_steps", "6", "--resume_from_checkpoint", checkpoint]
        run = train(*settings(tmp_path / folder, *flags, *resume))
        assert f"Resuming from {checkpoint}" in capfd.readouterr().err
        assert [entry["step"] for entry in run.state.log_history if "loss" in entry] == [1, 2, 3, 4, 5, 6]
        resumed = load_file(tmp_path / folder / "model.safetensors")
        assert all(torch.equal(straight[name], resumed[name]) for name in straight)
        assert "resume" not in (tmp_path / folder / "settings.yaml").read_text()


def test_a_checkpoint_that_training_cannot_go_on_from_is_refused(moses, tmp_path):
    flags = text_flags(moses)
    train(*settings(tmp_path / "run", *flags))
    checkpoint = tmp_path / "run" / "checkpoint-2"
    resume = ["--resume_from_checkpoint", str(checkpoint)]
    with pytest.raises(ValueError, match=r"--resume_from_checkpoint .*nowhere: there is no such folder"):
        train(*settings(tmp_path / "other", *flags, "--resume_from_checkpoint", str(tmp_path / "nowhere")))
    with pytest.raises(ValueError, match=r"--resume_from_checkpoint .*its d_ff is 16, not 32"):
        train(*settings(tmp_path / "other", *flags, *resume, "--d_ff", "32"))
    shorter = tmp_path / "shorter"
    for language in ("en", "fr"):
        lines = Path(f"{moses}.{language}").read_text().splitlines(keepends=True)[:4]
        Path(f"{shorter}.{language}").write_text("".join(lines * 3) + "men\n" * 5)
    others = ["--train_file", str(shorter), "--target_lang", "fr", "--vocab_size", "280"]
    train(*settings(tmp_path / "vocabulary", *others))
    with pytest.raises(ValueError, match=r"--resume_from_checkpoint .*its vocabulary differs from that of this run"):
        train(*settings(tmp_path / "vocabulary", *others, "--max_steps", "4", *resume))
    (checkpoint / "scheduler.pt").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"--resume_from_checkpoint .*scheduler.pt is corrupt"):
        train(*settings(tmp_path / "other", *flags, *resume))


def test_a_run_whose_checkpoints_have_no_optimizer_is_not_gone_on_with(moses, tmp_path):
    flags = text_flags(moses)
    train(*settings(tmp_path / "run", *flags))
    checkpoint = tmp_path / "run" / "checkpoint-2"
    (checkpoint / "optimizer.pt").unlink()
    (checkpoint / "checksums.json").unlink()
    write_checksums(checkpoint)  # as --save_only_model wrote it
    with pytest.raises(ValueError, match="has checkpoints, but none is whole"):
        train(*settings(tmp_path / "run", *flags, "--max_steps", "4"))


def test_a_damaged_state_of_a_finished_run_is_not_taken_for_its_end(moses, tmp_path):
    flags = settings(tmp_path / "run", *text_flags(moses))
    train(*flags)
    (tmp_path / "run" / "trainer_state.json").write_text("{")
    assert train(*flags).state.global_step == 2


def test_a_run_needs_as_many_processes_as_before(moses, tmp_path):
    flags = settings(tmp_path / "run", *text_flags(moses))
    train(*flags)
    file = tmp_path / "run" / "settings.yaml"
    assert "processes: 1" in file.read_text()
    file.write_text(file.read_text().replace("processes: 1", "processes: 2"))
    with pytest.raises(ValueError, match=r"processes 2 there, 1 now.*torchrun --nproc_per_node 2"):
        train(*flags)
    assert train(str(file), *settings(tmp_path / "elsewhere")).state.global_step == 2  # a recipe for any number
    file.write_text(file.read_text().replace("processes: 2\n", ""))  # an earlier version did not know
    assert train(*flags) is None


def test_a_stream_needs_as_many_workers_as_before(moses, tmp_path):
    before = {"lr_scheduler_type": "noam", "streaming": True, "dataloader_num_workers": 2}
    write_settings(before, str(tmp_path), "a run")
    assert check_same_run(before, str(tmp_path))
    with pytest.raises(ValueError, match="dataloader_num_workers 2 there, 3 now"):
        check_same_run({**before, "dataloader_num_workers": 3}, str(tmp_path))
    mapped = {**before, "streaming": False}
    write_settings(mapped, str(tmp_path), "a run")
    assert check_same_run({**mapped, "dataloader_num_workers": 3}, str(tmp_path))


def test_no_record_of_a_run_tells_of_private_text_or_folders(moses, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    rows = [{"en": f"the secret {i}", "fr": f"le secret {i}"} for i in range(9)]
    Dataset.from_dict({"translation": rows}).to_parquet(tmp_path / "set" / "train.parquet")
    flags = ["--dataset_name", str(tmp_path / "set"), "--target_lang", "fr", "--vocab_size", "265"]
    train(*settings(tmp_path / "hub", *flags, "--log_level", "info"))
    train(*settings(tmp_path / "files", *text_flags(moses)))
    for run in ("hub", "files"):
        for name in ("training.json", "README.md"):
            text = (tmp_path / run / name).read_text()
            assert "secret" not in text
            assert "dog" not in text
            assert str(tmp_path) not in text.replace(str(tmp_path / run), "")
        record = json.loads((tmp_path / run / "training.json").read_text())
        assert record["dataset_name"] is None
        assert record["example"] == "Hello!"
    assert json.loads((tmp_path / "hub" / "training.json").read_text())["data"] == "set"


def test_a_data_set_of_the_hub_gives_the_card_its_example_and_a_file_none():
    tokenizer = train_tokenizer(["the dog runs"] * 3, 270)
    rows = [{"input_ids": tokenizer(text).input_ids} for text in ("the dog " * 30, "the dog runs")]
    assert _example(DataArguments(dataset_name="somebody/text"), tokenizer, rows) == "the dog runs"
    assert _example(DataArguments(train_file="mine"), tokenizer, rows) == "Hello!"


def test_a_checkpoint_of_more_processes_is_refused(moses, tmp_path):
    flags = text_flags(moses)
    train(*settings(tmp_path / "run", *flags))
    file = tmp_path / "run" / "settings.yaml"
    file.write_text(file.read_text().replace("processes: 1", "processes: 2"))
    resume = ["--resume_from_checkpoint", str(tmp_path / "run" / "checkpoint-2")]
    with pytest.raises(ValueError, match="processes 2 there, 1 now, which changes the batches"):
        train(*settings(tmp_path / "other", *flags, "--max_steps", "4", *resume))


def test_the_built_in_phrases_give_the_card_its_example(tmp_path):
    train(*settings(tmp_path / "run", "--vocab_size", "500", "--eval_strategy", "no", "--max_steps", "1"))
    example = json.loads((tmp_path / "run" / "training.json").read_text())["example"]
    assert example in [phrase.en for phrase in splits()["train"][:100]]
