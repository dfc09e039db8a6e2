"""Train rows of the paper's Table 3 on any parallel text and print perplexity, BLEU and number of parameters.

python scripts/study/ablate.py base A1 B1 D1 D3 E --reduce 4 --train_file data/train --validation_file data/val \\
  --max_steps 2000 --max_tokens 4096 --warmup_steps 800 --output_dir runs/ablation

Flags of `vanilla-transformer train` set the base configuration that the rows change. All rows train for the same
number of updates and are measured on the validation text; as in the paper, checkpoints are not averaged. Run the same
command again to resume an interrupted study.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from published import TABLE_3

from hf_vanilla_transformer.data.cleaning import tokenize_pairs
from hf_vanilla_transformer.files import read_json, write_whole
from hf_vanilla_transformer.loading import load_model, load_tokenizer
from hf_vanilla_transformer.training.arguments import DataArguments, VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.presets import preset
from hf_vanilla_transformer.training.recipes import parse_arguments
from hf_vanilla_transformer.training.run import run_train
from hf_vanilla_transformer.training.text import validation_sources
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer

WIDTHS = ("d_model", "d_ff", "d_k", "d_v")


def row_changes(row: str, reduce: int) -> dict[str, Any]:
    """Return what a row changes in the base, with widths divided by `reduce` and without its number of updates."""
    fields = {**preset(row).model, **preset(row).training}
    for name in ("max_steps", "save_steps", "save_total_limit"):
        fields.pop(name, None)
    return {name: value // reduce if name in WIDTHS else value for name, value in fields.items()}


def as_flags(settings: dict[str, Any]) -> list[str]:
    """Return the settings as command-line flags."""
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def measure(folder: str, data: DataArguments, args: VanillaTransformerTrainingArguments) -> dict[str, float]:
    """Return perplexity and BLEU of the model in `folder` on the validation text, and its parameters in millions."""
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    languages = (model.config.source_lang, model.config.target_lang)
    data = replace(data, source_lang=languages[0], target_lang=languages[1])
    (validation,) = validation_sources(data)
    tokens, _ = tokenize_pairs(validation.pairs(), tokenizer, args.max_tokens, None)
    metrics = VanillaTransformerTrainer(model, args, eval_dataset=tokens, processing_class=tokenizer).evaluate()
    return {
        "perplexity": metrics["eval_perplexity"],
        "bleu": metrics["eval_bleu"],
        "millions": model.num_parameters() / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", metavar="ROW", choices=TABLE_3, help=f"one of {', '.join(TABLE_3)}")
    parser.add_argument("--reduce", type=int, default=1, help="divide d_model, d_ff, d_k and d_v by this (default: 1)")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for the runs and for ablation.json")
    options, train_flags = parser.parse_known_args()
    base = {"preset": "base", "d_model": 512 // options.reduce, "d_ff": 2048 // options.reduce}
    file = options.output_dir / "ablation.json"
    results = read_json(file) if file.is_file() else {}  # the rows of earlier commands
    for row in options.rows:
        folder = str(options.output_dir / row)
        print(f"== {row}", file=sys.stderr)
        flags = [*as_flags(base), *train_flags, *as_flags(row_changes(row, options.reduce)), "--output_dir", folder]
        (recipe,) = parse_arguments(flags)
        data, args = recipe.data, recipe.args
        if data.train_file and not data.validation_file:
            raise ValueError("Rows are compared on a validation text; pass it with --validation_file.")
        trainer = run_train(recipe)
        if trainer and trainer.state.global_step < trainer.state.max_steps:
            sys.exit(f"ablate.py: row {row} was stopped; run the same command again to resume it.")
        results[row] = {**measure(folder, data, args), "steps": args.max_steps}
        write_whole(file, json.dumps(results, indent=2) + "\n")

    names = ("row", "change", "steps", "PPL", "BLEU", "M parameters", "PPL (paper)", "BLEU (paper)")
    print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for row in options.rows:
        result = results[row]
        change = ", ".join(f"{name} {value}" for name, value in row_changes(row, options.reduce).items())
        print(
            f"| {row} | {change} | {result['steps']:,} | {result['perplexity']:.2f} | {result['bleu']:.1f} "
            f"| {result['millions']:.2f} | {TABLE_3[row].perplexity:.2f} | {TABLE_3[row].bleu} |"
        )


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"ablate.py: {error}")
