import io
import json

import pytest
import sacrebleu

from hf_vanilla_transformer import train_tokenizer, translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.inference.ensemble import Ensemble


@pytest.mark.parametrize("verb", ["evaluate", "translate"])
def test_a_tokenizer_that_does_not_fit_its_model_is_reported(verb, saved, capsys, monkeypatch):
    words = [line + word for line in saved.sources for word in saved.references]
    train_tokenizer(words * 9, 330).save_pretrained(saved.path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog\n")))
    assert main([verb, saved.path]) == 1
    assert "The tokenizer does not fit the model: it has 330 tokens" in capsys.readouterr().err


def test_several_models_translate_as_an_ensemble(two_models, capsys):
    words = ["evaluate", *two_models.paths, "--test_file", two_models.test_file]
    assert main(words) == 0
    expected = translate(Ensemble((two_models.one, two_models.two)), two_models.tokenizer, two_models.sources)
    score = sacrebleu.corpus_chrf(expected, [two_models.references]).score
    assert json.loads(capsys.readouterr().out)["chrf"] == round(score, 2)
    assert main([*words, "--backend", "ctranslate2"]) == 1
    assert "A number format and ensembles need the backend torch" in capsys.readouterr().err


def test_models_with_different_vocabularies_cannot_form_an_ensemble(two_models, capsys):
    other = train_tokenizer(["ganz andere wörter und noch mehr davon"] * 9, len(two_models.tokenizer))
    other.save_pretrained(two_models.folder / "two")
    two_models.two.resize_token_embeddings(len(other))
    two_models.two.save_pretrained(two_models.folder / "two")
    assert main(["translate", *two_models.paths]) == 1
    assert "have different vocabularies" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["compare", "evaluate"])
def test_models_with_different_languages_are_refused(verb, two_models, capsys):
    two_models.two.config.source_lang, two_models.two.config.target_lang = "de", "en"
    two_models.two.save_pretrained(two_models.folder / "two")
    assert main([verb, *two_models.paths, "--test_file", two_models.test_file]) == 1
    err = capsys.readouterr().err
    assert "one: en-de; " in err
    assert "two: de-en" in err
