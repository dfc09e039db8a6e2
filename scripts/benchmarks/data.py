"""Measure the time and memory of preparing, planning and streaming generated sentence pairs.

python scripts/benchmarks/data.py                     4.5 million pairs, the size of WMT 2014 English-German
python scripts/benchmarks/data.py --pairs 100000
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from measuring import describe_machine, peak_memory_increase

from hf_vanilla_transformer import MaxTokensBatchSampler
from hf_vanilla_transformer.data.batching import Seq2SeqCollator, TokenRows
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.shards import ShardStream, load_shards

MAX_TOKENS = 25_000


def write_pairs(prefix: Path, pairs: int) -> None:
    """Write `pairs` lines to each of PREFIX.en and PREFIX.de, each made of one to four built-in phrases."""
    rng, phrases = random.Random(0), splits()["train"]
    with open(f"{prefix}.en", "w", encoding="utf-8") as english, open(f"{prefix}.de", "w", encoding="utf-8") as german:
        for _ in range(pairs):
            chosen = rng.choices(phrases, k=rng.randint(1, 4))
            english.write(" ".join(phrase.en for phrase in chosen) + "\n")
            german.write(" ".join(phrase.de for phrase in chosen) + "\n")


def process_tree_memory(pid: int) -> float:
    """Return the megabytes used by a process and all its descendants, counting shared memory once."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024 + sum(
        process_tree_memory(int(child)) for child in children
    )


def prepare(text: str, shards: str, vocab_size: int) -> tuple[float, float]:
    """Run `prepare` and return its seconds and the peak megabytes of all its processes."""
    flags = ["--source_lang", "en", "--target_lang", "de", "--output_dir", shards, "--vocab_size", str(vocab_size)]
    start, peak = time.perf_counter(), 0.0
    with subprocess.Popen(
        [sys.executable, "-m", "hf_vanilla_transformer", "prepare", text, *flags], stdout=subprocess.DEVNULL
    ) as process:
        while process.poll() is None:
            peak = max(peak, process_tree_memory(process.pid))
            time.sleep(0.5)
    if process.returncode:
        sys.exit(process.returncode)
    return time.perf_counter() - start, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4_500_000, help="sentence pairs to generate (default: 4500000)")
    parser.add_argument("--vocab_size", type=int, default=8000, help="size of the vocabulary (default: 8000)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text, shards = str(Path(folder, "text")), str(Path(folder, "shards"))
        write_pairs(Path(text), args.pairs)
        seconds, peak = prepare(text, shards, args.vocab_size)
        times: dict[str, float] = {}
        batches: list[list[int]] = []

        def plan() -> None:
            start = time.perf_counter()
            pairs = load_shards(shards)
            times["opened"] = time.perf_counter() - start
            batches.extend(MaxTokensBatchSampler(pairs["source_length"][:], pairs["target_length"][:], MAX_TOKENS))
            times["planned"] = time.perf_counter() - start - times["opened"]

        def read_batch(rows: TokenRows, collate: Seq2SeqCollator, batch: list[int]) -> float:
            """Return the seconds in which a batch is read and padded."""
            start = time.perf_counter()
            collate(rows.__getitems__(batch))
            return time.perf_counter() - start

        planning_peak = peak_memory_increase(plan)
        rows, collate = TokenRows(load_shards(shards)), Seq2SeqCollator(0, 1)
        times["read"] = statistics.median(read_batch(rows, collate, batch) for batch in batches[:100])
        start = time.perf_counter()
        streamed = sum(map(len, islice(ShardStream(shards, MAX_TOKENS), 300)))
        rate = streamed / (time.perf_counter() - start)
        size = sum(file.stat().st_size for file in Path(shards).glob("*.arrow"))
    result = {
        "machine": describe_machine(),
        "pairs": args.pairs,
        "prepared, s": round(seconds),
        "prepared, pairs/s": round(args.pairs / seconds),
        "prepared, peak MB of all processes": round(peak),
        "shards, MB": round(size / 1e6),
        "opened, s": round(times["opened"], 2),
        "batches planned, s": round(times["planned"], 1),
        "batches planned, peak MB": round(planning_peak),
        f"batch of {MAX_TOKENS} tokens read and padded, ms": round(1000 * times["read"], 1),
        "streamed, pairs/s": round(rate),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
