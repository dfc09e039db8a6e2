"""The small model of a release, trained for a few updates."""

import re
import zipfile

import pytest
from script_runs import import_script
from small import SIZES, as_flags

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.data.phrases import splits

SHORT = as_flags({**SIZES, "vocab_size": 300, "max_steps": 5, "save_steps": 1, "warmup_steps": 2, "max_tokens": 512})
SHORT += ["--eval_strategy", "no", "--use_cpu", "--disable_tqdm", "true"]


@pytest.mark.slow
def test_the_packed_model_translates_and_its_card_says_what_it_can_do(tmp_path, capsys):
    build_model = import_script("build_model.py")
    build_model.main([str(tmp_path / "out"), *SHORT])
    *_, archive = capsys.readouterr().out.splitlines()
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path / "elsewhere")
    folder = tmp_path / "elsewhere" / build_model.NAME
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "license: apache-2.0" in card
    assert "built-in phrases, 1000 sentences:" in card
    assert "What it can do" in card
    for source, translation in zip(
        build_model.EXAMPLES, Translator.load(str(folder)).translate(build_model.EXAMPLES), strict=True
    ):
        assert f"| {source} | {translation.text} |" in card


def test_the_last_example_of_the_card_is_the_only_one_with_words_that_the_model_has_not_seen():
    known = {word for phrase in splits()["train"] for word in re.findall(r"[a-z']+", phrase.en.lower())}
    assert 590 <= len(known) <= 620
    examples = import_script("build_model.py").EXAMPLES
    unknown = [set(re.findall(r"[a-z']+", example.lower())) - known for example in examples]
    assert [bool(words) for words in unknown] == [False] * (len(examples) - 1) + [True]
    # no example is a sentence that it has seen
    assert not {phrase.en for phrase in splits()["train"]} & set(examples)


def test_wrong_use_of_the_script_is_one_line():
    with pytest.raises(SystemExit, match=r"^usage: build_model\.py OUT"):
        import_script("build_model.py").main(["--max_steps", "3"])
