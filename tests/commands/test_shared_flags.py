import sys

import pytest

from hf_vanilla_transformer.cli import main


@pytest.mark.parametrize("tokenization", ["ja-mecab", "char"])
def test_a_missing_bleu_tokenizer_is_reported_before_translating(saved, capsys, monkeypatch, tokenization):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    for verb in (["evaluate", saved.path], ["compare", saved.path, saved.path]):
        status = main([*verb, "--test_file", saved.test_file, "--bleu_tokenize", tokenization])
        err = capsys.readouterr().err
        assert status == (1 if tokenization == "ja-mecab" else 0)
        assert ("Translating" in err) is (tokenization == "char")


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
