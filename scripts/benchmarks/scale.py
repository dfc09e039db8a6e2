"""Measure the rates of `prepare` and `translate` here, and compute what large corpora take on 1, 8 and 64 nodes.

python scripts/benchmarks/scale.py --model runs/multi30k-average --text data/multi30k/train

The nodes are assumed to have as many cores as --cores_per_node, each as fast as one of this machine, and to share a
file system of --disk_rate. Prints the measured rates as JSON, and two tables.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from measuring import describe_machine, resident_memory

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.data.cleaning import Cleaning
from hf_vanilla_transformer.data.source import Source, TextFile
from hf_vanilla_transformer.plugins.corpus.corpus_translation import CorpusJob, CorpusTranslation
from hf_vanilla_transformer.plugins.corpus.pieces import WORK, Preparation
from hf_vanilla_transformer.plugins.corpus.preparation import SAMPLE_PAIRS, prepare
from hf_vanilla_transformer.plugins.corpus.runner import Runner

PAIRS, NODES = (100_000_000, 1_000_000_000), (1, 8, 64)


class Rates(NamedTuple):
    """The measured rates in pairs or sentences per second, bytes per pair, and megabytes per process."""

    read: float
    train_tokenizer: float
    hash: float
    deduplicate: float
    clean: float
    translate: float
    text_bytes: float
    token_bytes: float
    digest_bytes: float
    translation_bytes: float
    prepare_mb: float
    translate_mb: float


def measure_preparation(text: str, languages: tuple[str, str], copies: int, folder: Path) -> dict[str, float]:
    """Prepare several copies of a text with one worker, and return rates, bytes per pair and megabytes.

    Each copy has a number at the end of every line, so that its pairs are not duplicates.
    """
    for language in languages:
        lines = Path(f"{text}.{language}").read_text("utf-8").splitlines()
        for copy in range(copies):
            Path(f"{folder}-{copy}.{language}").write_text("".join(f"{line} {copy}\n" for line in lines), "utf-8")
    seconds: dict[str, float] = {}
    sizes: dict[str, float] = {}
    last = time.perf_counter()

    def watch(step: str, total: int | None, finished: Iterator[int]) -> None:
        nonlocal last
        if step == "Hashing":
            seconds["tokenizer"] = time.perf_counter() - last
        start = time.perf_counter()
        for _ in finished:
            pass
        last = time.perf_counter()
        seconds[step] = last - start
        for kind in ("text", "digests"):
            files = (folder / WORK).glob(f"{kind}-*.[an]*")
            sizes[kind] = sum(file.stat().st_size for file in files)

    preparation = Preparation(languages=languages, vocab_size=8000, cleaning=Cleaning(256, 4.0), shard_pairs=50_000)
    source = Source([TextFile(languages, f"{folder}-{copy}") for copy in range(copies)])
    manifest = prepare(source, preparation, str(folder), runner=Runner(workers=1), watch=watch)
    pairs = manifest["read"]
    return {
        "read": pairs / seconds["Reading"],
        "train_tokenizer": min(pairs, SAMPLE_PAIRS) / seconds["tokenizer"],
        "hash": pairs / seconds["Hashing"],
        "deduplicate": pairs / seconds["Finding duplicates"],
        "clean": pairs / seconds["Tokenising"],
        "text_bytes": sizes["text"] / pairs,
        "token_bytes": sum(file.stat().st_size for file in folder.glob("shard-*.arrow")) / pairs,
        "digest_bytes": sizes["digests"] / pairs,
        "prepare_mb": resident_memory(),
    }


def translation_rate(
    translation: CorpusTranslation, files: list[str], folder: Path, runner: Runner, lines_per_task: int
) -> float:
    """Return the sentences per second of all workers together, from the moment when each has finished a task."""
    job = CorpusJob(translation, files, str(folder), lines_per_task)
    times = [(time.perf_counter(), lines) for lines in job.run(runner)]
    first = 1 if runner.ray is None and runner.processes == 1 else runner.processes
    return sum(lines for _, lines in times[first:]) / (times[-1][0] - times[first - 1][0])


def plan(rates: Rates, pairs: int, nodes: int, cores: int, disk_rate: float, files: int) -> dict[str, Any]:
    """Return hours, disk and files of preparing and translating a corpus, and what takes longest in preparing it."""
    workers = nodes * cores
    disk = {
        "read": rates.text_bytes * 3,  # the text is read as it is, about twice as large, and written compressed
        "hash": rates.text_bytes + rates.digest_bytes,
        "deduplicate": rates.digest_bytes,
        "clean": rates.text_bytes + rates.token_bytes,
    }
    parallel = {"read": min(files, workers), "hash": workers, "clean": workers}
    parallel["deduplicate"] = min(workers, max(1, pairs >> 22))
    steps = {step: pairs / getattr(rates, step) / count / 3600 for step, count in parallel.items()}
    steps |= {step: max(hours, pairs * disk[step] / disk_rate / 3600) for step, hours in steps.items()}
    steps["train_tokenizer"] = min(pairs, SAMPLE_PAIRS) / rates.train_tokenizer / 3600
    bottleneck = max(steps, key=steps.__getitem__)
    on_disk = pairs * disk[bottleneck] / disk_rate / 3600 >= steps[bottleneck] if bottleneck in disk else False
    return {
        "prepare_hours": sum(steps.values()),
        "bottleneck": f"{bottleneck.replace('_', ' ')}{', the shared disk' if on_disk else ''}",
        "translate_hours": pairs / rates.translate / workers / 3600,
        "disk_gb": pairs * (rates.text_bytes + rates.token_bytes + rates.digest_bytes) / 1e9,
        "shards_gb": pairs * rates.token_bytes / 1e9,
        "translations_gb": pairs * rates.translation_bytes / 1e9,
        "shards": pairs // 100_000,
        "parts": pairs // 10_000,
    }


def print_tables(rates: Rates, cores: int, disk_rate: float, files: int) -> None:
    """Print the plans for all sizes as Markdown."""
    print("\n| pairs | nodes | prepare, hours | the longest step | translate, hours |\n|---|---|---|---|---|")
    plans = {(pairs, nodes): plan(rates, pairs, nodes, cores, disk_rate, files) for pairs in PAIRS for nodes in NODES}
    for (pairs, nodes), row in plans.items():
        hours = [f"{row[f'{verb}_hours']:.2g}" for verb in ("prepare", "translate")]
        print(f"| {pairs:,} | {nodes} | {hours[0]} | {row['bottleneck']} | {hours[1]} |")
    print("\n| pairs | disk while preparing, GB | shards, GB | shards | translations, GB | parts |")
    print("|---|---|---|---|---|---|")
    for pairs in PAIRS:
        row = plans[pairs, 1]
        columns = ("disk_gb", "shards_gb", "shards", "translations_gb", "parts")
        print(f"| {pairs:,} | {' | '.join(f'{row[name]:,.0f}' for name in columns)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model to translate with, greedily, in float32")
    parser.add_argument("--text", required=True, help="Moses prefix of text in the model's languages")
    parser.add_argument("--copies", type=int, default=4, help="how often the text is prepared (default: 4)")
    parser.add_argument("--lines_per_task", type=int, default=500, help="for translating (default: 500)")
    parser.add_argument("--cores_per_node", type=int, default=16, help="(default: 16)")
    parser.add_argument("--disk_rate", type=float, default=1e9, help="bytes per second (default: 1e9)")
    parser.add_argument("--files", type=int, default=64, help="files that the corpus consists of (default: 64)")
    parser.add_argument("--ray", help="address of a Ray cluster on this machine, to measure as well")
    args = parser.parse_args()
    languages = Translator.load(args.model).directions.pairs[0]
    options = {"num_beams": 1, "source_lang": languages[0], "target_lang": languages[1]}
    models = (str(Path(args.model).resolve()),)
    translation = CorpusTranslation(models, "torch", None, languages, options=options)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        measured = measure_preparation(args.text, languages, args.copies, folder / "prepared")
        source = [f"{args.text}.{languages[0]}"]
        runners = {"one worker": Runner(workers=1), "two workers": Runner(workers=2)}
        if args.ray:
            runners["Ray"] = Runner(ray=args.ray)
        speeds = {
            name: translation_rate(translation, source, folder / name, runner, args.lines_per_task)
            for name, runner in runners.items()
        }
        size = sum(file.stat().st_size for file in (folder / "one worker").glob("part-*"))
        lines = sum(1 for file in (folder / "one worker").glob("part-*") for _ in file.open("rb"))
    rates = Rates(
        translate=speeds["one worker"], translation_bytes=size / lines, translate_mb=resident_memory(), **measured
    )
    ratios = {f"{name} / one worker": speeds[name] / speeds["one worker"] for name in runners if name != "one worker"}
    print(json.dumps({"machine": describe_machine(), **rates._asdict(), **ratios}, indent=2))
    print_tables(rates, args.cores_per_node, args.disk_rate, args.files)


if __name__ == "__main__":
    main()
