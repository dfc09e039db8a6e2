"""The referee: this package beside its peers, on the same weights, data and machine, in one run.

python scripts/benchmark.py --quick     every CPU row, under 10 minutes on 2 cores
python scripts/benchmark.py --full      more repetitions, growth with length, batch and beam, a GPU's rows where one is

Peers take turns in every repetition, and medians are compared. The text is Multi30k where it lies at ../shared/data,
else the built-in phrases. Prints a Markdown table, writes the same as JSON to --output, and exits 0 only if the peers
that should say the same do so on 99 % of the sentences.
"""

import argparse
import ctypes
import gc
import json
import math
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)
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
from hf_vanilla_transformer.batching import IGNORED_LABEL, Seq2SeqCollator
from hf_vanilla_transformer.data import load_pairs, tokenize_pairs
from hf_vanilla_transformer.phrases import splits
from hf_vanilla_transformer.presets import preset
from hf_vanilla_transformer.translation import translate_ids

MULTI30K = Path(__file__).parents[2] / "shared" / "data" / "multi30k" / "tok"
VOCAB, BATCH, SOURCE, TARGET = 16_000, 32, 35, 30  # of the rows at base size
DEFAULT_SIZE = {"source length": 100, "batch": 8, "beam": 4}  # of the table of growth


def say(*words: Any) -> None:
    print(*words, file=sys.stderr, flush=True)


class Report:
    """Rows of what was measured, each with its target where there is one."""

    def __init__(self):
        self.rows: list[dict[str, Any]] = []
        self.agreements: dict[str, float] = {}

    def add(self, what: str, ours: float, peer: float | None, ratio: float, target: str = "", unit: str = "") -> None:
        self.rows.append(
            {"row": what, "unit": unit, "ours": ours, "peer": peer, "ratio": round(ratio, 3), "target": target}
        )
        say(f"{what}: {ours:.4g} {unit}, peer {peer if peer is None else round(peer, 3)}, ratio {ratio:.2f} {target}")

    def agree(self, what: str, ours: list, theirs: list) -> None:
        self.agreements[what] = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)
        say(f"{what}: {self.agreements[what]:.1%} equal")

    def disagreeing(self) -> list[str]:
        return [what for what, share in self.agreements.items() if share < 0.99]

    def table(self) -> str:
        lines = ["| measure | unit | ours | peer | ratio | to reach |", "|---|---|---|---|---|---|"]
        for row in self.rows:
            peer = "" if row["peer"] is None else f"{row['peer']:.4g}"
            cells = (row["row"], row["unit"], f"{row['ours']:.4g}", peer, f"{row['ratio']:.2f}", row["target"])
            lines.append(f"| {' | '.join(cells)} |")
        lines += [f"\n{what}: {share:.1%} of the outputs equal." for what, share in self.agreements.items()]
        return "\n".join(lines)


def take_turns(repeats: int, **contenders: Callable[[], Any]) -> dict[str, float]:
    """The median seconds of each, after one untimed turn. A short rest lets the last one's threads go to sleep."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, act in contenders.items():
            time.sleep(0.3)
            start = time.perf_counter()
            act()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def machine() -> str:
    """The processor, threads and versions."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else model
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    import transformers

    return (
        f"{model}, {torch.get_num_threads()} threads{gpu}; Python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}"
    )


def ceiling() -> float:
    """Floating-point operations a second of a large float32 matrix product."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return 2 * 2048**3 / take_turns(10, product=lambda: a @ b)["product"]


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
        self.collate, self.counts, self.ends = collate, [], []

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
    _batch_sampler = VanillaTransformerTrainer._batch_sampler


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
        collator = Seq2SeqCollator(config.pad_token_id, config.decoder_start_token_id)
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
        layers.zero_grad(), embedding.zero_grad()
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


def exports(model: nn.Module, tokenizer: Any, place: str) -> dict[str, Any]:
    """The model in CTranslate2, as float32 and int8; nothing where CTranslate2 is missing."""
    try:
        from hf_vanilla_transformer.export import CTranslate2Model, export_ctranslate2

        folder = Path(place, "model")
        model.save_pretrained(folder), tokenizer.save_pretrained(folder)
        for quantization in ("float32", "int8"):
            export_ctranslate2(str(folder), str(Path(place, quantization)), quantization)
    except ImportError as error:
        say(error)
        return {}
    return {
        f"CTranslate2 {name}": CTranslate2Model(str(Path(place, name)), device="cpu") for name in ("float32", "int8")
    }


def base_decoding(report: Report, repeats: int) -> None:
    """Batch 32, unequal source lengths, 30 tokens out."""
    model, sources = base_model(), base_sources()
    marian = convert.to_marian(model)
    searches = {
        name: {**sources, "num_beams": beams, "max_new_tokens": TARGET}
        for name, beams in (("beam 4", 4), ("greedy", 1))
    }

    def compare(peers: dict[str, Any], targets: dict[tuple[str, str], str]) -> None:
        for name, settings in searches.items():
            acts = {n: (lambda m=m, s=settings: m.generate(**s)) for n, m in {"ours": model, **peers}.items()}
            seconds = take_turns(repeats, **acts)
            ours = BATCH * TARGET / seconds.pop("ours")
            for peer, elapsed in seconds.items():
                theirs = BATCH * TARGET / elapsed
                target = targets.get((peer, name), "")
                report.add(f"`base`, {name}, against {peer}", ours, theirs, ours / theirs, target, "tokens/s")

    compare({"MarianMT": marian}, {("MarianMT", "beam 4"): "1.25", ("MarianMT", "greedy"): "1.15"})
    for name, settings in searches.items():
        report.agree(f"base, {name}", model.generate(**settings).tolist(), marian.generate(**settings).tolist())
    with tempfile.TemporaryDirectory() as place:  # not in turn with MarianMT: its threads linger a while
        compare(exports(model, words(VOCAB), place), {("CTranslate2 float32", "beam 4"): "1.0"})


def tiny_decoding(report: Report, text: Text, folder: str | None, updates: int, repeats: int) -> None:
    """The test sentences with a trained `tiny`, in length-sorted batches for everyone."""
    if folder is None:
        say(f"Training `tiny` for {updates} updates ...")
        model = VanillaTransformerForConditionalGeneration(paper_config("tiny", vocab_size=len(text.tokenizer)))
        with tempfile.TemporaryDirectory() as place:
            settings = {**preset("tiny").training, "max_steps": updates, "warmup_steps": 400, "logging_steps": 10**6}
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
    marian = convert.to_marian(model)
    special = {model.config.pad_token_id, model.config.bos_token_id, model.config.eos_token_id}

    def tokens(outputs: list[list[int]]) -> list[list[int]]:
        return [[token for token in output if token not in special] for output in outputs]

    def compare(peers: dict[str, Any], targets: dict[str, str], repeats: int) -> None:
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
                aim = targets.get(name, "")
                report.add(what, ours, theirs, ours / theirs, aim, "sentences/s")

    compare({"MarianMT": marian}, {"beam 4": "1.5", "greedy": "1.3"}, repeats)
    with tempfile.TemporaryDirectory() as place:
        compare(exports(model, tokenizer, place), {}, repeats - 2)


def _resident() -> float:
    """Megabytes of this process."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def _peak_during(act: Callable[[], Any]) -> float:
    """Megabytes that `act` needs at its peak beyond what is there before, looked at every 2 ms."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before counts as new when it is used again
    before, peak, done = _resident(), 0.0, threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, _resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    act()
    done.set()
    watcher.join()
    return max(peak, _resident()) - before


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

        peak = _peak_during(plan)
        print(json.dumps([peak, time.perf_counter() - start]))
        return
    model: Any = base_model()
    if what == "MarianMT":
        model = convert.to_marian(model)
    sources = base_sources()
    model.generate(**sources, num_beams=1, max_new_tokens=2)  # threads and libraries are up
    print(_peak_during(lambda: model.generate(**sources, num_beams=4, max_new_tokens=TARGET)))


def memory(report: Report) -> None:
    def child(what: str) -> Any:
        command = [sys.executable, __file__, "--measure_memory", what]
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
        models = {"ours": ours, "marian": convert.to_marian(ours)}
        batch = {key: torch.randint(4, 37_000, (pairs, 25), device=device) for key in ("input_ids", "labels")}
        steps = {}
        for peer, model in models.items():
            model.to(device).train()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

            def step(model=model, optimizer=optimizer, batch=batch):
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
    model = base_model().to(device)
    marian = convert.to_marian(model)
    for beams, size, name in ((4, sentences, f"beam 4, batch {sentences}"), (1, 1, "greedy, batch 1")):
        sources = torch.randint(4, VOCAB, (size, 25), device=device)
        settings = {"num_beams": beams, "max_new_tokens": TARGET}
        acts = {
            peer: settled(lambda m=m, s=sources, k=settings: m.generate(s, **k))
            for peer, m in (("ours", model), ("marian", marian))
        }
        seconds = take_turns(repeats, **acts)
        outputs = [m.generate(sources, **settings).tolist() for m in (model, marian)]
        report.agree(f"{device.type}, {name}", *outputs)
        speed = {peer: size * TARGET / elapsed for peer, elapsed in seconds.items()}
        what = f"{device.type}, `base`, {name}, against MarianMT"
        report.add(what, speed["ours"], speed["marian"], speed["ours"] / speed["marian"], "2", "tokens/s")


def growth() -> str:
    """Time and memory of decoding against source length, batch and beam, as a table.

    As many tokens come out as go in, so time may grow with the square of the length (sections 3.2 and 4), and no more
    than in proportion to batch and beam; memory as well, but never with the square of the length.
    """
    model = VanillaTransformerForConditionalGeneration(paper_config("tiny", dropout=0.0, num_encoder_layers=2)).eval()
    model.model.shared.weight.data[model.config.eos_token_id] = 0.0
    axes = {"source length": (25, 50, 100, 250, 500, 1000), "batch": (1, 4, 16, 64), "beam": (1, 2, 4, 8, 16)}
    lines = ["| | | s | exponent | MB | exponent |", "|---|---|---|---|---|---|"]
    for axis, values in axes.items():
        last: tuple[float, ...] = ()
        for value in values:
            size = {**DEFAULT_SIZE, axis: value}
            sources = torch.randint(4, model.config.vocab_size, (size["batch"], size["source length"]))
            settings = {"num_beams": size["beam"], "max_new_tokens": size["source length"]}
            start = time.perf_counter()
            megabytes = max(_peak_during(lambda s=sources, k=settings: model.generate(s, **k)), 1.0)
            seconds = time.perf_counter() - start
            now = (value, seconds, megabytes)
            exponents = ["", ""]
            if last:
                exponents = [f"{math.log(now[i] / last[i]) / math.log(value / last[0]):.2f}" for i in (1, 2)]
            lines.append(f"| {axis} | {value} | {seconds:.2f} | {exponents[0]} | {megabytes:.0f} | {exponents[1]} |")
            say(lines[-1])
            last = now
    return "\n".join(lines)


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
        "--model", help="a trained model for the rows of decoding; else `tiny` is trained for a minute"
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
    tiny_decoding(report, text, args.model, 600, repeats)
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
