import re

import pytest
import yaml
from corpora import ROOT
from hypothesis import given
from hypothesis import strategies as st

from hf_vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.training.arguments import NO_EFFECT, Recipe
from hf_vanilla_transformer.training.presets import preset
from hf_vanilla_transformer.training.recipes import parse_arguments, read_recipe

KNOWN = {"max_steps", "learning_rate", "report_to", "bf16", "train_file", "warmup_steps"}
RECIPES = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))


def parse(words: list[str]) -> Recipe:
    (recipe,) = parse_arguments(words)
    return recipe


def read(tmp_path, text: str | bytes) -> dict[str, list[str]]:
    (tmp_path / "r.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_recipe(str(tmp_path / "r.yaml"), KNOWN)


def test_a_recipe_becomes_flags(tmp_path):
    text = "# comment\nmax_steps: -1\nlearning_rate: 1e-4\nreport_to: [tensorboard, wandb]\nbf16: true\ntrain_file:\n"
    flags = {"max_steps": ["-1"], "learning_rate": ["1e-4"], "report_to": ["tensorboard", "wandb"], "bf16": ["true"]}
    assert read(tmp_path, text) == flags


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max_steps: 3\nwarmup_step: 4\n",
            r"r\.yaml, line 2: unknown key 'warmup_step'; `train --help` lists the flags\.",
        ),
        ("qqq: 4\n", r"line 1: unknown key 'qqq';"),
        ("max_steps: 3\nbf16: true\nmax_steps: 4\n", "line 3: 'max_steps' appears twice"),
        ("max_steps: {a: 1}\n", "line 1: 'max_steps' must be a plain value"),
        ("max_steps: [[1]]\n", "line 1: 'max_steps' must be a plain value"),
        ("max_steps: 3\nbf16: [true\n", "line 3: not YAML"),
        ("- max_steps\n", "a recipe must consist of lines such as"),
        ("", "a recipe must consist of lines such as"),
        ("[" * 10_000, "not YAML"),
        (b"max_steps: \xff", r"r\.yaml: not UTF-8 \(invalid start byte at byte 11\)\.$"),
        ("? [a, b]\n: 1\n", "line 1: unknown key"),
    ],
)
def test_the_error_of_an_invalid_recipe_names_file_and_line(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, text)


@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_becomes_flags_or_a_clear_error(text, tmp_path_factory):
    try:
        flags, error = read(tmp_path_factory.getbasetemp(), text), "r.yaml"
    except ValueError as raised:
        flags, error = {}, str(raised)
    assert flags.keys() <= KNOWN
    assert "r.yaml" in error


def test_a_preset_sets_model_and_training_and_flags_override_it(tmp_path):
    output = ["--output_dir", str(tmp_path), "--use_cpu"]
    recipe = parse(["--preset", "tiny", "--max_steps", "7", "--dropout", "0.1", *output])
    assert recipe.model.overrides(VanillaTransformerConfig.__annotations__) == {"dropout": 0.1}
    assert (recipe.config.dropout, recipe.config.d_model) == (0.1, 128)
    training = recipe.args
    assert (training.max_steps, training.max_tokens, training.warmup_steps) == (7, 1024, 1500)
    assert parse(["--preset", "D4", *output]).args.label_smoothing_factor == 0.2


def test_the_factor_of_the_noam_schedule_is_no_learning_rate_of_another(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("preset: tiny\nlearning_rate: 2.5\n")
    linear, output = ["--lr_scheduler_type", "linear"], ["--output_dir", str(tmp_path), "--use_cpu"]
    for words, expected in (
        (["--preset", "tiny"], 0.7),
        (["--preset", "tiny", *linear], 5e-5),
        (["--preset", "tiny", *linear, "--learning_rate", "0.003"], 0.003),
        ([str(recipe)], 2.5),
        ([str(recipe), "--lr_scheduler_type", "noam"], 2.5),
        ([str(recipe), *linear], 5e-5),
    ):
        assert parse([*words, *output]).args.learning_rate == expected
    recipe.write_text("lr_scheduler_type: linear\nlearning_rate: 0.002\n")
    assert parse([str(recipe), *linear, *output]).args.learning_rate == 0.002


def test_a_direction_on_the_command_line_replaces_the_languages_of_the_recipe(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("source_lang: en\ntarget_lang: fr\n")
    output = ["--output_dir", str(tmp_path), "--use_cpu"]
    data = parse([str(recipe), "--language_pairs", "en-de", *output]).data
    assert (data.source_lang, data.target_lang, data.language_pairs) == ("en", "de", None)
    assert parse([str(recipe), *output]).data.target_lang == "fr"


@pytest.mark.parametrize("word", ["--max-steps", "--max_steps", "--max_steps="])
def test_flags_may_be_written_with_hyphens_and_as_one_word(tmp_path, word):
    words = [f"{word}7"] if word.endswith("=") else [word, "7"]
    assert parse([*words, "--output_dir", str(tmp_path), "--use_cpu"]).args.max_steps == 7


def test_a_recipe_may_list_several_values_for_a_flag_that_takes_one_or_more(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("report_to: [tensorboard, wandb]\noptim_target_modules: all-linear\nbf16: false\n")
    args = parse([str(recipe), "--output_dir", str(tmp_path), "--use_cpu"]).args
    assert args.report_to == ["tensorboard", "wandb"]
    assert args.optim_target_modules == "all-linear"


def test_the_error_of_an_unknown_preset_lists_the_known_ones(tmp_path, capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["--preset", "huge", "--output_dir", str(tmp_path)])
    assert "no preset 'huge'; choose one of tiny, base, big" in capsys.readouterr().err


def test_the_precision_is_that_of_accelerates_configuration_unless_given(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert parse(["--output_dir", str(tmp_path), "--use_cpu"]).args.bf16
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert not parse(["--output_dir", str(tmp_path), "--use_cpu"]).args.bf16


def test_help_lists_no_flag_that_is_refused(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(["--help"])
    listed = capsys.readouterr().out
    assert "--max_tokens" in listed
    assert not [name for name in NO_EFFECT if f"--{name} " in listed]


def test_validation_runs_only_if_there_is_text_for_it(tmp_path):
    output = ["--output_dir", str(tmp_path), "--use_cpu"]
    for flags, strategy in (
        ([], "steps"),
        (["--train_file", "x"], "no"),
        (["--train_file", "x", "--validation_file", "y"], "steps"),
        (["--eval_strategy", "no"], "no"),
    ):
        assert parse([*flags, *output]).args.eval_strategy == strategy


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_recipes_match_their_presets_and_name_no_paths(file, tmp_path):
    recipe = yaml.safe_load(file.read_text())
    resolved = parse([str(file), "--output_dir", str(tmp_path), "--use_cpu"])
    model, data, args = resolved.model, resolved.data, resolved.args
    assert (data.train_file, data.validation_file, data.dataset_name) == (None, None, None)
    like = preset(recipe.get("preset", "base"))
    preset_values = {**like.model, **like.training}
    exceptions = {
        "multi30k_en_de_tiny": {"max_steps": 12_000, "learning_rate": 1.0},
        # it keeps the sizes of the model that it starts from
        "multi30k_fast": {
            **{"dropout": 0.15, "max_tokens": 2048, "max_steps": 4200, "learning_rate": 0.003, "warmup_steps": 300},
            **{"save_steps": 600, "save_total_limit": 2},
        },
        "multi30k_pairs": {
            **{"vocab_size": 10_000, "max_tokens": 2048, "max_steps": 8000, "save_steps": 1000},
            **{"gradient_accumulation_steps": 4, "learning_rate": 2.53, "warmup_steps": 2000},
        },
        "phrases": {
            **{"vocab_size": 2500, "dropout": 0, "max_tokens": 512, "max_steps": 1400, "save_steps": 50},
            **{"learning_rate": 0.5, "warmup_steps": 250, "save_total_limit": 5, "logging_steps": 50},
        },
        "wmt14_en_fr_big": {"dropout": 0.1},
    }.get(file.stem, {})
    for name, value in {**preset_values, **exceptions}.items():
        assert getattr(model, name, getattr(args, name, None)) == value, name
    assert f"{file.name} " in file.read_text().split("\n\n")[0] or f"{file.name}\n" in file.read_text()


def test_the_wmt_recipes_match_the_paper(tmp_path):
    for stem, vocab_size, dropout, steps, last in (
        ("wmt14_en_de_base", 37_000, 0.1, 100_000, 5),
        ("wmt14_en_de_big", 37_000, 0.3, 300_000, 20),
        ("wmt14_en_fr_big", 32_000, 0.1, 300_000, 20),
    ):
        file = next(file for file in RECIPES if file.stem == stem)
        big = stem.endswith("big")
        recipe = yaml.safe_load(file.read_text())
        paper = {
            **{"vocab_size": vocab_size, "num_encoder_layers": 6, "num_decoder_layers": 6, "dropout": dropout},
            **{"d_model": 1024 if big else 512, "d_ff": 4096 if big else 2048, "num_heads": 16 if big else 8},
            **{"d_k": 64, "d_v": 64, "max_tokens": 25_000, "max_steps": steps, "warmup_steps": 4000},
            **{"adam_beta1": 0.9, "adam_beta2": 0.98, "adam_epsilon": 1e-9, "label_smoothing_factor": 0.1},
            **{"max_grad_norm": 0.0, "save_total_limit": last, "num_beams": 4, "length_penalty": 0.6},
            **{"save_steps": 600 if big else 1500, "learning_rate": 1.0, "lr_scheduler_type": "noam"},
        }
        assert {name: recipe[name] for name in paper} == paper


@pytest.mark.parametrize("flag", ["num_beams", "length_penalty"])
def test_decoding_settings_that_no_saved_model_may_have_are_wrong_use(flag, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        parse_arguments([f"--{flag}", "2000", "--output_dir", str(tmp_path), "--use_cpu"])
    assert stop.value.code == 2
    assert f"{flag} must be " in capsys.readouterr().err


WMT_RECIPES = [recipe for recipe in RECIPES if recipe.name.startswith("wmt14")]


@pytest.mark.parametrize("recipe", WMT_RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_of_the_paper_lists_flags_with_the_memory_and_the_hours_that_were_measured(recipe):
    benchmarks = (ROOT / "scripts" / "benchmarks" / "README.md").read_text(encoding="utf-8")
    measured = set(re.findall(r"^\| `(?:base|big)`, .*?\| ([\d,]+) \|.*\| ([\d.]+) \|$", benchmarks, re.MULTILINE))
    text = recipe.read_text(encoding="utf-8")
    rows = re.findall(r"^#   (--max_tokens .*?) +([\d.]+) GB +([\d,]+) +([\d.]+)$", text, re.MULTILINE)
    assert len(rows) == 2
    for flags, gigabytes, rate, hours in rows:
        args = parse([str(recipe), *flags.split(), "--output_dir", "out", "--use_cpu"]).args
        assert args.max_tokens * args.gradient_accumulation_steps == 25_000
        assert (rate, gigabytes) in measured
        assert float(hours) == round(25_000 * args.max_steps / int(rate.replace(",", "")) / 3600, 1)
    # the header ends with the commands, as far as the score
    header = text[: text.index("source_lang:")]
    verbs = re.findall(r"^#   (?:accelerate launch scripts/|vanilla-transformer )(\w+)", header, re.MULTILINE)
    assert verbs == ["train", "average", "evaluate", "push"]
