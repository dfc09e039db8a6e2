"""A preset and a number of updates that fit the text, where the command line names none."""

import json
from pathlib import Path

import pytest
import yaml
from corpora import ROOT
from small import as_flags, write_moses
from transformers import AutoConfig

from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.training import presets
from hf_vanilla_transformer.training.recipes import parse_arguments

SMALL = {"d_model": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 16}


FEW = 2_000  # pairs, in place of 200,000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def small_limit(monkeypatch):
    """Let `FEW` pairs suffice for base, so that no test writes 200,000."""
    for module in ("presets", "recipes"):
        monkeypatch.setattr(f"hf_vanilla_transformer.training.{module}.SMALL_TEXT", FEW)


def write_text(folder: Path, pairs: int) -> str:
    lines = [f"line {number}" for number in range(pairs)]
    return str(write_moses(folder / f"text{pairs}", en=lines, de=lines))


@pytest.fixture
def parse(tmp_path):
    """A function that parses the flags of `train` for a new folder, without a preset unless one is given."""

    def parse(*words: str):
        (recipe,) = parse_arguments([*words, "--output_dir", str(tmp_path / "new"), "--use_cpu"])
        return recipe

    return parse


@pytest.fixture
def words(tmp_path):
    """A function that returns the command line of a short run on 40 pairs in a folder, without a preset."""
    text = write_text(tmp_path, 40)

    def words(folder: str, *more: str) -> list[str]:
        flags = as_flags({**SMALL, "vocab_size": 270, "output_dir": tmp_path / folder})
        return ["--train_file", text, *flags, "--disable_tqdm", "true", "--use_cpu", *more]

    return words


def peak(args, d_model: int = 128) -> float:
    """Return the highest learning rate of the paper's equation 3, reached where its two branches meet."""
    return args.learning_rate / (d_model * args.warmup_steps) ** 0.5


@pytest.mark.parametrize(
    ("flags", "warmup"),
    [
        (("--max_steps", "7500"), 1500),
        (("--max_steps", "100"), 20),
        (("--warmup_steps", "10"), 10),
        (("--num_train_epochs", "60"), 32),  # 160 updates of about 60 pairs
        (("--max_steps", "-1"), 1),
    ],
)
def test_warm_up_and_factor_follow_the_length_that_is_given(flags, warmup, parse, tmp_path):
    args = parse("--train_file", write_text(tmp_path, 160), *flags).args
    assert args.warmup_steps == warmup
    assert peak(args) == pytest.approx(0.7 / (128 * 1500) ** 0.5, rel=0.01)
    given = parse("--train_file", str(tmp_path / "text160"), *flags, "--learning_rate", "2").args
    assert given.learning_rate == 2.0


@pytest.mark.parametrize(("pairs", "updates"), [(40, 2000), (4_000, 2000), (8_000, 2_666)])
def test_small_text_trains_tiny_for_updates_that_follow_it(pairs, updates, parse, tmp_path, capsys):
    recipe = parse("--train_file", write_text(tmp_path, pairs))
    model, args = recipe.model, recipe.args
    assert (model.preset, args.max_tokens, args.max_steps) == ("tiny", 1024, updates)
    (line,) = capsys.readouterr().err.splitlines()
    for part in (f"{pairs:,} pairs", "200,000", "preset tiny", f"{updates:,} updates", "--preset or --max_steps"):
        assert part in line
    # The published tiny: a factor of 0.7 and 1,500 updates of warm-up
    assert args.warmup_steps <= updates / 5
    assert peak(args) == pytest.approx(0.7 / (128 * 1500) ** 0.5, rel=0.01)


def test_fewer_than_200_000_pairs_are_few():
    assert presets.SMALL_TEXT == 200_000
    assert [presets.fit_to(pairs)[0] for pairs in (199_999, 200_000)] == ["tiny", "base"]


@pytest.mark.usefixtures("small_limit")
def test_large_text_trains_base_as_in_the_paper(parse, tmp_path, capsys):
    assert parse("--train_file", write_text(tmp_path, FEW - 1)).model.preset == "tiny"
    capsys.readouterr()
    recipe = parse("--train_file", write_text(tmp_path, FEW))
    model, args = recipe.model, recipe.args
    assert (model.preset, args.max_tokens, args.max_steps, args.warmup_steps) == ("base", 25_000, 100_000, 4000)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("small_limit")
def test_the_pairs_of_all_texts_count_together(parse, tmp_path):
    texts = [write_text(tmp_path, pairs) for pairs in (3 * FEW // 4, FEW // 4)]
    assert parse("--train_file", *texts).model.preset == "base"
    assert parse("--train_file", texts[0]).model.preset == "tiny"


def test_a_preset_of_the_command_line_or_the_recipe_is_kept_as_it_is(parse, tmp_path, capsys):
    text = ["--train_file", write_text(tmp_path, 40)]
    recipe = tmp_path / "recipe.yaml"
    for name, expected in (("tiny", (7500, 1500, 0.7)), ("base", (100_000, 4000, 1.0))):
        recipe.write_text(f"preset: {name}\n")
        for given in (["--preset", name], [str(recipe)]):
            resolved = parse(*given, *text)
            args = resolved.args
            assert resolved.model.preset == name
            assert (args.max_steps, args.warmup_steps, args.learning_rate) == expected
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("given", "length", "printed"),
    [
        (["--max_steps", "70"], (70, 3.0), "tiny for 70 updates;"),
        (["--num_train_epochs", "3"], (-1, 3.0), "tiny for 3 epochs;"),
        (["--max_steps", "-1", "--num_train_epochs", "2"], (-1, 2.0), "tiny for 2 epochs;"),
    ],
)
def test_a_given_number_of_updates_or_epochs_wins(given, length, printed, parse, tmp_path, capsys):
    args = parse("--train_file", write_text(tmp_path, 40), *given).args
    assert (args.max_steps, args.num_train_epochs) == length
    assert printed in capsys.readouterr().err


def test_epochs_alone_win_over_the_updates_of_a_preset(parse):
    args = parse("--preset", "tiny", "--num_train_epochs", "5").args
    assert (args.max_steps, args.num_train_epochs) == (-1, 5)


def test_another_schedule_does_not_take_the_factor_for_its_learning_rate(parse, tmp_path):
    args = parse("--train_file", write_text(tmp_path, 40), "--lr_scheduler_type", "cosine").args
    assert (args.max_steps, args.learning_rate) == (2000, 5e-5)


def test_text_that_cannot_be_read_is_reported_in_one_line_without_a_preset(tmp_path, capsys):
    assert main(["train", "--train_file", "nowhere/text", "--output_dir", str(tmp_path / "new")]) == 1
    assert "There is no file nowhere/text.en" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("began_with", [["--preset", "base"], ["--preset", "tiny"], []])
def test_a_folder_with_a_run_keeps_its_preset_and_what_was_fitted(began_with, words, train, tmp_path, capsys):
    train(*words("run", *began_with, "--max_steps", "1"))
    before = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())
    assert before["preset"] == (began_with or ["", "tiny"])[1]
    capsys.readouterr()
    trainer = train(*words("run", "--max_steps", "2"))
    assert trainer.state.global_step == 2
    assert "too few" not in capsys.readouterr().err
    after = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())
    assert {**after, "max_steps": 1} == before
    # The same command again
    assert train(*words("run", "--max_steps", "2")) is None


def test_a_prepared_folder_counts_by_its_manifest(parse, tmp_path):
    text = write_text(tmp_path, 40)
    folder = tmp_path / "prepared"
    languages = ["--source_lang", "en", "--target_lang", "de"]
    assert (
        main(["prepare", text, *languages, "--vocab_size", "270", "--workers", "1", "--output_dir", str(folder)]) == 0
    )
    for streaming in ([], ["--streaming"]):
        assert parse("--train_file", str(folder), *streaming).model.preset == "tiny"
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "pairs": 200_000}))
    for streaming in ([], ["--streaming"]):
        assert parse("--train_file", str(folder), *streaming).model.preset == "base"


def test_fine_tuning_keeps_the_architecture_and_fits_the_training(words, train, tmp_path):
    train(*words("first", "--max_steps", "1"))
    text = ["--train_file", str(tmp_path / "text40"), "--use_cpu", "--disable_tqdm", "true", "--max_steps", "1"]
    output = ["--output_dir", str(tmp_path / "second")]
    trainer = train("--model_name_or_path", str(tmp_path / "first"), *text, *output)
    assert AutoConfig.from_pretrained(tmp_path / "second").d_model == 16
    assert (trainer.args.max_tokens, trainer.args.warmup_steps) == (1024, 1)


def test_the_rows_of_the_ablation_change_base_even_on_small_text():
    assert '"preset": "base"' in (ROOT / "scripts" / "study" / "ablate.py").read_text()
