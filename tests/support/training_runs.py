"""Training runs in real processes, which tests interrupt and start again.

A run with one process, or with several ranks, is forked from a process that has imported torch and transformers: this
takes a tenth of a second instead of several. With torchrun, it is started as a user starts it.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
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
    *("--max_steps", "80", "--save_steps", "7", "--save_total_limit", "3", "--logging_steps", "10"),
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


# CUDA cannot be used in a process that is forked from one that has asked for it
FORKS = multiprocessing.get_context("spawn" if os.environ.get("TEST_DEVICE") == "cuda" else "forkserver")
FORKS.set_forkserver_preload(["hf_vanilla_transformer.training.run"])


def _train(flags: list[str], environment: dict[str, str], log: Path) -> None:
    """Run `vanilla-transformer train` in this new process, with its output in a file."""
    with log.open("ab") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    os.chdir(ROOT)
    os.environ.update(environment)
    multiprocessing.set_start_method(None, force=True)  # its own processes start as they do for users

    from hf_vanilla_transformer.cli import main

    sys.exit(main(["train", *flags]))


def _rank(number: int, processes: int, port: int) -> dict[str, str]:
    """Return what torchrun tells one of several processes."""
    ranks = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    return {name: str(value) for name, value in ranks.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


class Run:
    """A training run on `text` that writes to `folder`; `extra` flags override `SETTINGS`."""

    def __init__(self, text: Path, folder: Path, *extra: str, processes: int = 1, torchrun: bool = False):
        self.folder = folder
        self.processes = processes
        self.torchrun = torchrun
        self.flags = [*SETTINGS, "--train_file", str(text), "--output_dir", str(folder), *extra]
        self.log = folder.with_name(f"{folder.name}.log")
        self.started: list[multiprocessing.Process] | list[subprocess.Popen] = []

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        if self.torchrun:
            launch = ["-m", "torch.distributed.run", "--nproc_per_node", str(self.processes), "scripts/train.py"]
            with self.log.open("ab") as output:
                command = [sys.executable, *launch, *self.flags]
                streams = {"stdout": output, "stderr": output}
                self.started = [subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, **streams)]
            return

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        ranks = [_rank(i, self.processes, port) for i in range(self.processes)] if self.processes > 1 else [{}]
        self.started = [
            FORKS.Process(target=_train, args=(self.flags, {**environment, **rank}, self.log)) for rank in ranks
        ]
        for process in self.started:
            process.start()

    @property
    def pids(self) -> list[int]:
        """The processes that were started: one per rank, or torchrun."""
        return [process.pid for process in self.started]

    @property
    def statuses(self) -> list[int | None]:
        """The exit statuses of these processes, None while they run, and negative if a signal ended them."""
        return [each.poll() if isinstance(each, subprocess.Popen) else each.exitcode for each in self.started]

    @property
    def output(self) -> str:
        """What the run has printed since it was last started."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _newest(self) -> int:
        """Return the number of updates after which the newest checkpoint was written, or 0 if there is none."""
        return max((int(path.name[11:]) for path in self.folder.glob("checkpoint-[0-9]*")), default=0)

    def wait_for(self, checkpoint: str) -> None:
        """Wait until the run has written a checkpoint, or later ones, for which it may have deleted it already."""
        while self._newest() < int(checkpoint.removeprefix("checkpoint-")):
            if self.statuses != [None] * len(self.started):
                raise AssertionError(f"The run ended before {checkpoint} existed:\n{self.output[-3000:]}")
            time.sleep(0.01)

    def wait_for_next_checkpoint(self, save_steps: int) -> None:
        """Wait for the checkpoint that follows the newest existing one."""
        self.wait_for(f"checkpoint-{self._newest() + save_steps}")

    def end(self, number: int | None = None) -> str:
        """Wait for the end of the run, after sending a signal (if given) to all its processes; return its output."""
        if number is not None:
            send_signal([pid for parent in self.pids for pid in (parent, *descendants(parent))], number)
        for process in self.started:
            if isinstance(process, subprocess.Popen):
                process.wait(timeout=600)
            else:
                process.join(timeout=600)
        assert None not in self.statuses, "The run does not end."
        return self.output

    def kill(self) -> None:
        """Kill what still runs."""
        if None in self.statuses:
            self.end(signal.SIGKILL)

    def kill_after(self, checkpoint: str) -> None:
        """Start the run and kill it some updates after it has written a checkpoint."""
        self.start()
        self.wait_for(checkpoint)
        time.sleep(0.15)
        self.end(signal.SIGKILL)

    def finish(self, status: int = 0) -> str:
        """Start the run, wait for its end, check its exit status and return its output."""
        self.start()
        output = self.end()
        assert set(self.statuses) == {status}, output[-3000:]
        return output

    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / "model.safetensors")
