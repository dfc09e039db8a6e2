"""Compare a search on each core of a CPU with one search after the other on all of them.

python scripts/benchmarks/parallel.py                  about 2 minutes on 2 cores
python scripts/benchmarks/parallel.py --models base    about 10 minutes

A random model of the size of `tiny` translates batches of 2,048 source tokens with beam 4 and of 4,096 greedily, as
`translate` does, sentences of 20 tokens to 25, in float32 and, where the processor has it natively, in bfloat16. Both
ways take turns; the medians are printed as a Markdown table.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from decoding import OURS, SEARCHES, VOCAB_SIZE, in_formats, random_model
from measuring import Report, describe_machine, time_interleaved
from transformers.utils import logging

from hf_vanilla_transformer.inference.hardware import default_max_tokens, run_in_parallel

SOURCE_LENGTH, TARGET_LENGTH = 20, 25
WAYS: dict[str, Any] = {"together": run_in_parallel, "alternately": map}


def translate(model: Any, beams: int, source: torch.Tensor) -> torch.Tensor:
    """Return the translations of a batch."""
    mask = torch.ones_like(source)
    with torch.inference_mode():
        return model.generate(source, attention_mask=mask, num_beams=beams, max_new_tokens=TARGET_LENGTH)


def run_all(way: Any, run: Callable[[torch.Tensor], torch.Tensor], batches: list[torch.Tensor]) -> None:
    """Run all batches in one of the `WAYS`."""
    for _ in way(run, batches):
        pass


def measure_searches(report: Report, name: str, count: int, repeats: int) -> None:
    """Measure both ways with a random model of the size `name`."""
    for our, model in in_formats("ours", random_model(name)).items():
        for search, beams in SEARCHES.items():
            sentences = default_max_tokens(beams) // SOURCE_LENGTH
            batches = [torch.randint(4, VOCAB_SIZE, (sentences, SOURCE_LENGTH)) for _ in range(count)]
            run = partial(translate, model, beams)
            ways = {way: partial(run_all, function, run, batches) for way, function in WAYS.items()}
            seconds = time_interleaved(repeats, **ways)
            rates = {way: sum(map(len, batches)) / time for way, time in seconds.items()}
            ratio = rates["together"] / rates["alternately"]
            row = f"`{name}`, {OURS[our]}{search}, a batch on each core, against one after the other"
            report.add(row, rates["together"], rates["alternately"], ratio, unit="sentences/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny"], help="presets (default: tiny)")
    parser.add_argument("--batches", type=int, default=4, help="translated in each run (default: 4)")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement (default: 3)")
    args = parser.parse_args()
    logging.set_verbosity_error()
    report = Report()
    for name in args.models:
        measure_searches(report, name, args.batches, args.repeats)
    print(f"{describe_machine()}\n\n{report.table()}")


if __name__ == "__main__":
    main()
