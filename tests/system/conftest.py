"""Fixtures that start training in real processes, as a user does."""

import shutil
from pathlib import Path

import pytest
import torch
from sample_text import prepare_text
from small import write_phrases
from training_runs import Run

from hf_vanilla_transformer.data.cleaning import Cleaning
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.source import TextFile


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """The prefix of a parallel text of 400 phrases."""
    folder = tmp_path_factory.mktemp("text")
    return write_phrases(folder / "train", splits()["train"][:400])


@pytest.fixture(scope="session")
def prepared(text, tmp_path_factory) -> Path:
    """The text as a folder of shards."""
    folder = tmp_path_factory.mktemp("prepared") / "shards"
    text_file = TextFile(("en", "de"), str(text))
    prepare_text(text_file, folder, vocab_size=500, cleaning=Cleaning(256, 4.0), shard_pairs=100)
    return folder


@pytest.fixture
def run(text, tmp_path):
    """A function that creates a `Run` with its own folder; processes left at the end of the test are killed."""
    runs = []

    def create(
        name: str = "run", *extra: str, processes: int = 1, torchrun: bool = False, folder: Path | None = None
    ) -> Run:
        runs.append(Run(text, folder or tmp_path / name, *extra, processes=processes, torchrun=torchrun))
        return runs[-1]

    yield create
    for each in runs:
        each.kill()


@pytest.fixture(scope="session")
def undisturbed(text, tmp_path_factory):
    """A function that returns the weights of an uninterrupted run; each configuration is trained only once."""
    finished = {}

    def weights(*extra: str, processes: int = 1) -> dict[str, torch.Tensor]:
        key = (*extra, processes)
        if key not in finished:
            reference = Run(text, tmp_path_factory.mktemp("undisturbed") / "run", *extra, processes=processes)
            reference.finish()
            finished[key] = reference.weights()
            shutil.rmtree(reference.folder)
        return finished[key]

    return weights
