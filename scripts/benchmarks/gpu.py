"""One stage of the measurements on a GPU; gpu.sh runs them all.

python scripts/benchmarks/gpu.py STAGE --text TEXT --output_dir OUT [--seconds 480] [--small]

TEXT has the folders multi30k and wmt with Moses files train.en and train.de, multi30k also val.en and val.de. The rows
are added to OUT/gpu.json; rows that are already there are not measured again. "table" prints them as Markdown. --small
measures tiny models for a few updates, on any device.

Exits with 3 if the time was not enough for all rows, with 0 otherwise.
"""

import argparse
import sys
from pathlib import Path

import torch
from gpu_decoding import measure_decoding, measure_graphs
from gpu_profile import measure_profile
from gpu_results import OutOfTimeError, Results, Setup
from gpu_runs import measure_launchers, measure_recipe, run_tests, test_devices
from gpu_training import measure_compiled, measure_training, peak_rate
from measuring import describe_machine
from transformers.utils import logging

from hf_vanilla_transformer.inference.hardware import default_device

OUT_OF_TIME = 3  # exit status
PAPER_UPDATES = {"base": 100_000, "big": 300_000}  # section 5.2
PAPER_TOKENS = 25_000  # target tokens per update (section 5.1)


STAGES = {
    "devices": test_devices,
    "recipe": measure_recipe,
    "graphs": measure_graphs,
    "compiled": measure_compiled,
    "training": measure_training,
    "decoding": measure_decoding,
    "profile": measure_profile,
    "launchers": measure_launchers,
    "tests": run_tests,
}


def cost_table(results: Results) -> str:
    """Return the hours that the paper's training takes at the fastest measured rate of each model."""
    lines = ["| model | updates of 25,000 tokens | tokens/s | hours |", "|---|---|---|---|"]
    for name, updates in PAPER_UPDATES.items():
        rows = results.tables.get(f"training {name}", {})
        rates = [row["tokens/s"] for label, row in rows.items() if "tokens/s" in row and "MarianMT" not in label]
        if rates:
            hours = updates * PAPER_TOKENS / max(rates) / 3600
            lines.append(f"| {name} | {updates:,} | {max(rates):,.0f} | {hours:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=[*STAGES, "table"])
    parser.add_argument("--text", type=Path, help="folder with multi30k/ and wmt/")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for gpu.json, logs and runs")
    parser.add_argument("--seconds", type=float, default=480, help="time limit (default: 480)")
    parser.add_argument("--retry", action="store_true", help="measure rows again that have failed")
    parser.add_argument("--small", action="store_true", help="tiny models, on any device")
    args = parser.parse_args()
    logging.set_verbosity_error()
    output = args.output_dir.resolve()
    results = Results(output / "gpu.json", args.seconds, args.retry)
    if args.stage == "table":
        print(f"{results.markdown()}\n\n### Cost of the paper's models\n\n{cost_table(results)}")
        return
    if args.text is None:
        parser.error("--text is missing")
    for file in ("multi30k/train.en", "multi30k/train.de", "multi30k/val.en", "wmt/train.en", "wmt/train.de"):
        if not (args.text / file).is_file():
            parser.error(f"{args.text / file} does not exist; TEXT needs the folders multi30k and wmt")
    if not (torch.cuda.is_available() or args.small):
        parser.error("there is no GPU; --small runs everything on the CPU with tiny models")
    setup = Setup(args.text.resolve(), output, args.small, default_device())
    try:
        results.measure("machine", describe_machine(), lambda: {"bf16 TFLOP/s": peak_rate(setup.device) / 1e12})
        STAGES[args.stage](setup, results)
    except OutOfTimeError:
        sys.exit(OUT_OF_TIME)


if __name__ == "__main__":
    main()
