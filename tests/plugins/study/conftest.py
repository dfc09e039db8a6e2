"""Flags of small models on a small text, for the tests of `tune`."""

import os
import random
import signal
from itertools import count

import pytest
import torch
from small import model_flags, write_moses

from hf_vanilla_transformer.cli import main

WORDS = {"dog": "hund", "cat": "katze", "man": "mann", "sees": "sieht", "has": "hat", "the": "das", "red": "rot"}
SMALL = [*model_flags(), "--vocab_size", "290", "--max_tokens", "256", "--warmup_steps", "8", "--no_eval_bleu"]


@pytest.fixture(scope="session")
def word_pairs():
    """The English words of the text, each with its German translation."""
    return WORDS


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """Flags of a small model on a small text."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    generator = random.Random(0)
    for name, lines in (("train", 120), ("val", 20)):
        texts = [[generator.choice(list(WORDS)) for _ in range(generator.randint(2, 9))] for _ in range(lines)]
        german = [[WORDS[word] for word in text] for text in texts]
        write_moses(tmp_path / name, en=map(" ".join, texts), de=map(" ".join, german))
    text = ["--train_file", str(tmp_path / "train"), "--validation_file", str(tmp_path / "val")]
    return [*SMALL, *text, "--disable_tqdm", "true"]


@pytest.fixture
def without_validation(flags):
    """The same flags without a validation text."""
    i = flags.index("--validation_file")
    return flags[:i] + flags[i + 2 :]


@pytest.fixture
def tune():
    """A function that runs `tune` with flags in a folder, and returns the exit status."""

    def tune(flags, folder, *more) -> int:
        return main(["tune", *flags, *more, "--output_dir", str(folder)])

    return tune


@pytest.fixture
def stop_at():
    """A function that makes an update, counted over all training runs, send SIGTERM to this process."""

    def stop_at(update, monkeypatch) -> None:
        updates = count(1)
        step = torch.optim.AdamW.step

        def step_and_stop(self, *args, **kwargs):
            if next(updates) == update:
                os.kill(os.getpid(), signal.SIGTERM)
            return step(self)

        monkeypatch.setattr("torch.optim.AdamW.step", step_and_stop)

    return stop_at
