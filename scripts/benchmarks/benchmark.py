"""Compare this package with its peers on the same weights, data and machine, in one run.

python scripts/benchmarks/benchmark.py --quick     all CPU measurements, about 15 minutes on 2 cores
python scripts/benchmarks/benchmark.py --full      more repetitions, and growth tables

The peers alternate in each repetition, and medians are compared. The text is Multi30k if scripts/get_multi30k.sh has
downloaded it (or it is in ../shared/data), otherwise the built-in phrases. Prints a Markdown table and writes the same
figures as JSON to --output. Exits 0 only if peers that should produce equal outputs do so for 99 % of the sentences.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmark_text import Text
from decoding import (
    DEFAULT_SIZE,
    growth_table,
    measure_base_decoding,
    measure_memory,
    measure_opus_decoding,
    measure_tiny_decoding,
    print_memory,
)
from measuring import Report, describe_machine, gemm_rate, log, time_interleaved
from training import measure_base_training_step, measure_loss, measure_training
from transformers.utils import logging


def measure_imports(report: Report, repeats: int) -> None:
    """Measure the time in which new processes import the package and print the help."""

    def python(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    seconds = time_interleaved(
        repeats,
        package=python("from hf_vanilla_transformer import VanillaTransformerModel, VanillaTransformerTrainer"),
        parts=python("from transformers import PreTrainedModel, Trainer, pipeline"),
        help=python("import sys; sys.argv = ['', '--help']; from hf_vanilla_transformer.cli import main; main()"),
        transformers=python("import transformers"),
    )
    rows = (
        ("import of model and trainer, against PreTrainedModel, Trainer and pipeline", "package", "parts", "1.15"),
        ("`vanilla-transformer --help`, against `import transformers`", "help", "transformers", "1.5"),
    )
    for row, ours, peer, limit in rows:
        report.add(row, seconds[ours], seconds[peer], seconds[ours] / seconds[peer], f"at most {limit}", "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--quick", action="store_true", help="few repetitions, on the CPU only")
    mode.add_argument("--full", action="store_true", help="more repetitions, and growth tables")
    mode.add_argument("--measure_memory", choices=["ours", "MarianMT", "planning"], help=argparse.SUPPRESS)
    parser.add_argument(
        "--model", help="trained model for the decoding measurements (default: train `tiny` for two minutes)"
    )
    parser.add_argument("--output", default="benchmark.json", help="JSON file to write (default: benchmark.json)")
    args = parser.parse_args()
    logging.set_verbosity_error()
    if args.measure_memory:
        print_memory(args.measure_memory)
        return
    start, report, repeats = time.perf_counter(), Report(), 3 if args.quick else 7
    machine = describe_machine()
    log(machine)
    gemm = gemm_rate()
    log(f"GEMM rate: {gemm / 1e9:.0f} GFLOP/s")
    measure_imports(report, repeats - 1)
    measure_memory(report)
    measure_base_decoding(report, repeats)
    measure_opus_decoding(report, repeats)
    measure_base_training_step(report, gemm, repeats)
    measure_loss(report, 2_000 if args.quick else 8_000, min(repeats, 3))
    text = Text()
    measure_training(report, text, repeats - 1, 25 if args.quick else 100)
    measure_tiny_decoding(report, text, args.model, 1500, repeats)

    print(f"{machine}; GEMM rate {gemm / 1e9:.0f} GFLOP/s; {time.perf_counter() - start:.0f} s\n\n{report.table()}")
    if args.full:
        sizes = ", ".join(f"{name} {value}" for name, value in DEFAULT_SIZE.items())
        print(f"\nGrowth at the width of `tiny`; {sizes} unless stated\n\n{growth_table()}")
    result = {
        "machine": machine,
        "ceiling_gflops": gemm / 1e9,
        "rows": report.rows,
        "agreements": report.agreements,
    }
    Path(args.output).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if report.disagreements():
        sys.exit(f"The outputs differ: {', '.join(report.disagreements())}")


if __name__ == "__main__":
    main()
