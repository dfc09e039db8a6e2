import json

import pytest
import sacrebleu

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.phrases import splits


def test_compare_accepts_models_and_files_of_translations(two_models, capsys):
    file = two_models.folder / "out.txt"
    file.write_text("".join(f"{line}\n" for line in two_models.references), encoding="utf-8")
    words = ["compare", two_models.paths[0], str(file), "--test_file", two_models.test_file]
    assert main([*words, "--num_beams", "2", "--bleu_tokenize", "none"]) == 0
    result = json.loads(capsys.readouterr().out)
    translations = translate(two_models.one, two_models.tokenizer, two_models.sources, num_beams=2)
    chrf = sacrebleu.corpus_chrf(translations, [two_models.references]).score
    assert result["scores"]["chrf"]["a"]["score"] == round(chrf, 4)
    assert result["scores"]["ter"]["b"]["score"] == 0
    assert result["a"].endswith("one")
    assert result["b"].endswith("out.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ein hund\xff\n", "out.txt, line 1: not UTF-8"),
        (b"ein\rhund\nzwei\n", "out.txt has 2 translations for 3 lines"),
    ],
)
def test_unusable_files_are_reported_before_translating(content, message, two_models, capsys, monkeypatch):
    file = two_models.folder / "out.txt"
    file.write_bytes(content)
    monkeypatch.setattr("hf_vanilla_transformer.inference.translator.Translator.translate", None)
    assert main(["compare", two_models.paths[0], str(file), "--test_file", two_models.test_file]) == 1
    assert message in capsys.readouterr().err


def test_a_name_that_is_neither_a_file_nor_a_model_is_reported(two_models, capsys):
    missing = str(two_models.folder / "missing.txt")
    assert main(["compare", two_models.paths[0], missing, "--test_file", two_models.test_file]) == 1
    assert "missing.txt (not a local folder)" in capsys.readouterr().err


def test_two_files_are_compared_on_the_built_in_phrases(tmp_path, capsys):
    phrases = splits()["test"]
    for name in ("a", "b"):
        (tmp_path / name).write_text("".join(f"{phrase.de}\n" for phrase in phrases), encoding="utf-8")
    files = [str(tmp_path / name) for name in ("a", "b")]
    assert main(["compare", *files]) == 2
    assert "pass --source_lang and --target_lang" in capsys.readouterr().err
    assert main(["compare", *files, "--source_lang", "en", "--target_lang", "de"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"]["bleu"]["p"] == 1
