"""Real training processes, to be killed: each test here starts what a user would start."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hf_vanilla_transformer.data.cleaning import Cleaning
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.preparation import Preparation, prepare

ROOT = Path(__file__).parents[2]
SETTINGS = [
    *("--preset", "tiny", "--d_model", "16", "--num_encoder_layers", "1", "--num_decoder_layers", "1", "--d_ff", "32"),
    *("--num_heads", "2", "--vocab_size", "500", "--max_tokens", "256", "--dropout", "0.1", "--use_cpu"),
    *("--max_steps", "60", "--save_steps", "7", "--save_total_limit", "3", "--logging_steps", "10"),
    *("--warmup_steps", "20", "--disable_tqdm", "true"),
]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.slow)


def descendants(pid: int) -> list[int]:
    """All processes that a process started, and they in turn; torchrun's are in sessions of their own."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [each for child in map(int, children) for each in (child, *descendants(child))]


def kill(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Run:
    """A training run in `folder`, on text that all runs share; `extra` flags win."""

    def __init__(self, text: Path, folder: Path, *extra: str, processes: int = 1):
        self.folder, self.process = folder, None
        start = ["-m", "hf_vanilla_transformer", "train"]
        if processes > 1:
            start = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes), "scripts/train.py"]
        files = ["--train_file", str(text), "--output_dir", str(folder)]
        self.command = [sys.executable, *start, *SETTINGS, *files, *extra]

    def start(self) -> subprocess.Popen:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            self.command,
            **{"cwd": ROOT, "env": environment, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
        )
        return self.process

    def wait_for(self, path: str) -> None:
        """Until the run has written `path` into its folder."""
        while not (self.folder / path).exists():
            if self.process.poll() is not None:
                raise AssertionError(f"ended before {path}:\n{self.process.stdout.read()[-3000:]}")
            time.sleep(0.01)

    def end(self, number: int | None = None) -> str:
        """Sends a signal to all its processes, if a number is given, and waits; gives what it printed."""
        if number is not None:
            kill([self.process.pid, *descendants(self.process.pid)], number)
        return self.process.communicate(timeout=200)[0]

    def kill_after(self, path: str) -> None:
        self.start()
        self.wait_for(path)
        time.sleep(0.15)  # some updates later
        self.end(signal.SIGKILL)

    def finish(self, status: int = 0) -> str:
        """From start to end; gives what it printed."""
        self.start()
        output = self.end()
        assert self.process.returncode == status, output[-3000:]
        return output

    def weights(self) -> dict:
        return load_file(self.folder / "model.safetensors")


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for language in ("en", "de"):
        lines = [getattr(phrase, language) for phrase in splits()["train"][:400]]
        (folder / f"train.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder / "train"


@pytest.fixture(scope="session")
def prepared(text, tmp_path_factory) -> Path:
    """The text as a folder of shards."""
    folder = tmp_path_factory.mktemp("prepared") / "shards"
    preparation = Preparation(("en", "de"), vocab_size=500, cleaning=Cleaning(256, 4.0), shard_pairs=100)
    prepare([str(text)], preparation, str(folder), processes=1)
    return folder


@pytest.fixture
def run(text, tmp_path):
    """A function that makes a `Run` in a folder of its own; whatever still runs at the end is killed."""
    runs = []

    def make(name: str = "run", *extra: str, processes: int = 1, folder: Path | None = None) -> Run:
        runs.append(Run(text, folder or tmp_path / name, *extra, processes=processes))
        return runs[-1]

    yield make
    for each in runs:
        if each.process is not None and each.process.poll() is None:
            kill([each.process.pid, *descendants(each.process.pid)], signal.SIGKILL)
            each.process.communicate()


@pytest.fixture(scope="session")
def undisturbed(text, tmp_path_factory):
    """A function that gives the weights of a run that nothing happened to; each kind is trained once."""
    done = {}

    def weights(*extra: str, processes: int = 1) -> dict:
        key = (*extra, processes)
        if key not in done:
            reference = Run(text, tmp_path_factory.mktemp("undisturbed") / "run", *extra, processes=processes)
            reference.finish()
            done[key] = reference.weights()
            shutil.rmtree(reference.folder)
        return done[key]

    return weights
