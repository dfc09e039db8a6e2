"""The original Transformer (Vaswani et al. 2017) for Hugging Face transformers.

Importing this package registers the model with transformers' Auto classes under "vanilla_transformer".
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .registration import register

if TYPE_CHECKING:
    from . import convert
    from .arguments import VanillaTransformerTrainingArguments
    from .batching import MaxTokensBatchSampler
    from .checkpoints import average_checkpoints
    from .configuration_vanilla_transformer import VanillaTransformerConfig
    from .ensemble import Ensemble
    from .modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
    from .pipeline_vanilla_transformer import TranslationPipeline
    from .presets import paper_config
    from .schedule import noam
    from .tokenizer import train_tokenizer
    from .trainer import VanillaTransformerTrainer
    from .translation import translate

__version__ = "0.1.0"

register()

# Imported on first use: torch, Trainer and datasets take seconds that nobody should wait who does not need them
_LAZY = {
    "Ensemble": "ensemble",
    "MaxTokensBatchSampler": "batching",
    "TranslationPipeline": "pipeline_vanilla_transformer",
    "VanillaTransformerConfig": "configuration_vanilla_transformer",
    "VanillaTransformerForConditionalGeneration": "modeling_vanilla_transformer",
    "VanillaTransformerModel": "modeling_vanilla_transformer",
    "VanillaTransformerTrainer": "trainer",
    "VanillaTransformerTrainingArguments": "arguments",
    "average_checkpoints": "checkpoints",
    "noam": "schedule",
    "paper_config": "presets",
    "train_tokenizer": "tokenizer",
    "translate": "translation",
}

__all__ = [
    "Ensemble",
    "MaxTokensBatchSampler",
    "TranslationPipeline",
    "VanillaTransformerConfig",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerTrainer",
    "VanillaTransformerTrainingArguments",
    "average_checkpoints",
    "convert",
    "noam",
    "paper_config",
    "train_tokenizer",
    "translate",
]


def __getattr__(name: str) -> Any:
    if name == "convert":
        return import_module(".convert", __name__)
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
