import json
import re

import pytest
import torch
from card_contents import RECORD
from script_runs import import_script, read_table
from small import write_moses

from hf_vanilla_transformer.inference.metrics import bleu
from hf_vanilla_transformer.sharing.card import write_card, write_record

SOURCES = ["The old man reads a book.", "A dog sees the red house.", "The child has two cats.", "A bird sings."]
ALPHAS = [-4.0, 0.6, 4.0]


@pytest.fixture(scope="module")
def script():
    """The module scripts/recipes/choose_length_penalty.py."""
    return import_script("recipes/choose_length_penalty.py")


@pytest.fixture
def model(save_model, datasets_cache):
    """A model whose translations depend on the length penalty, saved with a record of its training and a card."""
    model, folder = save_model(source_lang="en", target_lang="de")
    model.generation_config.update(num_beams=3, length_penalty=0.6)
    model.generation_config.save_pretrained(folder)
    write_record(folder, {**RECORD, "settings": {**RECORD["settings"], "bleu_tokenize": "char"}})
    write_card(folder)
    return model


def generated(model, tokenizer, alpha):
    """Return what `generate` of the model itself writes."""
    texts = []
    for sentence in SOURCES:
        with torch.no_grad():
            output = model.generate(**tokenizer(sentence, return_tensors="pt"), length_penalty=alpha)
        texts += tokenizer.batch_decode(output, skip_special_tokens=True)
    return texts


def run(script, folder, references, *flags):
    text = write_moses(folder / "val", en=SOURCES, de=[" ".join(reference.split()) for reference in references])
    alphas = map(str, ALPHAS)
    script.main([str(folder / "model"), "--validation_file", str(text), "--alphas", *alphas, *flags])


def decoding(folder):
    return json.loads((folder / "model" / "generation_config.json").read_text())


@pytest.mark.parametrize("best", ALPHAS)
def test_the_alpha_with_the_highest_bleu_is_saved_with_the_model_and_its_card(
    script, model, phrase_tokenizer, best, tmp_path, capsys
):
    translations = {alpha: generated(model, phrase_tokenizer, alpha) for alpha in ALPHAS}
    references = [" ".join(text.split()) for text in translations[best]]
    expected = {alpha: bleu("char").corpus_score(texts, [references]).score for alpha, texts in translations.items()}
    assert len(set(expected.values())) == len(ALPHAS)
    before = decoding(tmp_path)
    run(script, tmp_path, references)

    scores = {float(alpha): float(row["BLEU"]) for alpha, row in read_table(capsys.readouterr().out).items()}
    assert scores == pytest.approx(expected, abs=0.005)
    assert decoding(tmp_path) == {**before, "length_penalty": best}
    # the card's scores are those with this length penalty
    record = json.loads((tmp_path / "model" / "training.json").read_text())
    assert [score["bleu"] for score in record["scores"]] == [pytest.approx(expected[best])]
    assert record["settings"]["length_penalty"] == best
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"length penalty {best}," in card
    assert f"{expected[best]:.2f}" in card


def test_a_card_that_was_written_by_hand_stays_as_it_is(script, model, phrase_tokenizer, tmp_path, capsys):
    card = tmp_path / "model" / "README.md"
    own = "# Our model\n\nThanks to all who translated.\n"
    card.write_text(own)
    run(script, tmp_path, generated(model, phrase_tokenizer, 4.0))
    assert decoding(tmp_path)["length_penalty"] == 4.0
    assert card.read_text() == own
    assert "written by hand" in capsys.readouterr().out


def test_a_model_without_a_record_and_a_card_gets_none(script, model, phrase_tokenizer, tmp_path):
    for name in ("training.json", "README.md"):
        (tmp_path / "model" / name).unlink()
    run(script, tmp_path, generated(model, phrase_tokenizer, 4.0))
    assert decoding(tmp_path)["length_penalty"] == 4.0
    assert not {"training.json", "README.md"} & {file.name for file in (tmp_path / "model").iterdir()}


def test_a_greedy_model_stays_as_it_is(script, model, tmp_path, capsys):
    model.generation_config.update(num_beams=1, length_penalty=None)
    model.generation_config.save_pretrained(tmp_path / "model")
    before = decoding(tmp_path)
    run(script, tmp_path, SOURCES)
    assert "greedy search" in capsys.readouterr().err
    assert decoding(tmp_path) == before


def test_a_model_that_names_no_languages_needs_them_as_flags(script, save_model, datasets_cache, tmp_path, capsys):
    model, folder = save_model()
    model.generation_config.update(num_beams=3)
    model.generation_config.save_pretrained(folder)
    before = decoding(tmp_path)
    with pytest.raises(SystemExit, match="languages are unknown: pass --source_lang and --target_lang"):
        run(script, tmp_path, SOURCES)
    assert decoding(tmp_path) == before
    run(script, tmp_path, SOURCES, "--source_lang", "en", "--target_lang", "de")
    assert f"alpha {decoding(tmp_path)['length_penalty']}" in capsys.readouterr().out


def test_mistakes_are_one_line_each(script, model, tmp_path):
    before = decoding(tmp_path)
    for flags, message in (
        (["--bleu_tokenize", "mine"], "Unknown tokenisation 'mine'"),
        (["--target_lang", "fr"], "not into 'fr'"),
        (["--validation_file", "no-such-text"], "no-such-text"),
    ):
        with pytest.raises(SystemExit, match=re.escape(message)) as error:
            run(script, tmp_path, SOURCES, *flags)
        assert str(error.value).startswith("choose_length_penalty.py: ")
        assert "\n" not in str(error.value)
    with pytest.raises(SystemExit, match="no-such-model is not a folder"):
        script.main(["no-such-model", "--validation_file", "val"])
    assert decoding(tmp_path) == before
