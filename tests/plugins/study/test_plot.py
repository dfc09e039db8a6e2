import json

import pytest
from PIL import Image

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.tokenizer import add_tags


@pytest.fixture
def model(small_model, tmp_path):
    """The folder of a model with a training log."""
    tokenizer = train_tokenizer(["a dog runs"] * 3, 265)
    small_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    log = [
        {"step": 5, "loss": 3.0},
        {"step": 10, "loss": 2.0},
        {"step": 10, "eval_loss": 1.0, "eval_perplexity": 2.7, "eval_bleu": 9.0},
    ]
    (tmp_path / "model" / "trainer_state.json").write_text(json.dumps({"global_step": 10, "log_history": log}))
    return tmp_path / "model"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["attention", "{}", "--sentence", "a dog", "--layer", "0"], marks=pytest.mark.slow),
        ["training", "{}"],
    ],
    ids=lambda words: words[0],
)
def test_the_same_plot_command_writes_the_same_bytes(words, model, tmp_path):
    words = [word.format(model) for word in words]
    for name in ("one.png", "two.png", "one.svg", "two.svg"):
        assert main(["plot", *words, "--output", str(tmp_path / name)]) == 0
    for kind in ("png", "svg"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
    with Image.open(tmp_path / "one.png") as picture:
        colours = len(picture.convert("RGB").getcolors(maxcolors=1 << 24))
    assert colours > 10
    assert "<svg" in (tmp_path / "one.svg").read_text(encoding="utf-8")


@pytest.mark.slow
def test_attention_is_plotted_for_a_model_of_several_target_languages(tmp_path, capsys, small_model):
    tokenizer = train_tokenizer(["a dog runs"] * 3, 265)
    add_tags(tokenizer, ["<2de>", "<2fr>"])
    model = small_model(vocab_size=len(tokenizer), language_pairs=["en-de", "en-fr"])
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    words = ["plot", "attention", str(tmp_path / "model"), "--sentence", "a dog", "--output", str(tmp_path / "x.png")]
    assert main(words) == 1
    assert "choose one as the target language" in capsys.readouterr().err
    assert main([*words, "--target_lang", "fr"]) == 0
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_other_file_types_and_wrong_flags_are_refused(model, tmp_path, capsys):
    assert main(["plot", "training", str(model), "--output", str(tmp_path / "curves.jpg")]) == 1
    assert "must end in .png or .svg" in capsys.readouterr().err
    for words in (["training"], ["masks"], []):
        with pytest.raises(SystemExit) as stop:
            main(["plot", *words, "--output", "x.png"])
        assert stop.value.code == 2
