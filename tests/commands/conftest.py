"""Saved models, test texts and processes for the tests of the verbs."""

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from forked_python import forked_python
from small import write_moses
from transformers import PreTrainedTokenizerBase

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration, train_tokenizer


class TwoModels(NamedTuple):
    """Models with one tokenizer in `folder / "one"` and `folder / "two"`, and a test text `folder / "test"`."""

    folder: Path
    one: VanillaTransformerForConditionalGeneration
    two: VanillaTransformerForConditionalGeneration
    tokenizer: PreTrainedTokenizerBase
    sources: list[str]
    references: list[str]

    @property
    def paths(self) -> tuple[str, str]:
        return str(self.folder / "one"), str(self.folder / "two")

    @property
    def test_file(self) -> str:
        return str(self.folder / "test")


@pytest.fixture
def two_models(small_model, tmp_path, monkeypatch) -> TwoModels:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    sources, references = ["a dog runs", "two men", "the dog sleeps here"], ["ein hund rennt", "zwei männer", "hund"]
    tokenizer = train_tokenizer((sources + references) * 3, 290)
    models = {}
    for name, d_model in (("one", 32), ("two", 64)):
        models[name] = small_model(
            vocab_size=len(tokenizer), d_model=d_model, source_lang="en", target_lang="de", lm_head_bias=True
        )
        models[name].lm_head.bias.data[:260] = -20.0
        models[name].lm_head.bias.data[2] = 3.0
        models[name].save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    write_moses(tmp_path / "test", en=sources, de=references)
    return TwoModels(tmp_path, **models, tokenizer=tokenizer, sources=sources, references=references)


@pytest.fixture
def start_process():
    """A function that starts a verb in a separate process, with stderr as a pipe."""

    def start(*words, python: str | None = None, **options) -> subprocess.Popen[str]:
        command = [python or forked_python(), "-m", "hf_vanilla_transformer", *map(str, words)]
        return subprocess.Popen(command, text=True, stderr=subprocess.PIPE, **options)

    return start
