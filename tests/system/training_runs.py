"""Training runs in real processes, which tests interrupt and start again."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from corpora import ROOT
from safetensors.torch import load_file
from small import model_flags

SETTINGS = [
    *model_flags(),
    *("--vocab_size", "500", "--max_tokens", "256", "--dropout", "0.1"),
    *("--max_steps", "60", "--save_steps", "7", "--save_total_limit", "3", "--logging_steps", "10"),
    *("--warmup_steps", "20", "--disable_tqdm", "true"),
]


def children(pid: int) -> list[int]:
    """Return the processes that a process started; none if it has ended."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process, including those that torchrun starts in other sessions."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def send_signal(pids: list[int], number: int) -> None:
    """Send a signal to those processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Run:
    """A training run on `text` that writes to `folder`; `extra` flags override `SETTINGS`."""

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
        """Wait until the run has written `path` in its folder."""
        while not (self.folder / path).exists():
            if self.process.poll() is not None:
                raise AssertionError(f"The run ended before {path} existed:\n{self.process.stdout.read()[-3000:]}")
            time.sleep(0.01)

    def wait_for_next_checkpoint(self, save_steps: int) -> None:
        """Wait for the checkpoint that follows the newest existing one."""
        newest = max(int(path.name[11:]) for path in self.folder.glob("checkpoint-[0-9]*"))
        self.wait_for(f"checkpoint-{newest + save_steps}")

    def end(self, number: int | None = None) -> str:
        """Wait for the end of the run, after sending a signal (if given) to all its processes; return its output."""
        if number is not None:
            send_signal([self.process.pid, *descendants(self.process.pid)], number)
        return self.process.communicate(timeout=200)[0]

    def kill_after(self, path: str) -> None:
        """Start the run and kill it some updates after it has written `path`."""
        self.start()
        self.wait_for(path)
        time.sleep(0.15)
        self.end(signal.SIGKILL)

    def finish(self, status: int = 0) -> str:
        """Start the run, wait for its end, check its exit status and return its output."""
        self.start()
        output = self.end()
        assert self.process.returncode == status, output[-3000:]
        return output

    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / "model.safetensors")
