"""Fixtures for the tests of data: text on disk, generated phrases, and a cache for each test."""

import datasets
import pyarrow as pa
import pytest
from sample_text import LANGUAGES, PAIRS
from small import write_moses

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data.phrases import generate


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
    return train_tokenizer([text for pair in PAIRS for text in pair], 400)


@pytest.fixture(scope="session")
def phrases():
    """20,000 phrases of the built-in corpus."""
    return generate(20_000, seed=1)
