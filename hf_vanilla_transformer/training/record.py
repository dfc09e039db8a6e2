"""Record what the model card says about a training run, without private text or local paths."""

from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset

from ..sharing.card import hardware
from ..version import __version__
from .arguments import DataArguments, ModelArguments
from .text import count_pairs
from .trainer import VanillaTransformerTrainer

# Prefixes of settings that may reveal local paths or private text, and so never appear on a card
_PRIVATE_PREFIXES = (
    *("output_dir", "train_file", "validation_file", "model_name_or_path", "tokenizer_name", "hub_", "push_to_hub"),
    *("license", "run_name", "disable_tqdm", "deepspeed"),
)


def versions() -> str:
    """Return the versions of the packages that determine the results of training."""
    return f"hf_vanilla_transformer {__version__}, transformers {transformers.__version__}, torch {torch.__version__}"


def training_record(
    trainer: VanillaTransformerTrainer, settings: dict[str, Any], data: DataArguments, model: ModelArguments
) -> dict[str, Any]:
    """Return what the card says about a finished run; call it on every process, since all compute validation BLEU."""
    args: Any = trainer.args
    state = trainer.state
    dataset: Any = trainer.train_dataset
    hub_dataset = None if _is_local(data.dataset_name) else data.dataset_name
    public = {
        name: value
        for name, value in settings.items()
        if not name.startswith(_PRIVATE_PREFIXES) and not str(value).startswith(("/", "~"))
    }
    if not hub_dataset:
        public.pop("dataset_name", None)
    validation = [
        {
            "updates": log["step"],
            "perplexity": round(log["eval_perplexity"], 2),
            "bleu": round(log["eval_bleu"], 2) if "eval_bleu" in log else None,
        }
        for log in state.log_history
        if "eval_perplexity" in log
    ]
    path = data.dataset_name or data.train_file
    record = {
        "data": hub_dataset or (Path(path).resolve().name if path else "the built-in phrases"),
        "dataset_name": hub_dataset,
        "base_model": model.model_name_or_path and Path(model.model_name_or_path).name,
        "pairs": count_pairs(dataset),
        "updates": state.global_step,
        "seconds": round(trainer.speed.total_seconds),
        "hardware": hardware(args.world_size),
        "software": versions(),
        "license": model.license,
        "settings": public,
        "validation": validation,
    }
    if validation and args.eval_bleu:
        record["scores"] = trainer.score()
    return record


def example_sentence(data: DataArguments, tokenizer: Any, tokens: Dataset) -> str:
    """Return a source sentence for the card from public text (the built-in phrases, the Hub), else "Hello!"."""
    if data.train_file or _is_local(data.dataset_name):
        return "Hello!"
    texts = (tokenizer.decode(row["input_ids"], skip_special_tokens=True) for row in islice(tokens, 100))
    return next((text for text in texts if len(text) < 80), "Hello!")


def _is_local(dataset_name: str | None) -> bool:
    """Return whether `--dataset_name` is a path on this machine."""
    return dataset_name is not None and Path(dataset_name).exists()
