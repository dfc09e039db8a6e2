"""Trains on generated text for a while, kills and resumes the runs at random, and says what that cost.

python scripts/benchmarks/soak.py --minutes 20

Each round trains a small model twice with the same command: once undisturbed, once killed (SIGKILL) or told to end
(SIGTERM) at random moments and started again. Exits 0 only if no update before the last checkpoint was lost, both
models have the same bits in every round, and memory did not grow.
"""

import argparse
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
from pathlib import Path

import torch
from measuring import resident
from safetensors.torch import load_file

from hf_vanilla_transformer.data.phrases import splits

SETTINGS = [
    *("--preset", "tiny", "--d_model", "32", "--num_encoder_layers", "1", "--num_decoder_layers", "1", "--d_ff", "64"),
    *("--num_heads", "2", "--vocab_size", "800", "--max_tokens", "512", "--dropout", "0.1", "--use_cpu"),
    *("--max_steps", "600", "--save_steps", "40", "--save_total_limit", "2", "--warmup_steps", "100"),
    *("--disable_tqdm", "true", "--logging_steps", "10"),
]


def checkpoint(folder: Path) -> int:
    """The number of updates in the newest checkpoint."""
    return max((int(path.name[11:]) for path in folder.glob("checkpoint-[0-9]*")), default=0)


class Training:
    """One command, to be started again and again until it ends by itself."""

    def __init__(self, text: Path, folder: Path, seed: int):
        self.folder, self.memory = folder, list[float]()
        flags = ["--train_file", str(text), "--output_dir", str(folder), "--seed", str(seed)]
        self.command = [sys.executable, "-m", "hf_vanilla_transformer", "train", *SETTINGS, *flags]

    def start(self, seconds: float, number: int) -> tuple[bool, str]:
        """Runs it for `seconds`, then sends the signal; whether it ended by itself, and what it printed."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (
            tempfile.TemporaryFile("w+") as log,
            subprocess.Popen(self.command, env=environment, stdout=log, stderr=subprocess.STDOUT) as process,
        ):
            end = time.monotonic() + seconds
            while process.poll() is None and time.monotonic() < end:
                if checkpoint(self.folder):
                    self.memory.append(resident(process.pid))
                time.sleep(0.25)
            finished = process.poll() is not None
            if not finished:
                process.send_signal(number)
            process.wait()
            log.seek(0)
            output = log.read()
        if finished and process.returncode:
            sys.exit(f"A run failed by itself:\n{output[-3000:]}")
        if not finished and number == signal.SIGTERM and process.returncode not in (0, -number):
            sys.exit(f"SIGTERM ended a run with {process.returncode}:\n{output[-3000:]}")
        return finished, output


def growth(memory: list[float]) -> float:
    """Megabytes from the second quarter of a run to its last."""
    quarter = len(memory) // 4
    return statistics.median(memory[-quarter:]) - statistics.median(memory[quarter : 2 * quarter]) if quarter else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chance, deadline = random.Random(args.seed), time.monotonic() + 60 * args.minutes
    rounds = kills = terms = mismatches = lost = beyond = 0
    growths: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        for language in ("en", "de"):
            lines = [getattr(phrase, language) for phrase in splits()["train"][:3000]]
            Path(place, f"train.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        while time.monotonic() < deadline:
            rounds += 1
            seed, text = chance.randrange(10**6), Path(place, "train")
            undisturbed = Training(text, Path(place, f"{rounds}-undisturbed"), seed)
            undisturbed.start(600, signal.SIGKILL)
            growths.append(growth(undisturbed.memory))
            disturbed, saved = Training(text, Path(place, f"{rounds}-disturbed"), seed), 0
            finished = False
            while not finished:
                number = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
                finished, output = disturbed.start(chance.uniform(4, 20), number)
                begun = re.search(r"Resuming from .*checkpoint-(\d+)", output)
                lost += saved > 0 and begun is None and "'loss'" in output  # it trained, and from nothing
                beyond += begun is not None and int(begun[1]) < saved
                kills += not finished and number == signal.SIGKILL
                terms += not finished and number == signal.SIGTERM
                saved = checkpoint(disturbed.folder)
            models = [load_file(run.folder / "model.safetensors") for run in (undisturbed, disturbed)]
            mismatches += not all(torch.equal(weight, models[1][name]) for name, weight in models[0].items())
            print(f"round {rounds}: {kills} kills, {terms} terminations, {mismatches} mismatches", file=sys.stderr)
    result = {
        "rounds": rounds,
        "kills": kills,
        "terminations": terms,
        "starts that lost all": lost,
        "starts from before the last checkpoint": beyond,
        "mismatches": mismatches,
        "memory growth in MB, median and largest": [round(statistics.median(growths), 1), round(max(growths), 1)],
    }
    print(json.dumps(result, indent=2))
    sys.exit(0 if not (lost or beyond or mismatches) and statistics.median(growths) < 10 else 1)


if __name__ == "__main__":
    main()
