import pytest
from sample_text import prepare_text
from small import write_moses

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.source import TextFile
from hf_vanilla_transformer.plugins.study.experiment import TuneArguments, run_experiment
from hf_vanilla_transformer.training.recipes import parse_arguments


def test_tune_requires_a_validation_text(tune, without_validation, tmp_path, capsys):
    assert tune(without_validation, tmp_path / "study") == 1
    assert "pass --validation_file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--method", "range"], "argument --method: invalid choice: 'range'"),
        (["--trials", "0"], "--trials: must be at least 1"),
    ],
)
def test_values_out_of_range_exit_with_status_2(more, message, tune, flags, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        tune(flags, tmp_path / "study", *more)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_prepared_text_and_early_stopping_are_supported_but_not_streaming(tune, flags, word_pairs, tmp_path, capsys):
    i = flags.index("--train_file")
    tokenizer = train_tokenizer([" ".join(pair) for pair in word_pairs.items()], 262)
    text = TextFile(("en", "de"), flags[i + 1])
    prepare_text(text, tmp_path / "prepared", tokenizer)
    flags[i + 1] = str(tmp_path / "prepared")
    more = ["--max_steps", "16", "--trials", "1", "--early_stopping_patience", "3", "--save_steps", "4"]
    more += ["--eval_steps", "4", "--metric_for_best_model", "eval_loss"]
    assert tune(flags, tmp_path / "study", *more) == 0
    assert main(["train", str(tmp_path / "study" / "best.yaml"), "--output_dir", str(tmp_path / "run")]) == 0
    assert tune(flags, tmp_path / "other", *more, "--streaming") == 1
    assert "remove --streaming" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model_name_or_path", "x"], "remove --model_name_or_path"),
        (["--lr_scheduler_type", "linear"], "remove --lr_scheduler_type"),
        (["--max_steps", "-1"], "pass --max_steps"),
        (["--report_to", "nobody"], "--report_to nobody: "),
    ],
)
def test_unsupported_settings_are_reported(more, message, tune, flags, small_model, tmp_path, monkeypatch, capsys):
    if "--model_name_or_path" in more:
        monkeypatch.chdir(tmp_path)
        small_model().save_pretrained("x")
        size = {"--vocab_size", "--d_model", "--d_ff", "--num_heads", "--num_encoder_layers", "--num_decoder_layers"}
        flags = [word for i, word in enumerate(flags) if word not in size and (i == 0 or flags[i - 1] not in size)]
    assert tune(flags, tmp_path / "study", *more) == 1
    assert message in capsys.readouterr().err


def test_tune_fits_the_preset_as_train_does(tmp_path):
    lines = [f"line {number}" for number in range(40)]
    text = write_moses(tmp_path / "text", en=lines, de=lines)
    flags = ["--train_file", str(text), "--output_dir", str(tmp_path / "study"), "--use_cpu"]
    recipe, _ = parse_arguments(flags, "tune", "", TuneArguments)
    assert (recipe.model.preset, recipe.args.max_steps) == ("tiny", 2000)


def test_what_trackers_print_does_not_mix_with_the_table(flags, tmp_path, capsys):
    recipe, _ = parse_arguments(
        [*flags, "--max_steps", "4", "--output_dir", str(tmp_path / "s")], "tune", "", TuneArguments
    )

    def study(experiment, folder):
        print("* Run finished.")
        return "table"

    run_experiment(study, recipe, print)
    output = capsys.readouterr()
    assert output.out == "table\n"
    assert "* Run finished.\n" in output.err
