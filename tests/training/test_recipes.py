import pytest
import yaml
from corpora import ROOT
from hypothesis import given
from hypothesis import strategies as st

from hf_vanilla_transformer.training.presets import preset
from hf_vanilla_transformer.training.recipes import parse_arguments, read_recipe
from hf_vanilla_transformer.training.settings import check_same_run, write_settings

KNOWN = {"max_steps", "learning_rate", "report_to", "bf16", "train_file", "warmup_steps"}
RECIPES = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))
SETTINGS = {"d_model": 32, "learning_rate": 1.0, "max_steps": 5, "lr_scheduler_type": "noam", "save_steps": 1}


def read(tmp_path, text: str | bytes) -> list[str]:
    (tmp_path / "r.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_recipe(str(tmp_path / "r.yaml"), KNOWN)


def test_a_recipe_stands_for_its_flags(tmp_path):
    text = "# comment\nmax_steps: -1\nlearning_rate: 1e-4\nreport_to: [tensorboard, wandb]\nbf16: true\ntrain_file:\n"
    words = ["--max_steps", "-1", "--learning_rate", "1e-4", "--report_to", "tensorboard", "wandb", "--bf16", "true"]
    assert read(tmp_path, text) == words


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "max_steps: 3\nwarmup_step: 4\n",
            r"r\.yaml, line 2: unknown key 'warmup_step'; did you mean 'warmup_steps'\?",
        ),
        ("qqq: 4\n", r"line 1: unknown key 'qqq'\.$"),
        ("max_steps: 3\nbf16: true\nmax_steps: 4\n", "line 3: 'max_steps' appears twice"),
        ("max_steps: {a: 1}\n", "line 1: 'max_steps' must be a plain value"),
        ("max_steps: [[1]]\n", "line 1: 'max_steps' must be a plain value"),
        ("max_steps: 3\nbf16: [true\n", "line 3: not YAML"),
        ("- max_steps\n", "a recipe is lines such as"),
        ("", "a recipe is lines such as"),
        ("[" * 10_000, "not YAML"),
        (b"max_steps: \xff", "not UTF-8"),
        ("? [a, b]\n: 1\n", "line 1: unknown key"),
    ],
)
def test_a_wrong_recipe_names_file_and_line(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, text)


@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_flags_or_a_clear_error(text, tmp_path_factory):
    try:
        words = read(tmp_path_factory.getbasetemp(), text)
    except ValueError as error:
        words = [str(error)]
    assert words == [] or words[0].startswith("--") or "r.yaml" in words[0]


def test_settings_are_a_recipe_that_gives_them_back(tmp_path):
    write_settings({"learning_rate": 1e-9, "report_to": ["a", "b"], "bf16": False}, str(tmp_path / "run"), "head")
    words = read_recipe(str(tmp_path / "run" / "settings.yaml"), KNOWN)
    assert words == ["--learning_rate", "1.0e-09", "--report_to", "a", "b", "--bf16", "false"]


@pytest.mark.parametrize("content", [b"d_model: [", b"\xff", b"- a", b"words"])
def test_damaged_settings_are_named(tmp_path, content):
    write_settings(SETTINGS, str(tmp_path), "head")
    (tmp_path / "settings.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=r"settings\.yaml is damaged"):
        check_same_run(SETTINGS, str(tmp_path))


def test_a_run_goes_on_only_with_its_own_settings(tmp_path):
    folder = str(tmp_path)
    assert not check_same_run(SETTINGS, folder)
    write_settings(SETTINGS, folder, "head")
    assert check_same_run(SETTINGS, folder)
    assert check_same_run({**SETTINGS, "max_steps": 9, "save_steps": 2, "report_to": ["tensorboard"]}, folder)
    with pytest.raises(ValueError, match="holds a run with different settings: d_model 32 there, 64 now"):
        check_same_run({**SETTINGS, "d_model": 64}, folder)
    with pytest.raises(ValueError, match=r"dropout None there, 0\.1 now"):
        check_same_run({**SETTINGS, "dropout": 0.1}, folder)
    with pytest.raises(ValueError, match=r"learning_rate 1\.0 there, None now"):
        check_same_run({name: value for name, value in SETTINGS.items() if name != "learning_rate"}, folder)


def test_settings_that_came_later_had_their_defaults_before(tmp_path):
    write_settings(SETTINGS, str(tmp_path), "head")
    assert check_same_run({**SETTINGS, "ema_decay": 0.0, "streaming": False}, str(tmp_path))
    with pytest.raises(ValueError, match=r"ema_decay 0\.0 there, 0\.9 now"):
        check_same_run({**SETTINGS, "ema_decay": 0.9}, str(tmp_path))


def test_a_schedule_that_ends_fixes_the_length(tmp_path):
    linear = {**SETTINGS, "lr_scheduler_type": "linear"}
    write_settings(linear, str(tmp_path), "head")
    with pytest.raises(ValueError, match="max_steps 5 there, 9 now"):
        check_same_run({**linear, "max_steps": 9}, str(tmp_path))


def test_a_model_from_elsewhere_is_not_written_over(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="already holds a model"):
        check_same_run(SETTINGS, str(tmp_path))


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_recipes_say_what_their_presets_say_and_name_no_paths(file, tmp_path):
    recipe = yaml.safe_load(file.read_text())
    model, data, args = parse_arguments([str(file), "--output_dir", str(tmp_path), "--use_cpu"])
    assert (data.train_file, data.validation_file, data.dataset_name) == (None, None, None)
    same = {**preset(recipe["preset"]).model, **preset(recipe["preset"]).training}
    expected = {
        "multi30k_en_de_tiny": {"max_steps": 12_000, "learning_rate": 1.0},
        "wmt14_en_fr_big": {"dropout": 0.1},
    }.get(file.stem, {})
    for name, value in {**same, **expected}.items():
        assert getattr(model, name, getattr(args, name, None)) == expected.get(name, value), name
    assert f"{file.name} " in file.read_text().split("\n\n")[0] or f"{file.name}\n" in file.read_text()


def test_the_wmt_recipes_hold_the_papers_numbers(tmp_path):
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


def test_settings_with_a_name_that_is_none_are_damaged(tmp_path):
    (tmp_path / "settings.yaml").write_text("1: 2\n")
    with pytest.raises(ValueError, match=r"settings.yaml is damaged"):
        check_same_run({"lr_scheduler_type": "noam"}, str(tmp_path))
