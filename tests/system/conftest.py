"""Fixtures that start training and a server in real processes, as a user does."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from corpus_jobs import LINES, LINES_PER_TASK, Job, create_jobs
from export_models import PHRASES
from server_process import serving
from small import write_phrases
from training_runs import Run

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
)
from hf_vanilla_transformer.corpus.pieces import Preparation
from hf_vanilla_transformer.corpus.preparation import prepare
from hf_vanilla_transformer.corpus.runner import Runner
from hf_vanilla_transformer.data.cleaning import Cleaning
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.source import TextFile


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """The prefix of a parallel text of 400 phrases."""
    folder = tmp_path_factory.mktemp("text")
    return write_phrases(folder / "train", splits()["train"][:400])


@pytest.fixture(scope="session")
def prepared(text, tmp_path_factory) -> Path:
    """The text as a folder of shards."""
    folder = tmp_path_factory.mktemp("prepared") / "shards"
    preparation = Preparation(("en", "de"), vocab_size=500, cleaning=Cleaning(256, 4.0), shard_pairs=100)
    prepare(TextFile(("en", "de"), str(text)), preparation, str(folder), runner=Runner(1))
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


@pytest.fixture(scope="session")
def jobs(tmp_path_factory) -> dict[str, Job]:
    """The jobs "translate" and "prepare" on 3,200 lines, with a small random model."""
    return create_jobs(tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="session")
def expected(jobs, tmp_path_factory) -> Callable[[str], dict[str, bytes]]:
    """A function that returns the output of a job of one undisturbed process with one thread."""
    finished: dict[str, dict[str, bytes]] = {}

    def run(name: str) -> dict[str, bytes]:
        if name not in finished:
            folder = tmp_path_factory.mktemp("undisturbed") / name
            # not forked, so that its hashes have another seed than those of the jobs that are compared with it
            subprocess.run(jobs[name].command(folder, "--workers", "1"), check=True, capture_output=True)
            finished[name] = jobs[name].output(folder)
            assert len(finished[name]) == LINES // LINES_PER_TASK
        return finished[name]

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A random model from English to German whose translations end soon, its tokenizer, and its folder."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(PHRASES, 350)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), d_model=32, num_heads=4, d_ff=64, num_encoder_layers=2, num_decoder_layers=2,
        source_lang="en", target_lang="de", lm_head_bias=True, tie_word_embeddings=False,
    )  # fmt: skip
    model = VanillaTransformerForConditionalGeneration(config).eval()
    model.lm_head.weight.data.normal_()
    model.lm_head.bias.data[2] += 5.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer, folder


@pytest.fixture(scope="session")
def server(model, tmp_path_factory):
    with serving(model[2], tmp_path_factory.mktemp("server") / "log") as process:
        yield process
