import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer.training import parse_arguments, run_train

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


def test_a_run_leaves_a_model_that_the_auto_classes_load(moses, tmp_path, capfd):
    flags = ["--preset", "tiny", "--train_file", str(moses), "--validation_file", str(moses), "--target_lang", "fr"]
    settings = [
        "--max_steps",
        "2",
        "--max_tokens",
        "64",
        "--logging_steps",
        "1",
        "--use_cpu",
        "--disable_tqdm",
        "true",
    ]
    output = tmp_path / "model"
    run_train(*parse_arguments([*flags, *SMALL, *settings, "--vocab_size", "300", "--output_dir", str(output)]))
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(output), AutoTokenizer.from_pretrained(output)
    assert (model.config.source_lang, model.config.target_lang) == ("en", "fr")
    assert model.config.vocab_size == len(tokenizer) <= 300
    assert (output / "checkpoint-2" / "model.safetensors").is_file()
    assert "train: 12 pairs; dropped: 4 blank side, 4 too long" in capfd.readouterr().err


def test_an_unknown_preset_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="no preset 'huge'; choose one of tiny, base, big"):
        parse_arguments(["--preset", "huge", "--output_dir", str(tmp_path)])
