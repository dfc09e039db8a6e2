"""Train, average and export while the commands are stopped at random and given again, and report any loss of work.

python scripts/benchmarks/soak.py --minutes 20

Each round trains a small model twice with the same command: once undisturbed, and once stopped by SIGKILL or SIGTERM
and restarted each time, at random moments or while it saves. The undisturbed model's checkpoints are then averaged,
and the average exported, in the same two ways. Exits 0 only if every start of a training resumed from the last
checkpoint, the folders of both ways have the same content, bit by bit, and memory grew by less than 10 MB (median over
the rounds).
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from measuring import describe_machine, resident_memory

from hf_vanilla_transformer.data.phrases import splits

SETTINGS = [
    *("--preset", "tiny", "--d_model", "32", "--num_encoder_layers", "1", "--num_decoder_layers", "1", "--d_ff", "64"),
    *("--num_heads", "2", "--vocab_size", "800", "--max_tokens", "512", "--dropout", "0.1", "--use_cpu"),
    *("--max_steps", "600", "--save_steps", "40", "--save_total_limit", "2", "--warmup_steps", "100"),
    *("--disable_tqdm", "true", "--logging_steps", "10"),
]


def newest_checkpoint(folder: Path) -> int:
    """Return the number of updates in the newest checkpoint, 0 if there is none."""
    return max((int(path.name[11:]) for path in folder.glob("checkpoint-[0-9]*")), default=0)


class Command:
    """A command that can be stopped and started again until it finishes.

    `memory` collects its resident megabytes, four times per second from the first checkpoint on.

    Args:
        arguments: those of `vanilla-transformer`.
        folder: what it writes.
    """

    def __init__(self, arguments: list[str], folder: Path):
        self.folder = folder
        self.memory: list[float] = []
        self.seconds = 0.0  # of its last run
        self.command = [sys.executable, "-m", "hf_vanilla_transformer", *arguments]

    def unfinished(self) -> set[tuple[str, int]]:
        """Return the names of unfinished files and folders in the output folder and beside it, and their times."""
        folders = [folder for folder in (self.folder.parent, self.folder) if folder.is_dir()]
        found = [
            entry for folder in folders for entry in os.scandir(folder) if re.search("unfinished|filling", entry.name)
        ]
        times = set()
        for entry in found:
            # it may have been renamed since
            with contextlib.suppress(FileNotFoundError):
                times.add((entry.path, entry.stat().st_mtime_ns))
        return times

    def run(self, stop_signal: signal.Signals, seconds: float, saving: bool = False) -> tuple[bool, str]:
        """Run the command, and send it a signal if it has not finished by then.

        Args:
            seconds: after how many of them the signal is sent.
            saving: whether these are counted from the moment when the command begins to save.

        Returns:
            Whether it finished first, and its output.
        """
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        left = self.unfinished()
        start = time.monotonic()
        with (
            tempfile.TemporaryFile("w+") as log,
            subprocess.Popen(self.command, env=environment, stdout=log, stderr=subprocess.STDOUT) as process,
        ):
            # what a killed command has left is not a sign that this one saves
            while saving and process.poll() is None and self.unfinished() <= left:
                time.sleep(0.001)
            end = time.monotonic() + seconds
            while process.poll() is None and time.monotonic() < end:
                if newest_checkpoint(self.folder):
                    self.memory.append(resident_memory(process.pid))
                time.sleep(min(0.25, seconds))
            finished = process.poll() is not None
            if not finished:
                process.send_signal(stop_signal)
            process.wait()
            self.seconds = time.monotonic() - start
            log.seek(0)
            output = log.read()
        status = process.returncode
        if finished and status:
            sys.exit(
                f"soak.py: a command that was not interrupted failed with exit status {status}:\n{output[-3000:]}"
            )
        if not finished and stop_signal == signal.SIGTERM and status not in (0, -stop_signal):
            sys.exit(f"soak.py: a command stopped by SIGTERM ended with exit status {status}:\n{output[-3000:]}")
        return finished, output


class Soak:
    """What the rounds have found so far."""

    def __init__(self, root: Path, rng: random.Random):
        self.root = root
        self.rng = rng
        self.counts = Counter[str]()

    def disturb(self, command: Command, seconds: float, appears_whole: bool = False) -> None:
        """Run a command until it finishes, and stop it each time after at most this long, or soon after it saves.

        Args:
            appears_whole: whether the folder appears with all that belongs in it, so that a command which is stopped
                after that has done its work.
        """
        saved = 0
        finished = False
        while not finished:
            saving = self.rng.random() < 0.5
            stop_signal = self.rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
            delay = self.rng.uniform(0, 0.05) if saving else self.rng.uniform(0.2, 1) * seconds
            finished, output = command.run(stop_signal, delay, saving)
            resumed = re.search(r"Resuming from .*checkpoint-(\d+)", output)
            # it trained, but from scratch
            self.counts["starts that lost all"] += saved > 0 and resumed is None and "target tokens/s" in output
            self.counts["starts from before the last checkpoint"] += resumed is not None and int(resumed[1]) < saved
            if not finished:
                name = "kills" if stop_signal == signal.SIGKILL else "terminations"
                self.counts[f"{name} while saving" if saving else name] += 1
                finished = appears_whole and command.folder.exists()
            saved = newest_checkpoint(command.folder)

    def compare(self, folders: list[Path], pattern: str) -> None:
        """Compare two folders by the content of the files that match a pattern."""
        contents = [
            {file.name: file.read_bytes() for file in folder.glob(pattern) if file.is_file()} for folder in folders
        ]
        self.counts["mismatches"] += contents[0] != contents[1] or not contents[0]

    def round(self, number: int) -> float:
        """Train, average and export in both ways, and return the growth of memory in the undisturbed training."""
        flags = ["--train_file", str(self.root / "train"), "--seed", str(self.rng.randrange(10**6))]
        folders = [self.root / f"{number}-{way}" for way in ("undisturbed", "disturbed")]
        training, disturbed = (
            Command(["train", *SETTINGS, *flags, "--output_dir", str(folder)], folder) for folder in folders
        )
        training.run(signal.SIGKILL, 3600)
        self.disturb(disturbed, training.seconds / 2)
        self.compare(folders, "*.safetensors")
        for name in ("tokenizer.json", "config.json", "generation_config.json"):
            self.compare(folders, name)

        averages = [folder / "average" for folder in folders]
        exports = [folder / "export" for folder in folders]
        for arguments, outputs in (
            (["average", str(folders[0]), "--last", "2", "--output_dir"], averages),
            (["export", "--format", "ctranslate2", str(averages[0])], exports),
        ):
            undisturbed = Command([*arguments, str(outputs[0])], outputs[0])
            undisturbed.run(signal.SIGKILL, 3600)
            # it starts from the beginning each time, so it must be able to finish
            seconds = 2 * undisturbed.seconds
            self.disturb(Command([*arguments, str(outputs[1])], outputs[1]), seconds, appears_whole=True)
            self.compare(outputs, "*")
        return memory_growth(training.memory)


def memory_growth(memory: list[float]) -> float:
    """Return the growth in median memory from the second quarter of a run to the last, in megabytes."""
    quarter = len(memory) // 4
    return statistics.median(memory[-quarter:]) - statistics.median(memory[quarter : 2 * quarter]) if quarter else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="start no new round after this (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments (default: 0)")
    args = parser.parse_args()
    deadline = time.monotonic() + 60 * args.minutes
    growths: list[float] = []
    with tempfile.TemporaryDirectory() as root:
        for language in ("en", "de"):
            lines = [getattr(phrase, language) for phrase in splits()["train"][:3000]]
            Path(root, f"train.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        soak = Soak(Path(root), random.Random(args.seed))
        while not growths or time.monotonic() < deadline:
            growths.append(soak.round(len(growths) + 1))
            print(f"round {len(growths)}: {dict(soak.counts)}", file=sys.stderr)
    counts = soak.counts
    result = {
        "machine": describe_machine(),
        "rounds": len(growths),
        **{name: counts[name] for name in sorted(counts)},
        "memory growth in MB, median and largest": [round(statistics.median(growths), 1), round(max(growths), 1)],
    }
    print(json.dumps(result, indent=2))
    lost = ("starts that lost all", "starts from before the last checkpoint", "mismatches")
    sys.exit(0 if not any(counts[name] for name in lost) and statistics.median(growths) < 10 else 1)


if __name__ == "__main__":
    main()
