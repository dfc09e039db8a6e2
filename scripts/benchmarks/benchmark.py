"""Compare this package with its peers on the same weights, data and machine, in one run.

python scripts/benchmarks/benchmark.py --quick     all CPU measurements, under 10 minutes on 2 cores
python scripts/benchmarks/benchmark.py --full      more repetitions, growth tables, and a GPU if there is one

The peers alternate in each repetition, and medians are compared. The text is Multi30k if scripts/get_multi30k.sh has
downloaded it (or it is in ../shared/data), otherwise the built-in phrases. Prints a Markdown table and writes the same
figures as JSON to --output. Exits 0 only if peers that should produce equal outputs do so for 99 % of the sentences.
"""

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerator import measure_accelerator
from decoding import (
    DEFAULT_SIZE,
    OURS,
    VOCAB_SIZE,
    growth_table,
    measure_base_decoding,
    measure_memory,
    measure_tiny_decoding,
    print_memory,
)
from measuring import Report, describe_machine, gemm_rate, log, peak_memory_increase, time_interleaved
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging

from hf_vanilla_transformer import (
    MaxTokensBatchSampler,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
    convert,
    paper_config,
    train_tokenizer,
)
from hf_vanilla_transformer.data.batching import Seq2SeqCollator
from hf_vanilla_transformer.data.cleaning import tokenize_pairs
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.readers import load_pairs
from hf_vanilla_transformer.inference.metrics import Bleu
from hf_vanilla_transformer.model.configuration_vanilla_transformer import IGNORED_LABEL
from hf_vanilla_transformer.model.loss_vanilla_transformer import projected_cross_entropy, smoothed_cross_entropy
from hf_vanilla_transformer.training.presets import preset

ROOT = Path(__file__).parents[2]
MULTI30K_FOLDERS = (ROOT / "data" / "multi30k", ROOT.parent / "shared" / "data" / "multi30k" / "tok")
MULTI30K = next((folder for folder in MULTI30K_FOLDERS if (folder / "train.en").is_file()), MULTI30K_FOLDERS[0])


class Text:
    """Training and test text as token ids, with a tokenizer trained on it."""

    def __init__(self) -> None:
        if MULTI30K.is_dir():
            self.name = "Multi30k"
            pairs, test = load_pairs(str(MULTI30K / "train"), "en", "de"), MULTI30K / "test_2016_flickr.en"
            self.test = test.read_text(encoding="utf-8").splitlines()
            self.references = test.with_suffix(".de").read_text(encoding="utf-8").splitlines()
        else:
            from datasets import Dataset

            self.name, phrases = "built-in phrases", splits()
            pairs = Dataset.from_dict(
                {"source": [p.en for p in phrases["train"]], "target": [p.de for p in phrases["train"]]}
            )
            self.test = [p.en for p in phrases["test"]][:1000]
            self.references = [p.de for p in phrases["test"]][:1000]
        texts = [text for name in ("source", "target") for text in pairs[name] if text]
        self.tokenizer = train_tokenizer(texts, 5000)
        self.train, _ = tokenize_pairs(pairs, self.tokenizer, 256, None)
        self.sources = self.tokenizer(self.test)["input_ids"]

    def bleu(self, translations: list[str]) -> float:
        """Return the BLEU of the translations of the test text."""
        return Bleu().compute(predictions=translations, references=self.references, tokenize="none")["bleu"]


class Throughput(TrainerCallback):
    """Measure target tokens per second, without padding, from the end of update 8 to the end of the last update."""

    WARM_UP = 8

    def __init__(self, collator: Any):
        """Count the tokens of the batches of `self.collator`, a copy of `collator`."""
        self.counts: list[int] = []
        self.ends: list[float] = []

        def collate(copy: Any, rows: list, **kwargs: Any) -> dict[str, torch.Tensor]:
            batch = type(collator).__call__(copy, rows, **kwargs)
            self.counts.append(int(batch["labels"].ne(IGNORED_LABEL).sum()))
            return batch

        self.collator = copy.copy(collator)
        # a subclass, which trainers recognise
        self.collator.__class__ = type("Counting", (type(collator),), {"__call__": collate})

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())

    def tokens_per_second(self) -> float:
        return sum(self.counts[self.WARM_UP : len(self.ends)]) / (self.ends[-1] - self.ends[self.WARM_UP - 1])


class _OurBatchesTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` with the batches of `VanillaTransformerTrainer`."""

    get_train_dataloader = VanillaTransformerTrainer.get_train_dataloader
    _rows = VanillaTransformerTrainer._rows


def measure_training(report: Report, text: Text, repeats: int, steps: int) -> None:
    """Measure complete training runs of `tiny`, alternating between the trainers."""
    config = paper_config("tiny", vocab_size=len(text.tokenizer))
    max_tokens = preset("tiny").training["max_tokens"]
    sampler = MaxTokensBatchSampler(text.train["source_length"][:], text.train["target_length"][:], max_tokens)
    tokens_per_pair = sum(text.train["target_length"][:]) / len(text.train)  # target tokens, without padding
    pairs = round(len(text.train) / len(sampler))  # per batch, to match the mean number of target tokens in ours
    speeds: dict[str, list[float]] = {}

    def run(name: str, trainer_class: type, model: nn.Module, collator: Any, **settings: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            args_class = VanillaTransformerTrainingArguments if "max_tokens" in settings else Seq2SeqTrainingArguments
            args = args_class(
                folder,
                max_steps=steps,
                use_cpu=True,
                disable_tqdm=True,
                save_strategy="no",
                logging_strategy="no",
                label_smoothing_factor=0.1,
                report_to="none",
                **settings,
            )
            speed = Throughput(collator)
            trainer = trainer_class(
                model, args, data_collator=speed.collator, train_dataset=text.train, callbacks=[speed]
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
            speeds.setdefault(name, []).append(speed.tokens_per_second())

    assert config.pad_token_id is not None
    assert config.decoder_start_token_id is not None
    collator = Seq2SeqCollator(config.pad_token_id, config.decoder_start_token_id)
    for _ in range(repeats):
        for name, bf16 in (("ours", False), ("ours bfloat16", True)):
            ours = VanillaTransformerForConditionalGeneration(config)
            run(name, VanillaTransformerTrainer, ours, collator, max_tokens=max_tokens, bf16=bf16)
        for name in ("random", "group_by_length", "our batches", "our batches, bfloat16"):
            marian = convert.to_marian(VanillaTransformerForConditionalGeneration(config))
            if name.startswith("our batches"):
                settings = {"max_tokens": max_tokens, "lr_scheduler_type": "linear", "bf16": "bfloat16" in name}
                if settings["bf16"]:
                    marian.set_attn_implementation("eager")  # as ours, because it is faster
                run(name, _OurBatchesTrainer, marian, collator, **settings)
            else:
                theirs = DataCollatorForSeq2Seq(text.tokenizer, model=marian)
                batching = {"per_device_train_batch_size": pairs, "train_sampling_strategy": name}
                run(name, Seq2SeqTrainer, marian, theirs, **batching)
    median = {name: statistics.median(values) for name, values in speeds.items()}
    ours_mean = len(text.train) * tokens_per_pair / len(sampler)
    log(f"{pairs} pairs per batch with {pairs * tokens_per_pair:.0f} target tokens; {ours_mean:.0f} in our batches")
    fastest = max("our batches", "our batches, bfloat16", key=median.__getitem__)
    targets = {("ours", "random"): "2.0", ("ours", "our batches"): "1.15"}
    targets |= {("ours bfloat16", "random"): "3.5", ("ours bfloat16", fastest): "1.3"}
    for our, dtype in OURS.items():
        for name in (name for name in speeds if name not in OURS):
            row = f"training `tiny` on {text.name}, {dtype}against MarianMT with Seq2SeqTrainer, {name}"
            ratio = median[our] / median[name]
            report.add(row, median[our], median[name], ratio, targets.get((our, name), ""), "target tokens/s")


def measure_base_training_step(report: Report, gemm: float, repeats: int) -> None:
    """Measure the forward and backward pass of `base` with dropout.

    Its operations per second are compared with `gemm`, those of a large matrix product, and its time with that of
    `torch.nn.Transformer`.
    """
    model = VanillaTransformerForConditionalGeneration(paper_config("base", vocab_size=VOCAB_SIZE)).train()
    config = model.config
    source, target = (torch.randint(4, VOCAB_SIZE, (40, 25)) for _ in range(2))
    layers = nn.Transformer(
        config.d_model, config.num_heads, 6, 6, config.d_ff, batch_first=True, dropout=config.dropout
    ).train()
    embedding, causal = nn.Embedding(VOCAB_SIZE, config.d_model), nn.Transformer.generate_square_subsequent_mask(25)

    def ours(dtype: torch.dtype | None = None) -> None:
        model.set_attn_implementation("eager" if dtype else "sdpa")
        model.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = model(input_ids=source, labels=target, smoothing=0.1).loss
        loss.backward()

    def theirs() -> None:
        layers.zero_grad()
        embedding.zero_grad()
        states = layers(embedding(source), embedding(target), tgt_mask=causal, tgt_is_causal=True)
        logits = states @ embedding.weight.T
        nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()

    seconds = time_interleaved(repeats, ours=ours, bfloat16=lambda: ours(torch.bfloat16), theirs=theirs)
    with FlopCounterMode(display=False) as counter:
        ours()
    rate = counter.get_total_flops() / seconds["ours"]
    report.add("`base` training step, share of the GEMM rate", rate / 1e9, gemm / 1e9, rate / gemm, "0.60", "GFLOP/s")
    ratio = seconds["ours"] / seconds["bfloat16"]
    report.add(
        "the same step in bfloat16, against our float32", seconds["bfloat16"], seconds["ours"], ratio, "2.0", "s"
    )
    ratio = seconds["theirs"] / seconds["ours"]
    report.add("the same step, against torch.nn.Transformer", seconds["ours"], seconds["theirs"], ratio, "", "s")


def measure_loss(report: Report, rows: int, repeats: int) -> None:
    """Measure the projection at base size to 37,000 entries with its loss, in chunks against all logits at once."""
    torch.manual_seed(0)
    projection, states = nn.Linear(512, 37_000, bias=False), torch.randn(rows, 512, requires_grad=True)
    labels = torch.randint(4, 37_000, (rows,))

    def chunked() -> None:
        projected_cross_entropy(projection, states, labels, 0.1, 0).backward()

    def whole() -> None:
        smoothed_cross_entropy(projection(states), labels, 0.1, 0).backward()

    seconds = time_interleaved(repeats, chunked=chunked, whole=whole)
    row = f"projection and loss of {rows:,} tokens x 37,000 entries, in chunks against at once"
    report.add(row, seconds["chunked"], seconds["whole"], seconds["chunked"] / seconds["whole"], "at most 1.05", "s")
    peaks = [peak_memory_increase(function) for function in (chunked, whole)]
    report.add(f"peak memory of this {row}", peaks[0], peaks[1], peaks[0] / peaks[1], "below 1,500 MB", "MB")


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
    mode.add_argument("--full", action="store_true", help="more repetitions, growth tables, and a GPU if there is one")
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
    measure_base_training_step(report, gemm, repeats)
    measure_loss(report, 2_000 if args.quick else 8_000, min(repeats, 3))
    text = Text()
    measure_training(report, text, repeats - 1, 25 if args.quick else 100)
    measure_tiny_decoding(report, text, args.model, 1500, repeats)
    if args.full and torch.cuda.is_available():
        measure_accelerator(report, torch.device("cuda"), ("base", "big"), pairs=1000, sentences=64, repeats=repeats)

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
