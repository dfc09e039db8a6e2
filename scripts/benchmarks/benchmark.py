"""The referee: this package beside its peers, on the same weights, data and machine, in one run.

python scripts/benchmarks/benchmark.py --quick     every CPU row, under 10 minutes on 2 cores
python scripts/benchmarks/benchmark.py --full      more repetitions, growth tables, and a GPU's rows where there is one

Peers take turns in every repetition, and medians are compared. The text is Multi30k where scripts/get_multi30k.sh has
fetched it (or it lies at ../shared/data), else the built-in phrases. Prints a Markdown table, writes the same as JSON
to --output, and exits 0 only if the peers that should say the same do so on 99 % of the sentences.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmark_decoding import (
    DEFAULT_SIZE,
    TARGET,
    VOCAB,
    base_decoding,
    base_model,
    growth,
    measure_memory,
    memory,
    tiny_decoding,
)
from measuring import Report, ceiling, machine, say, take_turns
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
from hf_vanilla_transformer.model.layers_vanilla_transformer import IGNORED_LABEL
from hf_vanilla_transformer.training.presets import preset

ROOT = Path(__file__).parents[1]
PLACES = (ROOT / "data" / "multi30k", ROOT.parent / "shared" / "data" / "multi30k" / "tok")
MULTI30K = next((place for place in PLACES if (place / "train.en").is_file()), PLACES[0])


class Text:
    """Training and test text as token ids, with the tokenizer learned from it."""

    def __init__(self):
        if MULTI30K.is_dir():
            self.name = "Multi30k"
            pairs, test = load_pairs(str(MULTI30K / "train"), "en", "de"), MULTI30K / "test_2016_flickr.en"
            self.test = test.read_text(encoding="utf-8").splitlines()
        else:
            from datasets import Dataset

            self.name, phrases = "built-in phrases", splits()
            pairs = Dataset.from_dict(
                {"source": [p.en for p in phrases["train"]], "target": [p.de for p in phrases["train"]]}
            )
            self.test = [p.en for p in phrases["test"]][:1000]
        texts = [text for name in ("source", "target") for text in pairs[name] if text]
        self.tokenizer = train_tokenizer(texts, 5000)
        self.train, _ = tokenize_pairs(pairs, self.tokenizer, 256, None)
        self.sources = self.tokenizer(self.test)["input_ids"]


class Speed(TrainerCallback):
    """Real target tokens a second, from the end of one update to the end of the last."""

    WARM_UP = 8

    def __init__(self, collate: Callable):
        self.collate = collate
        self.counts: list[int] = []
        self.ends: list[float] = []

    def __call__(self, rows: list) -> dict[str, torch.Tensor]:
        batch = self.collate(rows)
        self.counts.append(int(batch["labels"].ne(IGNORED_LABEL).sum()))
        return batch

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())

    def tokens_per_second(self) -> float:
        return sum(self.counts[self.WARM_UP : len(self.ends)]) / (self.ends[-1] - self.ends[self.WARM_UP - 1])


class _OurBatches(Seq2SeqTrainer):
    """`Seq2SeqTrainer` but for the batches."""

    get_train_dataloader = VanillaTransformerTrainer.get_train_dataloader


def training(report: Report, text: Text, repeats: int, steps: int) -> None:
    """Whole training runs of `tiny` through the trainers, in turns."""
    config = paper_config("tiny", vocab_size=len(text.tokenizer))
    max_tokens = preset("tiny").training["max_tokens"]
    sampler = MaxTokensBatchSampler(text.train["source_length"][:], text.train["target_length"][:], max_tokens)
    mean = sum(text.train["target_length"][:]) / len(text.train)  # real target tokens of a pair
    pairs = round(len(text.train) / len(sampler))  # a batch, so that its mean of real tokens is the same
    speeds: dict[str, list[float]] = {}

    def run(name: str, trainer_class: type, model: nn.Module, collator: Any, **settings: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            kind = VanillaTransformerTrainingArguments if "max_tokens" in settings else Seq2SeqTrainingArguments
            args = kind(
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
            speed = Speed(collator)
            trainer = trainer_class(model, args, data_collator=speed, train_dataset=text.train, callbacks=[speed])
            trainer.remove_callback(PrinterCallback)
            trainer.train()
            speeds.setdefault(name, []).append(speed.tokens_per_second())

    for _ in range(repeats):
        ours = VanillaTransformerForConditionalGeneration(config)
        pad_id, start_id = config.pad_token_id, config.decoder_start_token_id
        assert pad_id is not None
        assert start_id is not None
        collator = Seq2SeqCollator(pad_id, start_id)
        run("ours", VanillaTransformerTrainer, ours, collator, max_tokens=max_tokens)
        for name in ("random", "group_by_length", "our batches"):
            marian = convert.to_marian(VanillaTransformerForConditionalGeneration(config))
            if name == "our batches":
                run(name, _OurBatches, marian, collator, max_tokens=max_tokens, lr_scheduler_type="linear")
            else:
                theirs = DataCollatorForSeq2Seq(text.tokenizer, model=marian)
                columns = {"per_device_train_batch_size": pairs, "train_sampling_strategy": name}
                run(name, Seq2SeqTrainer, marian, theirs, **columns)
    median = {name: statistics.median(values) for name, values in speeds.items()}
    ours_mean = len(text.train) * mean / len(sampler)
    say(f"{pairs} pairs a batch, {pairs * mean:.0f} real target tokens; {ours_mean:.0f} in ours")
    for name, target in (("random", "2.0"), ("group_by_length", ""), ("our batches", "1.15")):
        label = f"training `tiny` on {text.name}, against MarianMT with Seq2SeqTrainer, {name}"
        report.add(label, median["ours"], median[name], median["ours"] / median[name], target, "target tokens/s")


def base_training_step(report: Report, flops: float, repeats: int) -> None:
    """Forward and backward of `base`, dropout on, as a share of the ceiling, and beside `torch.nn.Transformer`'s."""
    model = VanillaTransformerForConditionalGeneration(paper_config("base", vocab_size=VOCAB)).train()
    config = model.config
    source, target = (torch.randint(4, VOCAB, (40, 25)) for _ in range(2))
    layers = nn.Transformer(
        config.d_model, config.num_heads, 6, 6, config.d_ff, batch_first=True, dropout=config.dropout
    ).train()
    embedding, causal = nn.Embedding(VOCAB, config.d_model), nn.Transformer.generate_square_subsequent_mask(25)

    def ours():
        model.zero_grad()
        model(input_ids=source, labels=target).loss.backward()

    def theirs():
        layers.zero_grad()
        embedding.zero_grad()
        states = layers(embedding(source), embedding(target), tgt_mask=causal, tgt_is_causal=True)
        logits = states @ embedding.weight.T
        nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()

    seconds = take_turns(repeats, ours=ours, theirs=theirs)
    with FlopCounterMode(display=False) as counter:
        ours()
    rate = counter.get_total_flops() / seconds["ours"]
    report.add(
        "`base` training step, share of the GEMM rate", rate / 1e9, flops / 1e9, rate / flops, "0.60", "GFLOP/s"
    )
    ratio = seconds["theirs"] / seconds["ours"]
    report.add("the same against torch.nn.Transformer", seconds["ours"], seconds["theirs"], ratio, "", "s")


def accelerator(
    report: Report, device: torch.device, names: tuple[str, ...], pairs: int, sentences: int, repeats: int
) -> None:
    """bf16 training at `pairs` of 25 + 25 tokens a batch, and decoding of `sentences`, both beside MarianMT."""

    def settled(act: Callable[[], Any]) -> Callable[[], Any]:
        def run():
            act()
            if device.type == "cuda":
                torch.cuda.synchronize()

        return run

    side = 8192 if device.type == "cuda" else 256
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    ceiling = 2 * side**3 / take_turns(10, product=settled(lambda: a @ b))["product"]
    say(f"The ceiling in bf16: {ceiling / 1e12:.1f} TFLOP/s")
    for name in names:
        config = paper_config(name, vocab_size=37_000)
        ours = VanillaTransformerForConditionalGeneration(config)
        models: dict[str, Any] = {"ours": ours, "marian": convert.to_marian(ours)}
        batch = {key: torch.randint(4, 37_000, (pairs, 25), device=device) for key in ("input_ids", "labels")}
        steps = {}
        for peer, trained in models.items():
            trained.to(device).train()
            optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4, fused=True)

            def step(model=trained, optimizer=optimizer, batch=batch):
                with torch.autocast(device.type, torch.bfloat16):
                    loss = model(**batch).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

            steps[peer] = settled(step)
        seconds = take_turns(repeats, **steps)
        with FlopCounterMode(display=False) as counter:
            steps["ours"]()
        rate, speed = counter.get_total_flops() / seconds["ours"], {n: pairs * 25 / s for n, s in seconds.items()}
        what = f"{device.type}, bf16 training of `{name}`, {pairs * 25:,} + {pairs * 25:,} tokens a batch"
        report.add(f"{what}: use", rate / 1e12, ceiling / 1e12, rate / ceiling, "0.40", "TFLOP/s")
        ratio = speed["ours"] / speed["marian"]
        report.add(f"{what}, against MarianMT", speed["ours"], speed["marian"], ratio, "1.5", "target tokens/s")
    model: Any = base_model()
    model.to(device)
    marian: Any = convert.to_marian(model)
    for beams, size, name in ((4, sentences, f"beam 4, batch {sentences}"), (1, 1, "greedy, batch 1")):
        sources = torch.randint(4, VOCAB, (size, 25), device=device)
        settings = {"num_beams": beams, "max_new_tokens": TARGET}
        acts = {
            peer: settled(partial(m.generate, sources, **settings))
            for peer, m in (("ours", model), ("marian", marian))
        }
        seconds = take_turns(repeats, **acts)
        outputs = [m.generate(sources, **settings).tolist() for m in (model, marian)]
        report.agree(f"{device.type}, {name}", *outputs)
        speed = {peer: size * TARGET / elapsed for peer, elapsed in seconds.items()}
        what = f"{device.type}, `base`, {name}, against MarianMT"
        report.add(what, speed["ours"], speed["marian"], speed["ours"] / speed["marian"], "2", "tokens/s")


def imports(report: Report, repeats: int) -> None:
    """Whole processes, in turns."""

    def python(code: str) -> Callable[[], Any]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)

    seconds = take_turns(
        repeats,
        package=python("from hf_vanilla_transformer import VanillaTransformerModel, VanillaTransformerTrainer"),
        parts=python("from transformers import PreTrainedModel, Trainer, pipeline"),
        help=python("import sys; sys.argv = ['', '--help']; from hf_vanilla_transformer.cli import main; main()"),
        transformers=python("import transformers"),
    )
    for what, peer, target in (("package", "parts", "at most 1.15"), ("help", "transformers", "at most 1.5")):
        label = {
            "package": "import of model and trainer, against PreTrainedModel, Trainer and pipeline",
            "help": "`vanilla-transformer --help`, against `import transformers`",
        }
        report.add(label[what], seconds[what], seconds[peer], seconds[what] / seconds[peer], target, "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--quick", action="store_true")
    mode.add_argument("--full", action="store_true")
    mode.add_argument("--measure_memory", choices=["ours", "MarianMT", "planning"], help=argparse.SUPPRESS)
    parser.add_argument(
        "--model", help="a trained model for the rows of decoding; else `tiny` is trained for two minutes"
    )
    parser.add_argument("--output", default="benchmark.json", help="file for the figures (default: benchmark.json)")
    args = parser.parse_args()
    logging.set_verbosity_error()
    if args.measure_memory:
        measure_memory(args.measure_memory)
        return
    start, report, repeats = time.perf_counter(), Report(), 3 if args.quick else 7
    say(machine())
    flops = ceiling()
    say(f"The ceiling: {flops / 1e9:.0f} GFLOP/s")
    imports(report, repeats - 1)
    memory(report)
    base_decoding(report, repeats)
    base_training_step(report, flops, repeats)
    text = Text()
    training(report, text, repeats - 1, 25 if args.quick else 100)
    tiny_decoding(report, text, args.model, 1500, repeats)
    if args.full and torch.cuda.is_available():
        accelerator(report, torch.device("cuda"), ("base", "big"), pairs=1000, sentences=64, repeats=repeats)

    print(f"{machine()}; ceiling {flops / 1e9:.0f} GFLOP/s; {time.perf_counter() - start:.0f} s\n\n{report.table()}")
    if args.full:
        sizes = ", ".join(f"{name} {value}" for name, value in DEFAULT_SIZE.items())
        print(f"\nGrowth at `tiny`'s width; {sizes} unless stated\n\n{growth()}")
    result = {
        "machine": machine(),
        "ceiling_gflops": flops / 1e9,
        "rows": report.rows,
        "agreements": report.agreements,
    }
    Path(args.output).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if report.disagreeing():
        sys.exit(f"The outputs differ: {', '.join(report.disagreeing())}")


if __name__ == "__main__":
    main()
