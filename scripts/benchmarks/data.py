"""Prepares, plans and streams generated pairs, and says how long that took and in how much memory.

python scripts/benchmarks/data.py                     4.5 million pairs, the size of WMT 2014's English-German
python scripts/benchmarks/data.py --pairs 100000
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from measuring import machine, peak_during

from hf_vanilla_transformer import MaxTokensBatchSampler
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.shards import ShardStream, load_shards

MAX_TOKENS = 25_000


def generate(prefix: Path, pairs: int) -> None:
    """One to four of the built-in phrases a line."""
    chance, phrases = random.Random(0), splits()["train"]
    with open(f"{prefix}.en", "w", encoding="utf-8") as english, open(f"{prefix}.de", "w", encoding="utf-8") as german:
        for _ in range(pairs):
            chosen = chance.choices(phrases, k=chance.randint(1, 4))
            english.write(" ".join(phrase.en for phrase in chosen) + "\n")
            german.write(" ".join(phrase.de for phrase in chosen) + "\n")


def megabytes(pid: int) -> float:
    """Of a process and all that it started; what they share counts once."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024 + sum(
        megabytes(int(child)) for child in children
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4_500_000)
    parser.add_argument("--vocab_size", type=int, default=8000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        generate(Path(place, "text"), args.pairs)
        shards = str(Path(place, "shards"))
        words = [str(Path(place, "text")), "--source_lang", "en", "--target_lang", "de", "--output_dir", shards]
        script = [sys.executable, str(Path(__file__).with_name("prepare_data.py")), *words]
        start, peak = time.perf_counter(), 0.0
        with subprocess.Popen([*script, "--vocab_size", str(args.vocab_size)], stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                peak = max(peak, megabytes(process.pid))
                time.sleep(0.5)
        if process.returncode:
            sys.exit(process.returncode)
        seconds = time.perf_counter() - start
        times: dict[str, float] = {}

        def plan() -> None:
            start = time.perf_counter()
            pairs = load_shards(shards)
            times["opened"] = time.perf_counter() - start
            list(MaxTokensBatchSampler(pairs["source_length"][:], pairs["target_length"][:], MAX_TOKENS))
            times["planned"] = time.perf_counter() - start - times["opened"]

        planning = peak_during(plan)
        start = time.perf_counter()
        streamed = sum(map(len, islice(ShardStream(shards, MAX_TOKENS), 300)))
        rate = streamed / (time.perf_counter() - start)
        size = sum(file.stat().st_size for file in Path(shards).glob("*.arrow"))
    result = {
        "machine": machine(),
        "pairs": args.pairs,
        "prepared, s": round(seconds),
        "prepared, pairs/s": round(args.pairs / seconds),
        "prepared, peak MB of all processes": round(peak),
        "shards, MB": round(size / 1e6),
        "opened, s": round(times["opened"], 2),
        "batches planned, s": round(times["planned"], 1),
        "batches planned, peak MB": round(planning),
        "streamed, pairs/s": round(rate),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
