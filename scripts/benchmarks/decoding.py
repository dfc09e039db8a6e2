"""The benchmark's rows of decoding: at base size, with a trained `tiny`, its memory, and how it grows."""

import json
import math
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from measuring import Report, peak_during, say, take_turns
from torch import nn
from transformers import AutoTokenizer
from transformers.trainer_callback import PrinterCallback

from hf_vanilla_transformer import (
    MaxTokensBatchSampler,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
    convert,
    paper_config,
)
from hf_vanilla_transformer.inference.translation import translate_ids
from hf_vanilla_transformer.training.presets import preset

VOCAB, BATCH, SOURCE, TARGET = 16_000, 32, 35, 30  # of the rows at base size
DEFAULT_SIZE = {"source length": 100, "batch": 8, "beam": 4}  # of the table of growth


def base_model() -> VanillaTransformerForConditionalGeneration:
    """A random `base` that never ends a sentence by itself."""
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(
        paper_config("base", vocab_size=VOCAB, length_normalization="length", source_lang="en", target_lang="de")
    ).eval()
    model.model.shared.weight.data[model.config.eos_token_id] = 0.0  # its logit is 0, that of 16,000 others random
    return model


def base_sources() -> dict[str, torch.Tensor]:
    """32 sentences of 15 to 35 tokens."""
    lengths = torch.linspace(15, SOURCE, BATCH).round().long()
    mask = (torch.arange(SOURCE) < lengths[:, None]).long()
    return {"input_ids": torch.randint(4, VOCAB, (BATCH, SOURCE)) * mask, "attention_mask": mask}


def words(count: int) -> Any:
    """A tokenizer of `count` made-up words, for the exports of random models."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    vocabulary = {token: i for i, token in enumerate([*special.values(), *(f"w{i}" for i in range(4, count))])}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")), **special
    )


_export: Any = None  # of the process that runs CTranslate2


def _open_export(folder: str) -> None:
    from hf_vanilla_transformer.inference.ctranslate2_runtime import CTranslate2Model

    global _export
    _export = CTranslate2Model(folder, device="cpu")


def _run_export(inputs: dict[str, list], settings: dict[str, Any]) -> list[list[int]]:
    return _export.generate(**{name: torch.tensor(rows) for name, rows in inputs.items()}, **settings).tolist()


class InItsOwnProcess:
    """A CTranslate2 export. In one process its OpenMP threads and torch's would slow both down for good."""

    training, device = False, torch.device("cpu")

    def __init__(self, folder: str, config: Any):
        self.config = config
        self.pool = ProcessPoolExecutor(1, get_context("spawn"), _open_export, (folder,))

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **settings: Any) -> torch.Tensor:
        inputs = {"input_ids": input_ids.tolist(), "attention_mask": attention_mask.tolist()}
        return torch.tensor(self.pool.submit(_run_export, inputs, settings).result())

    def eval(self) -> None: ...

    def train(self, mode: bool) -> None: ...


def exports(model: Any, tokenizer: Any, place: str) -> dict[str, Any]:
    """The model in CTranslate2, as float32 and int8; nothing where CTranslate2 is missing."""
    try:
        from hf_vanilla_transformer.sharing.export import export_ctranslate2

        folder = Path(place, "model")
        model.save_pretrained(folder), tokenizer.save_pretrained(folder)
        for quantization in ("float32", "int8"):
            export_ctranslate2(str(folder), str(Path(place, quantization)), quantization)
    except ImportError as error:
        say(error)
        return {}
    return {
        f"CTranslate2 {name}": InItsOwnProcess(str(Path(place, name)), model.config) for name in ("float32", "int8")
    }


def base_decoding(report: Report, repeats: int) -> None:
    """Batch 32, unequal source lengths, 30 tokens out."""
    model, sources = base_model(), base_sources()
    marian: Any = convert.to_marian(model)
    searches = {
        name: {**sources, "num_beams": beams, "max_new_tokens": TARGET}
        for name, beams in (("beam 4", 4), ("greedy", 1))
    }

    targets = {
        ("MarianMT", "beam 4"): "1.25",
        ("MarianMT", "greedy"): "1.15",
        ("CTranslate2 float32", "beam 4"): "1.0",
    }
    with tempfile.TemporaryDirectory() as place:
        contenders = {"ours": model, "MarianMT": marian, **exports(model, words(VOCAB), place)}
        for name, settings in searches.items():
            acts = {peer: (lambda m=m, s=settings: m.generate(**s)) for peer, m in contenders.items()}
            seconds = take_turns(repeats, **acts)
            ours = BATCH * TARGET / seconds.pop("ours")
            for peer, elapsed in seconds.items():
                theirs = BATCH * TARGET / elapsed
                target = targets.get((peer, name), "")
                report.add(f"`base`, {name}, against {peer}", ours, theirs, ours / theirs, target, "tokens/s")
    for name, settings in searches.items():
        report.agree(f"base, {name}", model.generate(**settings).tolist(), marian.generate(**settings).tolist())


def tiny_decoding(report: Report, text: Any, folder: str | None, updates: int, repeats: int) -> None:
    """The test sentences with a trained `tiny`, in length-sorted batches for everyone."""
    if folder is None:
        say(f"Training `tiny` for {updates} updates ...")
        torch.manual_seed(0)
        model = VanillaTransformerForConditionalGeneration(paper_config("tiny", vocab_size=len(text.tokenizer)))
        with tempfile.TemporaryDirectory() as place:
            settings = {**preset("tiny").training, "max_steps": updates, "warmup_steps": 600, "logging_steps": 10**6}
            args = VanillaTransformerTrainingArguments(
                place, use_cpu=True, disable_tqdm=True, **{**settings, "save_strategy": "no"}
            )
            trainer = VanillaTransformerTrainer(model, args, train_dataset=text.train)
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        tokenizer, sources = text.tokenizer, text.sources
    else:
        model = VanillaTransformerForConditionalGeneration.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        sources = tokenizer(text.test)["input_ids"]
    model.eval()
    model.config.length_normalization = "length"
    marian: Any = convert.to_marian(model)
    special = {model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id}

    def tokens(outputs: list[list[int]]) -> list[list[int]]:
        return [[token for token in output if token not in special] for output in outputs]

    targets = {("MarianMT", "beam 4"): "1.5", ("MarianMT", "greedy"): "1.3"}
    with tempfile.TemporaryDirectory() as place:
        peers = {"MarianMT": marian, **exports(model, tokenizer, place)}
        for beams, name in ((4, "beam 4"), (1, "greedy")):
            outputs: dict[str, list] = {}
            acts = {}
            for peer, contender in {"ours": model, **peers}.items():
                settings = {"num_beams": beams, "length_penalty": 0.6, "max_new_tokens": 80}
                if isinstance(contender, nn.Module) and beams > 1:
                    settings["early_stopping"] = True  # as CTranslate2 does

                def act(peer=peer, contender=contender, settings=settings, outputs=outputs):
                    outputs[peer] = tokens(translate_ids(contender, sources, **settings))

                acts[peer] = act
            seconds = take_turns(repeats, **acts)
            for peer in peers:
                if not peer.endswith("int8"):
                    report.agree(f"tiny on {text.name}, {name}, {peer}", outputs["ours"], outputs[peer])
                ours, theirs = len(sources) / seconds["ours"], len(sources) / seconds[peer]
                what = f"`tiny` on {text.name} ({len(sources)} sentences), {name}, against {peer}"
                report.add(what, ours, theirs, ours / theirs, targets.get((peer, name), ""), "sentences/s")


def measure_memory(what: str) -> None:
    """Run in a process of its own: prints the megabytes."""
    if what == "planning":
        lengths = torch.randint(5, 60, (4_500_000,)).tolist()
        targets = [
            max(1, length + int(noise)) for length, noise in zip(lengths, torch.randn(4_500_000) * 4, strict=True)
        ]
        start = time.perf_counter()

        def plan():
            sampler = MaxTokensBatchSampler(lengths, targets, 25_000)
            print(sum(1 for _ in sampler), file=sys.stderr)

        peak = peak_during(plan)
        print(json.dumps([peak, time.perf_counter() - start]))
        return
    model: Any = base_model()
    if what == "MarianMT":
        model = convert.to_marian(model)
    sources = base_sources()
    model.generate(**sources, num_beams=1, max_new_tokens=2)  # threads and libraries are up
    print(peak_during(lambda: model.generate(**sources, num_beams=4, max_new_tokens=TARGET)))


def memory(report: Report) -> None:
    def child(what: str) -> Any:
        command = [sys.executable, str(Path(__file__).with_name("benchmark.py")), "--measure_memory", what]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return json.loads(output.splitlines()[-1])

    if not sys.platform.startswith("linux"):
        say("Peak memory is measured on Linux only.")
        return
    ours, theirs = child("ours"), child("MarianMT")
    report.add(
        "memory of this beam search beyond the model, MarianMT", ours, theirs, ours / theirs, "at most 0.7", "MB"
    )
    peak, seconds = child("planning")
    report.add("batches planned for 4.5 million pairs", seconds, None, seconds / 10, "at most 1 (10 s)", "s")
    report.add("memory that this needs", peak, None, peak / 500, "at most 1 (500 MB)", "MB")


def growth() -> str:
    """Time and memory of decoding against source length, batch and beam, as a table.

    As many tokens come out as go in, so time may grow with the square of the length (sections 3.2 and 4), and no more
    than in proportion to batch and beam; memory as well, but never with the square of the length.
    """
    model = VanillaTransformerForConditionalGeneration(paper_config("tiny", dropout=0.0, num_encoder_layers=2)).eval()
    model.model.shared.weight.data[model.config.eos_token_id] = 0.0
    model.generate(torch.full((8, 100), 5), num_beams=4, max_new_tokens=100)  # threads and libraries are up
    axes = {"source length": (25, 50, 100, 250, 500, 1000), "batch": (1, 4, 16, 64), "beam": (1, 2, 4, 8, 16)}
    lines = ["| | | s | exponent | MB | exponent |", "|---|---|---|---|---|---|"]
    for axis, values in axes.items():
        last: tuple[float, ...] = ()
        for value in values:
            size = {**DEFAULT_SIZE, axis: value}
            sources = torch.randint(4, model.config.vocab_size, (size["batch"], size["source length"]))
            settings = {"num_beams": size["beam"], "max_new_tokens": size["source length"]}
            start = time.perf_counter()
            megabytes = max(peak_during(partial(model.generate, sources, **settings)), 1.0)
            seconds = time.perf_counter() - start
            now = (value, seconds, megabytes)
            exponents = ["", ""]
            if last:
                exponents = [f"{math.log(now[i] / last[i]) / math.log(value / last[0]):.2f}" for i in (1, 2)]
            lines.append(f"| {axis} | {value} | {seconds:.2f} | {exponents[0]} | {megabytes:.0f} | {exponents[1]} |")
            say(lines[-1])
            last = now
    return "\n".join(lines)
