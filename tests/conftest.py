"""Shared by all tests: no network, fixed seeds, small models."""

import dataclasses
import logging
import os
from pathlib import Path
from typing import NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import hypothesis
import pyarrow as pa
import pytest
import torch
from corpora import CORPORA, find_corpus
from export_models import PHRASES
from filelock import FileLock
from sample_text import LANGUAGES, PAIRS
from small import write_moses
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from unequal_pairs import UNEQUAL, pairs

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
    train_tokenizer,
)
from hf_vanilla_transformer.cli import main

# The same examples in every run, on machines of any speed; `--hypothesis-profile search` looks for others
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("tests")

SOURCES = ["a dog runs", "two men sit", "", "the dog sleeps\x0chere"]
REFERENCES = ["ein hund rennt", "zwei männer sitzen", "nichts", "der hund schläft"]


class SavedModel(NamedTuple):
    """A model in `folder / "model"`, and a test text as the Moses pair `folder / "test"`."""

    folder: Path
    model: VanillaTransformerForConditionalGeneration
    tokenizer: PreTrainedTokenizerBase
    sources: list[str]
    references: list[str]

    @property
    def path(self) -> str:
        return str(self.folder / "model")

    @property
    def test_file(self) -> str:
        return str(self.folder / "test")


def pytest_collection_modifyitems(items):
    """Mark the tests that need real text by the fixtures that they use, and those in real processes as slow."""
    for item in items:
        if "system" in item.path.parts:
            item.add_marker("slow")
        if not CORPORA.keys().isdisjoint(item.fixturenames):
            item.add_marker("real_text")


@pytest.fixture(scope="session")
def multi30k() -> Path:
    """The folder of Multi30k, tokenised and lower-cased."""
    return find_corpus("multi30k")


@pytest.fixture(scope="session")
def multi30k_raw() -> Path:
    """The folder of Multi30k as it was written."""
    return find_corpus("multi30k_raw")


@pytest.fixture(scope="session")
def wmt_sample() -> Path:
    """The folder of a sample of WMT, with a blank line and very long ones."""
    return find_corpus("wmt_sample")


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def same_verbosity():
    """Undo what a test, or a script that it runs, sets for the loggers that all tests of a process share."""
    loggers = [logging.getLogger(name) for name in (None, "transformers", "datasets", "accelerate")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session")
def small_model():
    """A function that builds a small random model in evaluation mode, with changes to its config as arguments."""

    def build(**changes) -> VanillaTransformerForConditionalGeneration:
        torch.manual_seed(0)
        fields = {
            "vocab_size": 50,
            "d_model": 32,
            "num_encoder_layers": 2,
            "num_decoder_layers": 3,
            "num_heads": 4,
            "d_ff": 64,
            "max_position_embeddings": 64,
        }
        return VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**{**fields, **changes})).eval()

    return build


@pytest.fixture
def trainer(small_model, tmp_path):
    """A function that builds a trainer for a small model, with changes to the training arguments or the trainer."""

    def build(model=None, train_dataset=None, **changes) -> VanillaTransformerTrainer:
        settings = {
            "output_dir": str(tmp_path),
            "use_cpu": True,
            "max_steps": 3,
            "max_tokens": 128,
            "warmup_steps": 4,
            "logging_steps": 1,
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        torch.manual_seed(0)
        known = {field.name for field in dataclasses.fields(VanillaTransformerTrainingArguments)}
        settings |= {name: value for name, value in changes.items() if name in known}
        parts = {
            "train_dataset": train_dataset or pairs(UNEQUAL),
            "eval_dataset": pairs([(5, 9), (7, 3), (12, 12), (4, 4)]),
            "processing_class": train_tokenizer([""], 260),
        }
        parts |= {name: value for name, value in changes.items() if name not in known}
        args = VanillaTransformerTrainingArguments(**settings)
        return VanillaTransformerTrainer(model or small_model(dropout=0.0), args, **parts)

    return build


@pytest.fixture(scope="session")
def trained_on_multi30k(multi30k, tmp_path_factory):
    """A model trained on Multi30k for half a minute, its tokenizer, its folder, and the validation text (en, de)."""
    # the processes of xdist share what the first of them has trained
    session = tmp_path_factory.getbasetemp()
    folder = (session.parent if "PYTEST_XDIST_WORKER" in os.environ else session) / "trained_on_multi30k"
    flags = ["--preset", "tiny", "--vocab_size", "2000", "--d_model", "64", "--d_ff", "128", "--dropout", "0"]
    flags += ["--num_encoder_layers", "2", "--num_decoder_layers", "2", "--max_tokens", "1024", "--max_steps", "900"]
    flags += ["--warmup_steps", "300", "--learning_rate", "1.0", "--train_file", str(multi30k / "train")]
    flags += ["--output_dir", str(folder), "--use_cpu", "--disable_tqdm", "true", "--save_strategy", "no"]
    with FileLock(f"{folder}.lock"):
        # does nothing if it is finished
        assert main(["train", *flags]) == 0
    model = VanillaTransformerForConditionalGeneration.from_pretrained(folder).eval()
    text = [(multi30k / f"val.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")]
    return model, AutoTokenizer.from_pretrained(folder), folder, *text


@pytest.fixture(scope="session")
def phrase_tokenizer():
    """A tokenizer trained on the sentences that the tests of exports translate."""
    return train_tokenizer(PHRASES, 350)


@pytest.fixture(scope="session")
def save_model_to(small_model, phrase_tokenizer):
    """A function that saves a random model with its tokenizer to a folder, and returns the model.

    The outputs of the model differ in length. Keyword arguments change its config.
    """

    def save(folder, **changes):
        fields = {"vocab_size": len(phrase_tokenizer), "lm_head_bias": True, "tie_word_embeddings": False}
        model = small_model(**{**fields, **changes})
        model.lm_head.weight.data.normal_()
        if model.lm_head.bias is not None:
            model.lm_head.bias.data[2] += 5.0
        model.save_pretrained(folder)
        phrase_tokenizer.save_pretrained(folder)
        return model

    return save


@pytest.fixture
def save_model(save_model_to, tmp_path):
    """`save_model_to` a folder of the test; the function returns the model and the folder."""

    def save(**changes):
        return save_model_to(tmp_path / "model", **changes), tmp_path / "model"

    return save


@pytest.fixture
def saved(small_model, tmp_path, datasets_cache) -> SavedModel:
    """A small model whose translations are text, saved with its tokenizer, and a test text."""
    tokenizer = train_tokenizer((SOURCES + REFERENCES) * 3, 300)
    model = small_model(vocab_size=len(tokenizer), lm_head_bias=True, source_lang="en", target_lang="de")
    model.lm_head.weight.data[:] *= 3
    model.lm_head.bias.data[:260] = -1e4
    model.lm_head.bias.data[2] = 5.0
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    write_moses(tmp_path / "test", en=SOURCES, de=REFERENCES)
    return SavedModel(tmp_path, model, tokenizer, SOURCES, REFERENCES)


@pytest.fixture
def datasets_cache(tmp_path, monkeypatch):
    """The folder in which `datasets` caches during this test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def sample_folder(tmp_path, datasets_cache):
    """A folder with the sample text as the Moses pair `all`, and in two parts, `first` and `second` (compressed)."""
    for i, language in enumerate(LANGUAGES):
        lines = [pair[i] for pair in PAIRS]
        write_moses(tmp_path / "all", **{language: lines})
        write_moses(tmp_path / "first", **{language: lines[:180]})
        with pa.output_stream(str(tmp_path / f"second.{language}.zst"), compression="zstd") as file:
            file.write("".join(f"{line}\n" for line in lines[180:]).encode())
    return tmp_path


@pytest.fixture(scope="module")
def sample_tokenizer():
    """A tokenizer trained on the sample text."""
    return train_tokenizer([text for pair in PAIRS for text in pair], 400)
