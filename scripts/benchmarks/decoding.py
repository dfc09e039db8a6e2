"""Decoding benchmarks: speed at base size and with a trained `tiny`, peak memory, and growth with the input's size."""

import copy
import json
import math
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from benchmark_text import Text
from measuring import Report, log, peak_memory_increase, time_interleaved
from torch import nn
from transformers import AutoTokenizer, MarianConfig, MarianMTModel, PreTrainedTokenizerBase
from transformers.trainer_callback import PrinterCallback

from hf_vanilla_transformer import (
    MaxTokensBatchSampler,
    Translator,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
    convert,
    paper_config,
)
from hf_vanilla_transformer.inference.hardware import choose_dtype, has_native_bfloat16
from hf_vanilla_transformer.training.presets import preset

VOCAB_SIZE, BATCH_SIZE, SOURCE_LENGTH, TARGET_LENGTH = 16_000, 32, 35, 30  # of the measurements at base size
OPUS_VOCAB_SIZE = 58_101  # of opus-mt-en-de
SEARCHES = {"beam 4": 4, "greedy": 1}  # names and numbers of beams
# Where products in bfloat16 are emulated, they would take hours
NATIVE = has_native_bfloat16(torch.device("cpu"))
CTRANSLATE2_DTYPES = ("float32", "bfloat16", "int8") if NATIVE else ("float32", "int8")
OURS = {"ours": ""}  # our rows for each peer, and their names in the table
if NATIVE:
    OURS["ours bfloat16"] = "bfloat16, "
PLANNED_PAIRS = 4_500_000  # as many as WMT 2014 English-German has
DEFAULT_SIZE = {"source length": 100, "batch": 8, "beam": 4}  # of the growth table


def random_model(name: str = "base") -> VanillaTransformerForConditionalGeneration:
    """Return a random model that does not end a sentence before the length limit."""
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(
        paper_config(name, vocab_size=VOCAB_SIZE, length_normalization="length", source_lang="en", target_lang="de")
    ).eval()
    model.model.shared.weight.data[model.config.eos_token_id] = 0.0  # its logit is 0, the 16,000 others are random
    return model


def base_sources() -> dict[str, torch.Tensor]:
    """Return 32 random sentences of 15 to 35 tokens, as input ids and attention mask (32, 35)."""
    lengths = torch.linspace(15, SOURCE_LENGTH, BATCH_SIZE).round().long()
    mask = (torch.arange(SOURCE_LENGTH) < lengths[:, None]).long()
    return {"input_ids": torch.randint(4, VOCAB_SIZE, (BATCH_SIZE, SOURCE_LENGTH)) * mask, "attention_mask": mask}


def word_tokenizer(vocab_size: int) -> PreTrainedTokenizerBase:
    """Return a tokenizer with a made-up vocabulary, which the export of a random model needs."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    vocabulary = {token: i for i, token in enumerate([*special.values(), *(f"w{i}" for i in range(4, vocab_size))])}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")), **special
    )


_export: Any = None  # the model, in the process that runs CTranslate2


def _load_export(folder: str, device: str) -> None:
    from hf_vanilla_transformer.plugins.ctranslate2.ctranslate2_runtime import CTranslate2Model

    global _export
    _export = CTranslate2Model(folder, device=device)


def _run_export(inputs: dict[str, list], settings: dict[str, Any]) -> list[list[int]]:
    return _export.generate(**{name: torch.tensor(rows) for name, rows in inputs.items()}, **settings).tolist()


class CTranslate2Process:
    """A CTranslate2 export that runs in a process of its own.

    In the same process, its OpenMP threads and torch's would permanently slow each other down.
    """

    device = torch.device("cpu")

    def __init__(self, folder: str, config: VanillaTransformerConfig, device: str = "cpu"):
        self.config = config
        self.pool = ProcessPoolExecutor(1, get_context("spawn"), _load_export, (folder, device))
        # a pool that is dropped while Python ends races with it ("Bad file descriptor")
        weakref.finalize(self, self.pool.shutdown)

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **settings: Any) -> torch.Tensor:
        inputs = {"input_ids": input_ids.tolist(), "attention_mask": attention_mask.tolist()}
        return torch.tensor(self.pool.submit(_run_export, inputs, settings).result())


def export_to_ctranslate2(
    model: VanillaTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    root: str,
    dtypes: tuple[str, ...] = CTRANSLATE2_DTYPES,
    device: str = "cpu",
) -> dict[str, CTranslate2Process]:
    """Return the model in CTranslate2, in each of `dtypes`; nothing if CTranslate2 is not installed."""
    try:
        from hf_vanilla_transformer.inference.exports import export_model

        folder = Path(root, "model")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        for quantization in dtypes:
            export_model(str(folder), str(Path(root, quantization)), "ctranslate2", quantization)
    except ImportError as error:
        log(error)
        return {}
    return {f"CTranslate2 {name}": CTranslate2Process(str(Path(root, name)), model.config, device) for name in dtypes}


def in_formats(name: str, model: Any) -> dict[str, Any]:
    """Return a model by name, and a copy in bfloat16 where that is native."""
    copies = {f"{name} bfloat16": copy.deepcopy(model).to(torch.bfloat16)} if NATIVE else {}
    return {name: model, **copies}


def report_choice(report: Report, row: str, seconds: Mapping[str, float], in_bfloat16: bool) -> None:
    """Add how long the number format that "auto" chooses takes, beside the faster one."""
    if NATIVE:
        chosen = seconds["ours bfloat16" if in_bfloat16 else "ours"]
        best = min(seconds["ours"], seconds["ours bfloat16"])
        report.add(
            f"{row}: the choice of `auto`, against the faster", chosen, best, chosen / best, "at most 1.03", "s"
        )


def measure_base_decoding(report: Report, repeats: int) -> None:
    """Measure decoding at base size: 32 sentences of different lengths per batch, 30 output tokens each."""
    model, sources = random_model(), base_sources()
    marian: Any = convert.to_marian(model)
    searches: dict[str, dict[str, Any]] = {
        name: {**sources, "num_beams": beams, "max_new_tokens": TARGET_LENGTH} for name, beams in SEARCHES.items()
    }
    targets = {
        ("ours", "MarianMT", "beam 4"): "1.25",
        ("ours", "MarianMT", "greedy"): "1.2",
        ("ours", "CTranslate2 float32", "beam 4"): "1.15",
        ("ours", "CTranslate2 float32", "greedy"): "1.5",
        ("ours bfloat16", "CTranslate2 int8", "beam 4"): "1.1",
        ("ours bfloat16", "CTranslate2 int8", "greedy"): "1.1",
    }
    with tempfile.TemporaryDirectory() as root:
        exports = export_to_ctranslate2(model, word_tokenizer(VOCAB_SIZE), root)
        candidates = {**in_formats("ours", model), **in_formats("MarianMT", marian), **exports}
        for name, settings in searches.items():
            functions = {peer: partial(candidate.generate, **settings) for peer, candidate in candidates.items()}
            seconds = time_interleaved(repeats, **functions)
            speeds = {candidate: BATCH_SIZE * TARGET_LENGTH / elapsed for candidate, elapsed in seconds.items()}
            for our, dtype in OURS.items():
                for peer in (candidate for candidate in speeds if candidate not in OURS):
                    target, ratio = targets.get((our, peer, name), ""), speeds[our] / speeds[peer]
                    row = f"`base`, {dtype}{name}, against {peer}"
                    report.add(row, speeds[our], speeds[peer], ratio, target, "tokens/s")
            choice = choose_dtype(model, BATCH_SIZE, SEARCHES[name])
            report_choice(report, f"`base`, {name}", seconds, choice == torch.bfloat16)
    for name, settings in searches.items():
        outputs = [candidate.generate(**settings).tolist() for candidate in (model, marian)]
        report.add_agreement(f"base, {name}", *outputs)


def random_opus_model() -> MarianMTModel:
    """Return a random MarianMT model with OPUS-MT's size and settings, which ends a sentence only at the limit."""
    torch.manual_seed(0)
    padding = OPUS_VOCAB_SIZE - 1
    config = MarianConfig(
        vocab_size=OPUS_VOCAB_SIZE,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=padding,
        decoder_start_token_id=padding,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = MarianMTModel(config).eval()
    # larger differences between tokens than rounding errors
    model.final_logits_bias.normal_()
    model.final_logits_bias[0, 0] = -1e4
    model.generation_config.update(
        bad_words_ids=[[padding]], forced_eos_token_id=0, renormalize_logits=True, max_length=1 + TARGET_LENGTH
    )
    return model


def measure_opus_decoding(report: Report, repeats: int) -> None:
    """Measure a converted MarianMT model with OPUS-MT's settings: batches of 32 sentences, and one sentence."""
    marian = random_opus_model()
    ours: Any = convert.from_marian(marian)
    models = in_formats("ours", ours)
    batch = base_sources()
    # the longest, without padding
    sentence = {name: rows[-1:] for name, rows in batch.items()}
    targets = {("ours", "beam 4"): "1.4", ("ours bfloat16", "beam 4"): "2.0"}
    for size, sources in {"batches of 32": batch, "one sentence": sentence}.items():
        for name, beams in SEARCHES.items():
            candidates = {**models, "MarianMT": marian}
            functions = {
                peer: partial(candidate.generate, **sources, num_beams=beams) for peer, candidate in candidates.items()
            }
            seconds = time_interleaved(repeats, **functions)
            tokens = TARGET_LENGTH * len(sources["input_ids"])
            for our in models:
                speed, peer_speed = (tokens / seconds[peer] for peer in (our, "MarianMT"))
                target = "1.0" if size == "one sentence" else targets.get((our, name), "")
                row = f"OPUS-MT's settings, {OURS[our]}{name}, {size}, against MarianMT"
                report.add(row, speed, peer_speed, speed / peer_speed, target, "tokens/s")
            outputs = [functions[peer]().tolist() for peer in ("ours", "MarianMT")]
            report.add_agreement(f"OPUS-MT's settings, {name}, {size}", *outputs)


def train_tiny(text: Text, updates: int) -> VanillaTransformerForConditionalGeneration:
    """Return a `tiny` model trained on the training text."""
    log(f"Training `tiny` for {updates} updates ...")
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(paper_config("tiny", vocab_size=len(text.tokenizer)))
    settings = {**preset("tiny").training, "max_steps": updates, "warmup_steps": 600, "logging_steps": 10**6}
    settings["save_strategy"] = "no"
    with tempfile.TemporaryDirectory() as folder:
        args = VanillaTransformerTrainingArguments(folder, use_cpu=True, disable_tqdm=True, **settings)
        trainer = VanillaTransformerTrainer(model, args, train_dataset=text.train)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return model


def measure_tiny_decoding(report: Report, text: Text, folder: str | None, updates: int, repeats: int) -> None:
    """Measure decoding of the test sentences, in the same length-sorted batches for every peer.

    The model is the one saved in `folder`, or a `tiny` trained for `updates` updates.
    """
    if folder is None:
        model = train_tiny(text, updates)
        tokenizer: PreTrainedTokenizerBase = text.tokenizer
        sources = text.sources
    else:
        model = VanillaTransformerForConditionalGeneration.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        sources = tokenizer(text.test)["input_ids"]
    model.eval()
    model.config.length_normalization = "length"
    special = {model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id}

    def without_special_tokens(outputs: list[list[int]]) -> list[list[int]]:
        return [[token for token in output if token not in special] for output in outputs]

    targets = {
        ("ours", "MarianMT", "beam 4"): "1.5",
        ("ours", "MarianMT", "greedy"): "1.3",
        **{
            ("ours bfloat16", f"CTranslate2 {dtype}", name): "1.0" for dtype in CTRANSLATE2_DTYPES for name in SEARCHES
        },
    }
    marian = convert.to_marian(model)
    models = in_formats("ours", model)
    with tempfile.TemporaryDirectory() as root:
        peers = in_formats("MarianMT", marian) | export_to_ctranslate2(model, tokenizer, root)
        for name, beams in SEARCHES.items():
            outputs: dict[str, list[list[int]]] = {}
            functions = {}
            for peer, candidate in {**models, **peers}.items():
                settings = {"num_beams": beams, "length_penalty": 0.6, "max_new_tokens": 80}
                if isinstance(candidate, nn.Module) and beams > 1:
                    settings["early_stopping"] = True  # as CTranslate2 does

                def decode(peer=peer, candidate=candidate, settings=settings, outputs=outputs) -> None:
                    found = Translator(candidate, tokenizer).translate_ids(sources, **settings)
                    outputs[peer] = without_special_tokens([output.hypotheses[0] for output in found])

                functions[peer] = decode
            seconds = time_interleaved(repeats, **functions)
            speeds = {candidate: len(sources) / elapsed for candidate, elapsed in seconds.items()}
            for peer in ("MarianMT", "CTranslate2 float32"):
                if peer in peers:
                    report.add_agreement(f"tiny on {text.name}, {name}, {peer}", outputs["ours"], outputs[peer])
            if NATIVE:
                scores = [text.bleu(tokenizer.batch_decode(outputs[our])) for our in OURS]
                row = f"BLEU of `tiny` on {text.name}, {name}, bfloat16 against float32 (difference)"
                report.add(row, scores[1], scores[0], scores[1] - scores[0], "at least -0.1", "BLEU")
            choice = choose_dtype(model, len(sources), beams)
            report_choice(report, f"`tiny` on {text.name}, {name}", seconds, choice == torch.bfloat16)
            for our, dtype in OURS.items():
                for peer in peers:
                    target, ratio = targets.get((our, peer, name), ""), speeds[our] / speeds[peer]
                    row = f"`tiny` on {text.name} ({len(sources)} sentences), {dtype}{name}, against {peer}"
                    report.add(row, speeds[our], speeds[peer], ratio, target, "sentences/s")


def print_memory(task: str) -> None:
    """Print the peak megabytes of a task as JSON, with its seconds for "planning"; run it in a process of its own.

    The tasks are beam search at base size ("ours", "MarianMT") and "planning" the batches of 4.5 million pairs.
    """
    if task == "planning":
        lengths = torch.randint(5, 60, (PLANNED_PAIRS,)).tolist()
        targets = [
            max(1, length + int(noise)) for length, noise in zip(lengths, torch.randn(PLANNED_PAIRS) * 4, strict=True)
        ]
        start = time.perf_counter()

        def plan() -> None:
            sampler = MaxTokensBatchSampler(lengths, targets, 25_000)
            print(sum(1 for _ in sampler), file=sys.stderr)

        peak = peak_memory_increase(plan)
        print(json.dumps([peak, time.perf_counter() - start]))
        return
    model: Any = random_model()
    if task == "MarianMT":
        model = convert.to_marian(model)
    sources = base_sources()
    model.generate(**sources, num_beams=1, max_new_tokens=2)  # start threads and load libraries first
    print(peak_memory_increase(lambda: model.generate(**sources, num_beams=4, max_new_tokens=TARGET_LENGTH)))


def measure_memory(report: Report) -> None:
    """Measure the peak memory of beam search and of planning batches, each in a new process."""

    def run(task: str) -> Any:
        command = [sys.executable, str(Path(__file__).with_name("benchmark.py")), "--measure_memory", task]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return json.loads(output.splitlines()[-1])

    if not sys.platform.startswith("linux"):
        log("Peak memory is measured on Linux only.")
        return
    ours, theirs = run("ours"), run("MarianMT")
    row = "peak memory of `base`, beam 4, beyond the model, against MarianMT"
    report.add(row, ours, theirs, ours / theirs, "at most 0.7", "MB")
    peak, seconds = run("planning")
    report.add("planning batches for 4.5 million pairs", seconds, None, seconds / 10, "at most 1 (10 s)", "s")
    report.add("peak memory of this planning", peak, None, peak / 500, "at most 1 (500 MB)", "MB")


def growth_table() -> str:
    """Return a table of the time and memory of decoding against source length, batch and beam.

    The output is as long as the input, so time may grow with the square of the length (sections 3.2 and 4), and at
    most in proportion to batch and beam. Memory may grow in proportion to all three, but never with the square of the
    length.
    """
    model = VanillaTransformerForConditionalGeneration(paper_config("tiny", dropout=0.0, num_encoder_layers=2)).eval()
    model.model.shared.weight.data[model.config.eos_token_id] = 0.0
    model.generate(torch.full((8, 100), 5), num_beams=4, max_new_tokens=100)  # start threads and load libraries first
    axes = {"source length": (25, 50, 100, 250, 500, 1000), "batch": (1, 4, 16, 64), "beam": (1, 2, 4, 8, 16)}
    lines = ["| | | s | exponent | MB | exponent |", "|---|---|---|---|---|---|"]
    for axis, values in axes.items():
        last: tuple[float, ...] = ()
        for value in values:
            size = {**DEFAULT_SIZE, axis: value}
            sources = torch.randint(4, model.config.vocab_size, (size["batch"], size["source length"]))
            settings = {"num_beams": size["beam"], "max_new_tokens": size["source length"]}
            start = time.perf_counter()
            megabytes = max(peak_memory_increase(partial(model.generate, sources, **settings)), 1.0)
            seconds = time.perf_counter() - start
            now = (value, seconds, megabytes)
            exponents = ["", ""]
            if last:
                exponents = [f"{math.log(now[i] / last[i]) / math.log(value / last[0]):.2f}" for i in (1, 2)]
            lines.append(f"| {axis} | {value} | {seconds:.2f} | {exponents[0]} | {megabytes:.0f} | {exponents[1]} |")
            log(lines[-1])
            last = now
    return "\n".join(lines)
