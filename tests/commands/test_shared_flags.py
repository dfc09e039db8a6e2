import json
import sys

import pytest
from small import write_moses

from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.commands.shared_flags import BatchFlags, DecodingFlags
from hf_vanilla_transformer.inference.hardware import MAX_TOKENS


@pytest.mark.parametrize("tokenization", ["ja-mecab", "char"])
def test_a_missing_bleu_tokenizer_is_reported_before_translating(saved, capsys, monkeypatch, tokenization):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    for verb in (["evaluate", saved.path], ["compare", saved.path, saved.path]):
        status = main([*verb, "--test_file", saved.test_file, "--bleu_tokenize", tokenization])
        err = capsys.readouterr().err
        assert status == (1 if tokenization == "ja-mecab" else 0)
        assert ("Translating" in err) is (tokenization == "char")


def test_the_papers_bleu_is_a_score_of_evaluate_and_compare(saved, capsys):
    # BLEU of shorter sentences, which have no four-grams, is 0
    references = ["ein U-Bahn-Fahrer rennt schnell nach Hause", "zwei Männer sitzen dort"]
    write_moses(saved.folder / "long", en=["a dog runs", "two men sit"], de=references)
    translations = saved.folder / "out.txt"
    translations.write_text("".join(f"{line}\n" for line in references), encoding="utf-8")
    words = ["--test_file", str(saved.folder / "long"), "--paper_bleu"]
    assert main(["evaluate", saved.path, *words]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert main(["compare", saved.path, str(translations), *words]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]["paper_bleu"]
    assert round(scores["a"]["score"], 2) == evaluated["paper_bleu"]
    assert scores["b"]["score"] == pytest.approx(100)
    files = [str(translations), str(translations), "--source_lang", "en", "--target_lang", "de"]
    assert main(["compare", *files, *words, "--bleu_tokenize", "none"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]["paper_bleu"]
    assert scores["a"]["score"] == pytest.approx(100)
    assert "tok:none-compounds" in scores["signature"]


def test_the_papers_bleu_is_refused_where_it_means_nothing(saved, capsys, monkeypatch):
    monkeypatch.setattr("hf_vanilla_transformer.inference.translator.Translator.translate", lambda *args: 1 / 0)
    saved.model.config.target_lang = "fr"
    saved.model.save_pretrained(saved.path)
    for verb in (["evaluate", saved.path], ["compare", saved.path, saved.path]):
        assert main([*verb, "--test_file", saved.test_file, "--paper_bleu"]) == 2
        assert "--paper_bleu is for German (de), not for 'fr': the paper's scores" in capsys.readouterr().err


def test_without_sacremoses_the_papers_bleu_names_the_extra_before_translating(saved, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    words = ["evaluate", saved.path, "--test_file", saved.test_file, "--paper_bleu"]
    assert main(words) == 1
    err = capsys.readouterr().err
    assert 'sacremoses is not installed; in a clone of this package: pip install ".[paper]"' in err
    assert "Translating" not in err
    assert main([*words, "--bleu_tokenize", "none"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max_tokens", "2.5"], "must be an integer, got '2.5'"),
        (["--max_tokens", "0"], "must be at least 1, got 0"),
        (["--length_penalty", "x"], "must be a number, got 'x'"),
        (["--length_penalty", "nan"], "must be a finite number, got nan"),
    ],
)
def test_wrong_numbers_are_reported_in_plain_words(words, message, capsys):
    with pytest.raises(SystemExit):
        main(["translate", "model", *words])
    assert message in capsys.readouterr().err


def test_the_flag_and_python_have_the_same_batches():
    assert BatchFlags().max_tokens == MAX_TOKENS
    assert DecodingFlags().max_tokens is None
