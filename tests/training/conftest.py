"""Fixtures for tests that run `vanilla-transformer train` in this process, on a small model and a small text."""

from collections.abc import Callable
from pathlib import Path

import pytest
from small import SIZES, as_flags, write_moses

from hf_vanilla_transformer import VanillaTransformerTrainer
from hf_vanilla_transformer.training.recipes import parse_arguments
from hf_vanilla_transformer.training.run import run_train


@pytest.fixture
def moses(tmp_path, monkeypatch) -> Path:
    """The prefix of an English-French Moses pair with blank, overlong and duplicate lines."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    english = ["a dog runs .", "", "two men sit .", "the cat sees a dog .", "very " * 400] * 4
    french = ["un chien court .", "vide", "deux hommes .", "le chat voit un chien .", "long"] * 4
    return write_moses(tmp_path / "text", en=english, fr=french)


@pytest.fixture
def text_flags(moses) -> list[str]:
    """Flags that train and validate on `moses`."""
    return ["--train_file", str(moses), "--validation_file", str(moses), "--target_lang", "fr", "--vocab_size", "280"]


@pytest.fixture
def small_model_flags() -> list[str]:
    """Flags for the sizes of a small model."""
    return as_flags({**SIZES, "d_ff": 16})


@pytest.fixture
def run_flags(small_model_flags) -> Callable[..., list[str]]:
    """A function that returns the flags of a small and short run, which writes to `output`."""

    def flags(output: Path, *more: str) -> list[str]:
        settings = ["--preset", "tiny", *small_model_flags, "--max_steps", "2", "--max_tokens", "64"]
        settings += ["--logging_steps", "1", "--use_cpu", "--disable_tqdm", "true", "--output_dir", str(output)]
        return [*settings, *more]

    return flags


@pytest.fixture
def train() -> Callable[..., VanillaTransformerTrainer | None]:
    """A function that runs `vanilla-transformer train` with the given words of its command line."""

    def run(*words: str) -> VanillaTransformerTrainer | None:
        (recipe,) = parse_arguments(words)
        return run_train(recipe)

    return run
