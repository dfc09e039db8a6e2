"""Measure the time and memory of preparing, planning and streaming generated sentence pairs.

python scripts/benchmarks/data.py                     4.5 million pairs, the size of WMT 2014 English-German
python scripts/benchmarks/data.py --pairs 5000000 --duplicates 0.2
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

import numpy as np
from measuring import describe_machine, peak_memory_increase

from hf_vanilla_transformer import MaxTokensBatchSampler
from hf_vanilla_transformer.data.batching import Seq2SeqCollator, TokenRows
from hf_vanilla_transformer.data.bpe_dropout import BpeDropout
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.shards import ShardStream, load_shards, read_manifest
from hf_vanilla_transformer.loading import load_tokenizer

MAX_TOKENS = 25_000
MEASURED_PAIRS = 500_000  # with BPE dropout
PAIRS_PER_BLOCK = 10_000


def write_pairs(prefix: Path, pairs: int, duplicates: int) -> None:
    """Write `pairs` lines to each of PREFIX.en and PREFIX.de, each made of a number and one to four built-in phrases.

    The last `duplicates` lines repeat earlier ones, at a distance of most of the text.
    """
    rng, phrases = random.Random(0), splits()["train"]
    step = max(1, (pairs - duplicates) // max(1, duplicates))
    repeated: list[tuple[str, str]] = []
    with open(f"{prefix}.en", "w", encoding="utf-8") as english, open(f"{prefix}.de", "w", encoding="utf-8") as german:
        for i in range(pairs - duplicates):
            chosen = rng.choices(phrases, k=rng.randint(1, 4))
            lines = [f"{' '.join(getattr(phrase, side) for phrase in chosen)} {i}\n" for side in ("en", "de")]
            english.write(lines[0])
            german.write(lines[1])
            if i % step == 0 and len(repeated) < duplicates:
                repeated.append((lines[0], lines[1]))
        english.writelines(line for line, _ in repeated)
        german.writelines(line for _, line in repeated)


def process_tree_memory(pid: int) -> list[float]:
    """Return the megabytes used by a process and by each of its descendants, counting shared memory once."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return []
    own = int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024
    return [own, *(size for child in children for size in process_tree_memory(int(child)))]


def prepare(text: str, shards: str, vocab_size: int) -> tuple[float, float, float]:
    """Run `prepare` and return its seconds and the peak megabytes of all its processes, and of the largest."""
    flags = ["--source_lang", "en", "--target_lang", "de", "--output_dir", shards, "--vocab_size", str(vocab_size)]
    start, peak, largest = time.perf_counter(), 0.0, 0.0
    with subprocess.Popen(
        [sys.executable, "-m", "hf_vanilla_transformer", "prepare", text, *flags], stdout=subprocess.DEVNULL
    ) as process:
        while process.poll() is None:
            sizes = process_tree_memory(process.pid)
            peak, largest = max(peak, sum(sizes)), max(largest, *sizes, 0.0)
            time.sleep(0.5)
    if process.returncode:
        sys.exit(process.returncode)
    return time.perf_counter() - start, peak, largest


def segmenting_rate(shards: str) -> int:
    """Return how many pairs per second BPE dropout segments, in one process."""
    rows = TokenRows(load_shards(shards))
    dropout = BpeDropout(load_tokenizer(shards), 0.1, seed=0)
    pairs = min(len(rows), MEASURED_PAIRS)
    start = time.perf_counter()
    for numbers in np.split(np.arange(pairs), range(PAIRS_PER_BLOCK, pairs, PAIRS_PER_BLOCK)):
        block = rows.__getitems__(numbers.tolist())
        for side, name in enumerate(("input_ids", "labels")):
            dropout([row[name] for row in block], numbers, side)
    return round(pairs / (time.perf_counter() - start))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4_500_000, help="sentence pairs to generate (default: 4500000)")
    parser.add_argument("--duplicates", type=float, default=0.0, help="share of them that repeats others (default: 0)")
    parser.add_argument("--vocab_size", type=int, default=8000, help="size of the vocabulary (default: 8000)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text, shards = str(Path(folder, "text")), str(Path(folder, "shards"))
        duplicates = round(args.pairs * args.duplicates)
        write_pairs(Path(text), args.pairs, duplicates)
        seconds, peak, largest = prepare(text, shards, args.vocab_size)
        found = read_manifest(shards)["drops"].get("duplicate", 0)
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
        segmenting = segmenting_rate(shards)
        size = sum(file.stat().st_size for file in Path(shards).glob("*.arrow"))
    result = {
        "machine": describe_machine(),
        "pairs": args.pairs,
        "duplicates": duplicates,
        "duplicates found": found,
        "prepared, s": round(seconds),
        "prepared, pairs/s": round(args.pairs / seconds),
        "prepared, peak MB of all processes": round(peak),
        "prepared, peak MB of the largest process": round(largest),
        "shards, MB": round(size / 1e6),
        "opened, s": round(times["opened"], 2),
        "batches planned, s": round(times["planned"], 1),
        "batches planned, peak MB": round(planning_peak),
        "segmented with BPE dropout, pairs/s": segmenting,
        f"batch of {MAX_TOKENS} tokens read and padded, ms": round(1000 * times["read"], 1),
        "streamed, pairs/s": round(rate),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
