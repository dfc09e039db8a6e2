"""Train on generated text while runs are stopped at random and resumed, and report any loss of work.

python scripts/benchmarks/soak.py --minutes 20

Each round trains a small model twice with the same command: once undisturbed, and once stopped by SIGKILL or SIGTERM
at random moments and restarted each time. Exits 0 only if every start resumed from the last checkpoint, the two models
of each round are bit-identical, and memory grew by less than 10 MB (median over the rounds).
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
from measuring import resident_memory
from safetensors.torch import load_file

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


class Training:
    """A training command that can be interrupted and started again until it finishes.

    `memory` collects its resident megabytes, four times per second from the first checkpoint on.
    """

    def __init__(self, text: Path, folder: Path, seed: int):
        self.folder, self.memory = folder, list[float]()
        flags = ["--train_file", str(text), "--output_dir", str(folder), "--seed", str(seed)]
        self.command = [sys.executable, "-m", "hf_vanilla_transformer", "train", *SETTINGS, *flags]

    def run(self, seconds: float, stop_signal: signal.Signals) -> tuple[bool, str]:
        """Run the command and send `stop_signal` after `seconds`; return whether it finished first, and its output."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (
            tempfile.TemporaryFile("w+") as log,
            subprocess.Popen(self.command, env=environment, stdout=log, stderr=subprocess.STDOUT) as process,
        ):
            end = time.monotonic() + seconds
            while process.poll() is None and time.monotonic() < end:
                if newest_checkpoint(self.folder):
                    self.memory.append(resident_memory(process.pid))
                time.sleep(0.25)
            finished = process.poll() is not None
            if not finished:
                process.send_signal(stop_signal)
            process.wait()
            log.seek(0)
            output = log.read()
        status = process.returncode
        if finished and status:
            sys.exit(f"soak.py: a run that was not interrupted failed with exit status {status}:\n{output[-3000:]}")
        if not finished and stop_signal == signal.SIGTERM and status not in (0, -stop_signal):
            sys.exit(f"soak.py: a run stopped by SIGTERM ended with exit status {status}:\n{output[-3000:]}")
        return finished, output


def memory_growth(memory: list[float]) -> float:
    """Return the growth in median memory from the second quarter of a run to the last, in megabytes."""
    quarter = len(memory) // 4
    return statistics.median(memory[-quarter:]) - statistics.median(memory[quarter : 2 * quarter]) if quarter else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="start no new round after this (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments (default: 0)")
    args = parser.parse_args()
    rng, deadline = random.Random(args.seed), time.monotonic() + 60 * args.minutes
    rounds = kills = terminations = mismatches = restarted = outdated = 0
    growths: list[float] = []
    with tempfile.TemporaryDirectory() as root:
        for language in ("en", "de"):
            lines = [getattr(phrase, language) for phrase in splits()["train"][:3000]]
            Path(root, f"train.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        while time.monotonic() < deadline:
            rounds += 1
            seed, text = rng.randrange(10**6), Path(root, "train")
            undisturbed = Training(text, Path(root, f"{rounds}-undisturbed"), seed)
            undisturbed.run(600, signal.SIGKILL)
            growths.append(memory_growth(undisturbed.memory))
            disturbed, saved = Training(text, Path(root, f"{rounds}-disturbed"), seed), 0
            finished = False
            while not finished:
                stop_signal = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
                finished, output = disturbed.run(rng.uniform(4, 20), stop_signal)
                resumed = re.search(r"Resuming from .*checkpoint-(\d+)", output)
                restarted += saved > 0 and resumed is None and "'loss'" in output  # it trained, but from scratch
                outdated += resumed is not None and int(resumed[1]) < saved
                kills += not finished and stop_signal == signal.SIGKILL
                terminations += not finished and stop_signal == signal.SIGTERM
                saved = newest_checkpoint(disturbed.folder)
            models = [load_file(run.folder / "model.safetensors") for run in (undisturbed, disturbed)]
            mismatches += not all(torch.equal(weight, models[1][name]) for name, weight in models[0].items())
            print(
                f"round {rounds}: {kills} kills, {terminations} terminations, {mismatches} mismatches so far",
                file=sys.stderr,
            )
    result = {
        "rounds": rounds,
        "kills": kills,
        "terminations": terminations,
        "starts that lost all": restarted,
        "starts from before the last checkpoint": outdated,
        "mismatches": mismatches,
        "memory growth in MB, median and largest": [round(statistics.median(growths), 1), round(max(growths), 1)],
    }
    print(json.dumps(result, indent=2))
    sys.exit(0 if not (restarted or outdated or mismatches) and statistics.median(growths) < 10 else 1)


if __name__ == "__main__":
    main()
