"""GPU benchmarks: training in bf16 and decoding in float32 on one device, both against MarianMT."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from decoding import TARGET_LENGTH, VOCAB_SIZE, base_model
from measuring import Report, log, time_interleaved
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration, convert, paper_config


def synchronized(function: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Return a function that calls `function` and waits until the device has finished its work."""

    def run() -> None:
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return run


def measure_accelerator(
    report: Report, device: torch.device, names: tuple[str, ...], pairs: int, sentences: int, repeats: int
) -> None:
    """Measure bf16 training of the models `names` and decoding of `base` on a device, both against MarianMT.

    A training batch holds `pairs` pairs of 25 + 25 tokens. Beam search (beam 4) decodes a batch of `sentences`
    sentences, greedy search a single one.
    """
    side = 8192 if device.type == "cuda" else 256
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    gemm = 2 * side**3 / time_interleaved(10, product=synchronized(lambda: a @ b, device))["product"]
    log(f"GEMM rate in bf16: {gemm / 1e12:.1f} TFLOP/s")
    for name in names:
        _measure_training(report, device, name, pairs, repeats, gemm)
    _measure_decoding(report, device, sentences, repeats)


def _measure_training(report: Report, device: torch.device, name: str, pairs: int, repeats: int, gemm: float) -> None:
    """Measure bf16 updates on random tokens, as a share of the GEMM rate and against MarianMT."""
    config = paper_config(name, vocab_size=37_000)
    ours = VanillaTransformerForConditionalGeneration(config)
    models: dict[str, nn.Module] = {"ours": ours, "marian": convert.to_marian(ours)}
    batch = {key: torch.randint(4, 37_000, (pairs, 25), device=device) for key in ("input_ids", "labels")}
    steps = {}
    for peer, model in models.items():
        model.to(device).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step(model=model, optimizer=optimizer, batch=batch) -> None:
            with torch.autocast(device.type, torch.bfloat16):
                loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        steps[peer] = synchronized(step, device)
    seconds = time_interleaved(repeats, **steps)
    with FlopCounterMode(display=False) as counter:
        steps["ours"]()
    rate = counter.get_total_flops() / seconds["ours"]
    speed = {peer: pairs * 25 / elapsed for peer, elapsed in seconds.items()}
    row = f"{device.type}, bf16 training of `{name}`, {pairs * 25:,} + {pairs * 25:,} tokens per batch"
    report.add(f"{row}, share of the GEMM rate", rate / 1e12, gemm / 1e12, rate / gemm, "0.40", "TFLOP/s")
    ratio = speed["ours"] / speed["marian"]
    report.add(f"{row}, against MarianMT", speed["ours"], speed["marian"], ratio, "1.5", "target tokens/s")


def _measure_decoding(report: Report, device: torch.device, sentences: int, repeats: int) -> None:
    """Measure decoding of random sentences of 25 tokens with `base`, against MarianMT."""
    model: Any = base_model()
    model.to(device)
    marian: Any = convert.to_marian(model)
    for beams, size, name in ((4, sentences, f"beam 4, batch {sentences}"), (1, 1, "greedy, batch 1")):
        sources = torch.randint(4, VOCAB_SIZE, (size, 25), device=device)
        settings = {"num_beams": beams, "max_new_tokens": TARGET_LENGTH}
        functions = {
            peer: synchronized(partial(candidate.generate, sources, **settings), device)
            for peer, candidate in (("ours", model), ("marian", marian))
        }
        seconds = time_interleaved(repeats, **functions)
        outputs = [candidate.generate(sources, **settings).tolist() for candidate in (model, marian)]
        report.add_agreement(f"{device.type}, {name}", *outputs)
        speed = {peer: size * TARGET_LENGTH / elapsed for peer, elapsed in seconds.items()}
        row = f"{device.type}, `base`, {name}, against MarianMT"
        report.add(row, speed["ours"], speed["marian"], speed["ours"] / speed["marian"], "2", "tokens/s")
