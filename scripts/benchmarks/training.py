"""Training benchmarks: complete runs of `tiny`, one update of `base`, and the projection with its loss."""

import statistics
import tempfile
import time
from functools import partial
from typing import Any

import torch
from benchmark_text import Text
from decoding import NATIVE, OURS, VOCAB_SIZE, report_choice
from measuring import Report, log, peak_memory_increase, synchronize, time_interleaved
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback
from transformers.trainer_callback import PrinterCallback

from hf_vanilla_transformer import (
    MaxTokensBatchSampler,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
    convert,
    paper_config,
)
from hf_vanilla_transformer.data.batching import Seq2SeqCollator
from hf_vanilla_transformer.model.configuration_vanilla_transformer import IGNORED_LABEL
from hf_vanilla_transformer.model.loss_vanilla_transformer import projected_cross_entropy, smoothed_cross_entropy
from hf_vanilla_transformer.training.device import choose_precision
from hf_vanilla_transformer.training.presets import preset


class Throughput(TrainerCallback):
    """Measure target tokens per second, without padding, from the end of the warm-up to the end of the last update."""

    def __init__(self, warm_up: int = 8) -> None:
        self.warm_up = warm_up
        self.counts: list[torch.Tensor] = []
        self.ends: list[float] = []

    def attach(self, trainer: Any) -> None:
        """Count the tokens of every batch that `trainer` is given."""
        step = trainer.training_step

        def training_step(model: nn.Module, inputs: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            self.counts.append(inputs["labels"].ne(IGNORED_LABEL).sum())
            return step(model, inputs, *args, **kwargs)

        trainer.training_step = training_step
        trainer.add_callback(self)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in (self.warm_up, state.max_steps):
            synchronize()
        self.ends.append(time.perf_counter())

    def tokens_per_second(self) -> float:
        return float(sum(self.counts[self.warm_up : len(self.ends)])) / (self.ends[-1] - self.ends[self.warm_up - 1])


class OurBatchesTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` with the batches of `VanillaTransformerTrainer`."""

    get_train_dataloader = VanillaTransformerTrainer.get_train_dataloader
    _loader = VanillaTransformerTrainer._loader


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
            trainer = trainer_class(model, args, data_collator=collator, train_dataset=text.train)
            speed = Throughput()
            speed.attach(trainer)
            trainer.remove_callback(PrinterCallback)
            trainer.train()
            speeds.setdefault(name, []).append(speed.tokens_per_second())

    assert config.pad_token_id is not None
    assert config.decoder_start_token_id is not None
    collator = Seq2SeqCollator(config.pad_token_id, config.decoder_start_token_id)
    peers = ["random", "group_by_length", "our batches", *(["our batches, bfloat16"] if NATIVE else [])]
    for _ in range(repeats):
        for name in OURS:
            ours = VanillaTransformerForConditionalGeneration(config)
            run(name, VanillaTransformerTrainer, ours, collator, max_tokens=max_tokens, bf16="bfloat16" in name)
        for name in peers:
            marian = convert.to_marian(VanillaTransformerForConditionalGeneration(config))
            if name.startswith("our batches"):
                settings = {"max_tokens": max_tokens, "lr_scheduler_type": "linear", "bf16": "bfloat16" in name}
                if settings["bf16"]:
                    marian.set_attn_implementation("eager")  # as ours, because it is faster
                run(name, OurBatchesTrainer, marian, collator, **settings)
            else:
                theirs = DataCollatorForSeq2Seq(text.tokenizer, model=marian)
                batching = {"per_device_train_batch_size": pairs, "train_sampling_strategy": name}
                run(name, Seq2SeqTrainer, marian, theirs, **batching)
    median = {name: statistics.median(values) for name, values in speeds.items()}
    ours_mean = len(text.train) * tokens_per_pair / len(sampler)
    log(f"{pairs} pairs per batch with {pairs * tokens_per_pair:.0f} target tokens; {ours_mean:.0f} in our batches")
    fastest = max((name for name in peers if name.startswith("our batches")), key=median.__getitem__)
    targets = {("ours", "random"): "2.0", ("ours", "our batches"): "1.15"}
    targets |= {("ours bfloat16", "random"): "3.5", ("ours bfloat16", fastest): "1.3"}
    for our, dtype in OURS.items():
        for name in peers:
            row = f"training `tiny` on {text.name}, {dtype}against MarianMT with Seq2SeqTrainer, {name}"
            ratio = median[our] / median[name]
            report.add(row, median[our], median[name], ratio, targets.get((our, name), ""), "target tokens/s")
    args = VanillaTransformerTrainingArguments("unused", use_cpu=True, max_tokens=max_tokens, bf16="auto")
    choose_precision(VanillaTransformerForConditionalGeneration(config), args)
    seconds = {our: 1000 / median[our] for our in OURS}
    report_choice(report, f"training `tiny` on {text.name}, 1,000 target tokens", seconds, args.bf16 is True)


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

    candidates = {"ours": ours, "theirs": theirs}
    if NATIVE:
        candidates["bfloat16"] = partial(ours, torch.bfloat16)
    seconds = time_interleaved(repeats, **candidates)
    with FlopCounterMode(display=False) as counter:
        ours()
    rate = counter.get_total_flops() / seconds["ours"]
    report.add("`base` training step, share of the GEMM rate", rate / 1e9, gemm / 1e9, rate / gemm, "0.60", "GFLOP/s")
    if NATIVE:
        row = "the same step in bfloat16, against our float32"
        ratio = seconds["ours"] / seconds["bfloat16"]
        report.add(row, seconds["bfloat16"], seconds["ours"], ratio, "2.0", "s")
    ratio = seconds["theirs"] / seconds["ours"]
    report.add("the same step, against torch.nn.Transformer", seconds["ours"], seconds["theirs"], ratio, "", "s")


def measure_loss(report: Report, rows: int, repeats: int) -> None:
    """Measure the projection at base size to 37,000 entries with its loss, in chunks against all logits at once."""
    torch.manual_seed(0)
    projection, states = nn.Linear(512, 37_000, bias=False), torch.randn(rows, 512, requires_grad=True)
    labels = torch.randint(4, 37_000, (rows,))

    def chunked() -> None:
        projected_cross_entropy(projection, states, labels, 0.1, 0)[0].backward()

    def whole() -> None:
        smoothed_cross_entropy(projection(states), labels, 0.1, 0).backward()

    seconds = time_interleaved(repeats, chunked=chunked, whole=whole)
    row = f"projection and loss of {rows:,} tokens x 37,000 entries, in chunks against at once"
    report.add(row, seconds["chunked"], seconds["whole"], seconds["chunked"] / seconds["whole"], "at most 1.05", "s")
    peaks = [peak_memory_increase(function) for function in (chunked, whole)]
    report.add(f"peak memory of this {row}", peaks[0], peaks[1], peaks[0] / peaks[1], "below 1,500 MB", "MB")
