"""Corpus jobs in real processes, as a user starts them."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus_jobs import LINES, LINES_PER_TASK, Job, create_jobs
from small import write_phrases

from hf_vanilla_transformer.data.phrases import splits


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """The prefix of a parallel text of 400 phrases."""
    return write_phrases(tmp_path_factory.mktemp("text") / "train", splits()["train"][:400])


@pytest.fixture(scope="session")
def jobs(tmp_path_factory) -> dict[str, Job]:
    """The jobs "translate" and "prepare" on 1,600 lines, with a small random model."""
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
