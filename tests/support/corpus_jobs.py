"""A translation and a preparation of a small corpus, whose processes tests disturb."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from small import write_moses
from training_runs import send_signal

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
)
from hf_vanilla_transformer.data.phrases import splits

LINES = 1_600
LINES_PER_TASK = 100
KILLS = 1
BIN = Path(sys.executable).parent


class Job(NamedTuple):
    """A verb with the arguments of a job of 16 tasks, and the files of its output."""

    arguments: list[str]
    files: str
    manifest: str

    def command(self, folder: Path, *runner: str) -> list[str]:
        return [str(BIN / "vanilla-transformer"), *self.arguments, "--output_dir", str(folder), *runner]

    def is_whole(self, folder: Path) -> bool:
        manifest = folder / self.manifest
        return manifest.is_file() and json.loads(manifest.read_text())["whole"]

    def output(self, folder: Path) -> dict[str, bytes]:
        assert self.is_whole(folder)
        assert not list(folder.rglob("*.unfinished"))
        return {file.name: file.read_bytes() for file in sorted(folder.glob(self.files))}


def tasks_done(folder: Path) -> int:
    """Return how many tasks have left a note or a list of duplicates so far."""
    names = [name for _, _, files in os.walk(folder) for name in files]  # which ignores folders that are removed now
    return sum(re.fullmatch(r"(.*-)?\d{5}\.(json|npy)", name) is not None for name in names)


def disturb(process: subprocess.Popen, find: Callable[[], list[int]], folder: Path, kills: int) -> int:
    """Kill a random one of the processes that `find` returns whenever another task is done; return the kills left."""
    done = tasks_done(folder)
    while process.poll() is None:
        if kills and tasks_done(folder) > done and (workers := find()):
            send_signal([random.choice(workers)], signal.SIGKILL)
            kills -= 1
            done = tasks_done(folder)
        time.sleep(0.05)
    return kills


def create_jobs(folder: Path) -> dict[str, Job]:
    """Write a text and a small random model to a folder, and return the jobs "translate" and "prepare" on them."""
    phrases = splits()["train"][:LINES]
    english = [phrase.en for phrase in phrases]
    german = [phrase.de for phrase in phrases]
    write_moses(folder / "text", en=english, de=german)

    tokenizer = train_tokenizer(english[:1000] + german[:1000], 600)
    sizes = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_encoder_layers": 1, "num_decoder_layers": 1}
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), source_lang="en", target_lang="de", lm_head_bias=True, **sizes
    )
    model = VanillaTransformerForConditionalGeneration(config)
    model.lm_head.bias.data[2] = 3.0  # ends most translations before their limit
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")

    translate = ["translate", str(folder / "model"), "--input_files", str(folder / "text.en"), "--num_beams", "1"]
    prepare = ["prepare", str(folder / "text"), "--source_lang", "en", "--target_lang", "de", "--vocab_size", "600"]
    return {
        "translate": Job([*translate, "--shard_lines", str(LINES_PER_TASK)], "part-*", "translation.json"),
        "prepare": Job([*prepare, "--shard_pairs", str(LINES_PER_TASK)], "*.arrow", "manifest.json"),
    }
