"""Training in bfloat16 on WMT text, by batch size and attention, with compiled layers, and against MarianMT."""

import gc
import time
from functools import partial
from typing import Any

import torch
from datasets import concatenate_datasets
from gpu_results import MissingError, OutOfTimeError, Results, Setup
from measuring import describe_machine, synchronize, time_interleaved
from torch.utils.flop_counter import FlopCounterMode
from training import OurBatchesTrainer, Throughput
from transformers.trainer_callback import PrinterCallback
from transformers.utils import is_flash_attn_2_available

from hf_vanilla_transformer import (
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
    convert,
    paper_config,
    train_tokenizer,
)
from hf_vanilla_transformer.data.batching import Seq2SeqCollator
from hf_vanilla_transformer.data.cleaning import tokenize_pairs
from hf_vanilla_transformer.data.source import TextFile
from hf_vanilla_transformer.inference.hardware import has_native_bfloat16

PAPER = {"vocab_size": 37_000}  # section 5.1; the sample of text uses only a part of it
# the model of --small
SMALL = {"vocab_size": 1_000, "d_model": 32, "d_ff": 64, "num_encoder_layers": 1, "num_decoder_layers": 1}
BATCH_SIZES = (6_250, 12_500, 25_000, 50_000)  # target tokens
DEFAULT_BATCH_SIZE = 25_000
COMPILED_SECONDS = 100  # of the stage `compiled`


def peak_rate(device: torch.device) -> float:
    """Return the floating-point operations per second of a large matrix product in bfloat16."""
    side = 8192 if device.type == "cuda" else 64
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))

    def products() -> None:
        for _ in range(20):
            a @ b

    return 20 * 2 * side**3 / time_interleaved(5, products=products)["products"]


def flops_per_token(model: VanillaTransformerForConditionalGeneration) -> float:
    """Return the operations of a forward and backward pass, per target token, for pairs of 25 + 25 tokens."""
    tokens = torch.randint(4, model.config.vocab_size, (40, 25), device=model.device)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, labels=tokens, smoothing=0.1).loss.backward()
    model.zero_grad()
    return counter.get_total_flops() / tokens.numel()


def read_rows(setup: Setup) -> Any:
    """Return the tokenized pairs of the WMT text, repeated so that few runs are longer than an epoch."""
    pairs = TextFile(("en", "de"), str(setup.text / "wmt" / "train")).pairs()
    texts = [text for side in ("source", "target") for text in pairs[side] if text]
    tokenizer = train_tokenizer(texts, SMALL["vocab_size"] if setup.small else 16_000)
    rows, _ = tokenize_pairs(pairs, tokenizer, 256, None)
    return concatenate_datasets([rows] * (1 if setup.small else 10))


def measure_training(setup: Setup, results: Results) -> None:
    """Add one row for each variant of training `base` and `big`; the slowest, which compiles, comes last."""
    rows = read_rows(setup)
    standard = 500 if setup.small else DEFAULT_BATCH_SIZE
    variants: dict[str, dict[str, Any]] = {
        f"{size:,} tokens": {"max_tokens": size} for size in ((250, 500) if setup.small else BATCH_SIZES)
    }
    variants["MarianMT with Seq2SeqTrainer and our batches"] = {"marian": True, "flash": True}
    variants["two workers load the data"] = {"dataloader_num_workers": 2}
    variants["with cuDNN's attention"] = {"cudnn": True}
    variants["with the kernels of FlashAttention"] = {"flash": True}
    variants |= {name: {"attention": name} for name in ("eager", "flash_attention_2")}
    variants["float32"] = {"bf16": False, "tf32": False}
    variants["float32, matrix products in TF32"] = {"bf16": False, "tf32": True}
    variants["float16"] = {"bf16": False, "fp16": True}
    variants["flex_attention"] = {"attention": "flex_attention"}
    bf16 = has_native_bfloat16(setup.device)  # where it is emulated, products take 100 times as long
    for variant, changes in variants.items():
        for name in setup.models:
            settings = {"max_tokens": standard, "bf16": bf16, **changes}
            slow = variant == "flex_attention"
            run = partial(_train, setup, results, name, rows, settings)
            results.measure(f"training {name}", variant, run, seconds=90 if slow and not setup.small else 15)


def measure_compiled(setup: Setup, results: Results) -> None:
    """Add rows of `base` and `big` as they are and with compiled layers, as many as 100 seconds suffice for.

    The seconds of a row include reading its batches and, if it is compiled, the compiler; its rate does not.
    """
    results.limit(COMPILED_SECONDS)
    rows = read_rows(setup)
    tokens = 500 if setup.small else DEFAULT_BATCH_SIZE
    for name in setup.models:
        for variant, compile in (("as it is", False), ("compiled", True)):
            settings = {"max_tokens": tokens, "bf16": has_native_bfloat16(setup.device), "torch_compile": compile}
            run = partial(_train_timed, setup, results, name, rows, settings)
            # of which the compiler needs 46 s if nothing is in its cache
            needed = 5 if setup.small else 55 if compile else 10
            results.measure("compiled", f"{name}, {variant}", run, seconds=needed)


def build_trainer(setup: Setup, name: str, rows: Any, settings: dict[str, Any]) -> tuple[Any, float]:
    """Return a trainer that saves nothing, and the model's operations per target token.

    Args:
        settings: training arguments, and "attention", an implementation; "marian", to train MarianMT instead.
    """
    settings = dict(settings)
    attention, marian = (settings.pop(name, False) for name in ("attention", "marian"))
    gc.collect()  # the models of earlier rows
    torch.compiler.reset()
    torch.manual_seed(0)
    config = paper_config(name, **(SMALL if setup.small else PAPER))
    with setup.device:
        model: Any = VanillaTransformerForConditionalGeneration(config)
    assert config.pad_token_id is not None
    assert config.decoder_start_token_id is not None
    collator = Seq2SeqCollator(
        config.pad_token_id, config.decoder_start_token_id, config.max_position_embeddings, settings["max_tokens"]
    )
    flops = flops_per_token(model.to(setup.device).train())
    if marian:
        model, settings["lr_scheduler_type"] = convert.to_marian(model), "linear"
    model.set_attn_implementation(attention or "sdpa")
    args = VanillaTransformerTrainingArguments(
        str(setup.output / "training"),
        use_cpu=setup.device.type == "cpu",
        label_smoothing_factor=0.1,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        **{"torch_compile": False, **settings},
    )
    trainer_class = OurBatchesTrainer if marian else VanillaTransformerTrainer
    trainer = trainer_class(model, args, data_collator=collator, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)
    # transformers changes this only once per process
    torch.set_float32_matmul_precision("high" if settings.get("tf32") else "highest")
    return trainer, flops


def _train_timed(setup: Setup, results: Results, *arguments: Any) -> dict[str, Any]:
    """Return the values of `_train`, and how long it took."""
    start = time.monotonic()
    values = _train(setup, results, *arguments)
    return {**values, "seconds": time.monotonic() - start}


def _train(setup: Setup, results: Results, name: str, rows: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the speed and the peak memory of some updates."""
    warm_up, measured = (8, 2) if setup.small else (30, 20)  # on a GPU, the first product of each shape takes longer
    settings = {**settings, "max_steps": warm_up + measured}
    ceiling = results.tables["machine"][describe_machine()]["bf16 TFLOP/s"]
    cudnn, flash = settings.pop("cudnn", False), settings.pop("flash", False)
    if setup.device.type == "cpu" and settings.keys() & {"fp16", "tf32"}:
        raise MissingError("needs a GPU")
    if settings.get("attention") == "flash_attention_2" and not is_flash_attn_2_available():
        raise MissingError("flash-attn is not installed")
    trainer, flops = build_trainer(setup, name, rows, settings)
    speed = Throughput(warm_up)
    speed.attach(trainer)
    if setup.device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        torch.backends.cuda.enable_flash_sdp(flash)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trainer.train()
    synchronize()
    if trainer.state.global_step < trainer.args.max_steps:  # stopped by SIGTERM
        raise OutOfTimeError
    rate = speed.tokens_per_second()
    values = {"tokens/s": rate, "TFLOP/s": rate * flops / 1e12, "share of peak": rate * flops / 1e12 / ceiling}
    if setup.device.type == "cuda":
        values["peak GB"] = torch.cuda.max_memory_allocated() / 1e9
    return values
