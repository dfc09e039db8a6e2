"""Decoding with random models of the paper's sizes, against MarianMT and CTranslate2 on the same weights."""

import gc
import shutil
import time
import warnings
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from decoding import (
    SEARCHES,
    SOURCE_LENGTH,
    TARGET_LENGTH,
    VOCAB_SIZE,
    export_to_ctranslate2,
    random_model,
    word_tokenizer,
)
from gpu_results import Results, Setup, describe
from measuring import time_interleaved

from hf_vanilla_transformer import convert


def measure_decoding(setup: Setup, results: Results) -> None:
    """Add one row for each model, search, batch size and dtype."""
    cases = [(size, torch.bfloat16) for size in (1, 64, 256)]
    cases += [(64, torch.float16), (64, torch.float32)]
    if setup.small:
        cases = [(1, torch.bfloat16), (2, torch.float32)]
    for name in setup.models:
        for search, beams in SEARCHES.items():
            for size, dtype in cases:
                row = f"{name}, {search}, batch of {size}, {str(dtype).removeprefix('torch.')}"
                results.measure("decoding", row, partial(_decode, setup, name, beams, size, dtype))


BATCHES = 50  # of a row of `graphs`
GRAPH_SECONDS = 100  # of the whole stage


def measure_graphs(setup: Setup, results: Results) -> None:
    """Add one row for each model, search and batch size: 50 batches of different sizes and lengths, one after another.

    The first call counts like all others, and so does all that `generate` prepares once, as the capture of graphs. A
    row stops after its share of the stage's time; its rates are those of the batches until then.
    """
    results.limit(GRAPH_SECONDS)
    sizes = (2,) if setup.small else (1, 64, 256)
    cases = [(name, *search, size) for name in setup.models for search in SEARCHES.items() for size in sizes]
    # a third is for building the models
    share = GRAPH_SECONDS * 2 / 3 / len(cases)
    for name, search, beams, size in cases:
        run = partial(_decode_batches, setup, name, beams, size, share)
        results.measure("graphs", f"{name}, {search}, batches of {size}", run, seconds=5 if setup.small else share)


@lru_cache(1)
def _peers(name: str, device: torch.device) -> dict[str, Any]:
    """Return a random model and MarianMT with the same weights, both in bfloat16, once they have run."""
    model: Any = random_model(name)
    peers: dict[str, Any] = {"ours": model, "MarianMT": convert.to_marian(model)}
    tokens = torch.full((2, 2), 4, device=device)
    for peer in peers.values():
        # kernels are loaded once per process, for whichever comes first
        peer.to(device, torch.bfloat16)(input_ids=tokens, decoder_input_ids=tokens)
    return peers


def _decode_batches(setup: Setup, name: str, beams: int, size: int, seconds: float) -> dict[str, Any]:
    """Return the sentences per second of `generate` and of MarianMT's, over the same batches as far as each got."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(2 if setup.small else BATCHES):
        # as in a text: batches that are nearly full, of sentences of similar length
        rows = int(torch.randint((3 * size + 3) // 4, size + 1, (), generator=generator))
        length = int(torch.randint(SOURCE_LENGTH // 2, SOURCE_LENGTH + 1, (), generator=generator))
        batches.append(torch.randint(4, VOCAB_SIZE, (rows, length), generator=generator).to(setup.device))
    settings = {"num_beams": beams, "max_new_tokens": TARGET_LENGTH}
    rates: dict[str, float] = {}
    outputs: dict[str, list[list[int]]] = {}
    values: dict[str, Any] = {}
    for peer, candidate in _peers(name, setup.device).items():
        outputs[peer] = []
        start = time.monotonic()
        for count, sources in enumerate(batches, 1):
            inputs = {"input_ids": sources, "attention_mask": torch.ones_like(sources)}
            outputs[peer] += candidate.generate(**inputs, **settings).tolist()
            elapsed = time.monotonic() - start
            if count == 1:
                values[f"first batch, {peer}, s"] = elapsed
            if elapsed > seconds / 2:
                break
        rates[peer] = len(outputs[peer]) / elapsed
        values[f"batches, {peer}"] = count
    equal = [a == b for a, b in zip(outputs["ours"], outputs["MarianMT"], strict=False)]
    return {
        "sentences/s": rates["ours"],
        "MarianMT": rates["MarianMT"],
        "ours / MarianMT": rates["ours"] / rates["MarianMT"],
        **values,
        "equal to MarianMT": sum(equal) / len(equal),
    }


@cache
def _exports(root: Path, name: str, device: str) -> dict[str, Any]:
    """Return the model in CTranslate2, in float16 on a GPU; nothing if CTranslate2 is not installed."""
    shutil.rmtree(root, ignore_errors=True)
    dtype = "float16" if device == "cuda" else "float32"
    return export_to_ctranslate2(random_model(name), word_tokenizer(VOCAB_SIZE), str(root), (dtype,), device)


def _decode(setup: Setup, name: str, beams: int, size: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return the sentences per second of each candidate, and how often the host waited for the GPU."""
    model: Any = random_model(name)
    model.to(setup.device, dtype)
    marian: Any = convert.to_marian(model)
    marian.to(setup.device, dtype)
    candidates = {"ours": model, "MarianMT": marian}
    torch.manual_seed(0)
    sources = torch.randint(4, VOCAB_SIZE, (size, SOURCE_LENGTH), device=setup.device)
    inputs = {"input_ids": sources, "attention_mask": torch.ones_like(sources)}
    settings = {"num_beams": beams, "max_new_tokens": TARGET_LENGTH}
    functions: dict[str, Callable[[], torch.Tensor]] = {
        peer: partial(candidate.generate, **inputs, **settings) for peer, candidate in candidates.items()
    }
    on_host = {key: value.cpu() for key, value in inputs.items()}
    values: dict[str, Any] = {}
    exports = _exports(setup.output / "exports" / name, name, setup.device.type)
    if not exports:
        values["CTranslate2"] = "not installed"
    for peer, export in exports.items():
        function = partial(export.generate, **on_host, **settings)
        try:
            function()
        except Exception as error:  # its wheels need a certain release of CUDA
            values[peer] = describe(error)
        else:
            functions[peer] = function
    seconds = time_interleaved(1 if setup.small else 3, **functions)
    speed = {peer: size / elapsed for peer, elapsed in seconds.items()}
    values = {"tokens/s": speed["ours"] * TARGET_LENGTH, "sentences/s": speed["ours"], **values}
    for peer in (peer for peer in speed if peer != "ours"):
        values |= {peer: speed[peer], f"ours / {peer}": speed["ours"] / speed[peer]}
    outputs = [functions[peer]().tolist() for peer in ("ours", "MarianMT")]
    values["equal to MarianMT"] = sum(a == b for a, b in zip(*outputs, strict=True)) / size
    if setup.device.type == "cuda":
        values["waits per position"] = _count_waits(functions["ours"]) / TARGET_LENGTH
        del marian, candidates, functions["MarianMT"]
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        functions["ours"]()
        values["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
    return values


def _count_waits(function: Callable[[], object]) -> int:
    """Run `function` and return how often the host waited for the GPU, as far as torch can tell."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)
