"""Measure how long one sentence takes, beside MarianMT and CTranslate2 on the same weights.

python scripts/benchmarks/latency.py              about 2 minutes on 2 cores
python scripts/benchmarks/latency.py --models tiny --repeats 3

A sentence of 20 tokens is translated to 25 by random models of the sizes of `tiny` and `base`, with beam 4 and
greedily, in float32 and, where the processor has it natively, in bfloat16. The peers take turns; the medians in
milliseconds are printed as a Markdown table. The last rows are measured beside a process that is always busy, with the
settings of threads that the command line makes (`python scripts/benchmarks/busy.py` compares them).
"""

import argparse
import tempfile
from functools import partial
from typing import Any

from busy import busy_processes

from hf_vanilla_transformer.data.cores import share_cores

share_cores()  # before torch is imported
# ruff: noqa: E402

import torch
from decoding import (
    OURS,
    SEARCHES,
    VOCAB_SIZE,
    export_to_ctranslate2,
    in_formats,
    random_model,
    report_choice,
    word_tokenizer,
)
from measuring import Report, describe_machine, time_interleaved
from transformers.utils import logging

from hf_vanilla_transformer import convert
from hf_vanilla_transformer.inference.hardware import choose_dtype

SOURCE_LENGTH, TARGET_LENGTH = 20, 25
TARGETS = {("base", "beam 4"): "at most 0.85", ("base", "greedy"): "at most 0.95", ("tiny", "beam 4"): "at most 0.6"}


def measure_latency(report: Report, name: str, repeats: int, neighbours: int = 0) -> None:
    """Measure one sentence with a random model of the size `name`, beside some processes that are always busy."""
    model = random_model(name)
    ours = in_formats("ours", model)
    source = torch.randint(4, VOCAB_SIZE, (1, SOURCE_LENGTH))
    sentence = {"input_ids": source, "attention_mask": torch.ones_like(source)}
    place = "one sentence beside a busy process" if neighbours else "one sentence"
    with tempfile.TemporaryDirectory() as root, busy_processes(neighbours):
        peers: dict[str, Any] = {"MarianMT": convert.to_marian(model)}
        peers |= export_to_ctranslate2(model, word_tokenizer(VOCAB_SIZE), root, ("float32", "int8"))
        for search, beams in SEARCHES.items():
            settings = {**sentence, "num_beams": beams, "max_new_tokens": TARGET_LENGTH}
            candidates = {**ours, **peers}
            functions = {peer: partial(candidate.generate, **settings) for peer, candidate in candidates.items()}
            seconds = time_interleaved(repeats, **functions)
            milliseconds = {peer: 1000 * time for peer, time in seconds.items()}
            for our, dtype in OURS.items():
                for peer in peers:
                    ratio = milliseconds[our] / milliseconds[peer]
                    has_target = peer == "MarianMT" and not dtype and not neighbours
                    target = TARGETS.get((name, search), "") if has_target else ""
                    row = f"`{name}`, {dtype}{search}, {place}, against {peer}"
                    report.add(row, milliseconds[our], milliseconds[peer], ratio, target, "ms")
            if not neighbours:
                choice = choose_dtype(model, 1, beams)
                report_choice(report, f"`{name}`, {search}, one sentence", seconds, choice == torch.bfloat16)
            outputs = [functions[peer]().tolist() for peer in ("ours", "MarianMT")]
            report.add_agreement(f"{name}, {search}", *outputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny", "base"], help="presets (default: tiny base)")
    parser.add_argument("--repeats", type=int, default=9, help="of each measurement (default: 9)")
    args = parser.parse_args()
    logging.set_verbosity_error()
    report = Report()
    for name in args.models:
        measure_latency(report, name, args.repeats)
    measure_latency(report, args.models[-1], args.repeats, neighbours=1)
    print(f"{describe_machine()}\n\n{report.table()}")


if __name__ == "__main__":
    main()
