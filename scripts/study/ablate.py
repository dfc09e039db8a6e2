"""Trains rows of the paper's Table 3 on any parallel text, equally long, and prints perplexity, BLEU and parameters.

python scripts/study/ablate.py base A1 B1 D1 D3 E --reduce 4 --train_file data/train --validation_file data/val \\
  --max_steps 2000 --max_tokens 4096 --warmup_steps 800 --output_dir runs/ablation

Flags of `vanilla-transformer train` describe the base that the rows change. As in the paper nothing is averaged, and
the measures are those of the validation text. Started again, it goes on where it was cut off.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from hf_vanilla_transformer.data.cleaning import tokenize_pairs
from hf_vanilla_transformer.model.loading import load, load_model
from hf_vanilla_transformer.training.arguments import DataArguments, VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.presets import TABLE_3, preset
from hf_vanilla_transformer.training.recipes import parse_arguments
from hf_vanilla_transformer.training.run import run_train
from hf_vanilla_transformer.training.text import read_pairs
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer

WIDTHS = ("d_model", "d_ff", "d_k", "d_v")


def changes(row: str, reduce: int) -> dict[str, Any]:
    """What the row changes in the base, its widths divided by `reduce`; its number of updates is not among it."""
    fields = {**preset(row).model, **preset(row).training}
    for name in ("max_steps", "save_steps", "save_total_limit"):
        fields.pop(name, None)
    return {name: value // reduce if name in WIDTHS else value for name, value in fields.items()}


def measure(folder: str, data: DataArguments, args: VanillaTransformerTrainingArguments) -> dict[str, float]:
    """Perplexity and BLEU of the model in `folder` on the validation text, and its parameters in millions."""
    model, tokenizer = load_model(folder), load(AutoTokenizer, folder)
    pairs = read_pairs(data, (model.config.source_lang, model.config.target_lang))
    tokens, _ = tokenize_pairs(pairs["validation"], tokenizer, args.max_tokens, None)
    metrics = VanillaTransformerTrainer(model, args, eval_dataset=tokens, processing_class=tokenizer).evaluate()
    return {
        "perplexity": metrics["eval_perplexity"],
        "bleu": metrics["eval_bleu"],
        "millions": model.num_parameters() / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", metavar="ROW", choices=TABLE_3, help=f"of {', '.join(TABLE_3)}")
    parser.add_argument("--reduce", type=int, default=1, help="divide d_model, d_ff, d_k and d_v by this (default: 1)")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for the runs and ablation.json")
    ours, flags = parser.parse_known_args()
    base = {"d_model": 512 // ours.reduce, "d_ff": 2048 // ours.reduce}
    results = {}
    for row in ours.rows:
        folder = str(ours.output_dir / row)
        print(f"== {row}", file=sys.stderr)
        words = [word for name, value in base.items() for word in (f"--{name}", str(value))] + flags
        words += [word for name, value in changes(row, ours.reduce).items() for word in (f"--{name}", str(value))]
        model, data, args = parse_arguments([*words, "--output_dir", folder])
        if data.train_file and not data.validation_file:
            raise ValueError("The rows are compared on a validation text: give --validation_file.")
        run_train(model, data, args)
        results[row] = {**measure(folder, data, args), "steps": args.max_steps}
        (ours.output_dir / "ablation.json").write_text(json.dumps(results, indent=2) + "\n")

    names = ("row", "change", "steps", "PPL", "BLEU", "M parameters", "PPL (paper)", "BLEU (paper)")
    print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for row, result in results.items():
        change = ", ".join(f"{name} {value}" for name, value in changes(row, ours.reduce).items())
        print(
            f"| {row} | {change} | {result['steps']:,} | {result['perplexity']:.2f} | {result['bleu']:.1f} "
            f"| {result['millions']:.2f} | {TABLE_3[row].perplexity:.2f} | {TABLE_3[row].bleu} |"
        )


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"ablate.py: {error}")
