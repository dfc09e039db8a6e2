"""The original Transformer (Vaswani et al. 2017) for Hugging Face transformers.

Importing this package registers the model with transformers' Auto classes under "vanilla_transformer".
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .registration import register
from .version import __version__

if TYPE_CHECKING:
    from .data.batching import MaxTokensBatchSampler
    from .data.tokenizer import train_tokenizer
    from .inference.ensemble import Ensemble
    from .inference.translator import Translator, translate
    from .model.configuration_vanilla_transformer import VanillaTransformerConfig
    from .model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
    from .model.pipeline_vanilla_transformer import TranslationPipeline
    from .sharing import convert
    from .training.arguments import VanillaTransformerTrainingArguments
    from .training.checkpoints import average_checkpoints
    from .training.presets import paper_config
    from .training.schedule import noam
    from .training.trainer import VanillaTransformerTrainer

register()

# Imported on first use, because torch, the Trainer and datasets are slow to import
_LAZY = {
    "Ensemble": "inference.ensemble",
    "MaxTokensBatchSampler": "data.batching",
    "TranslationPipeline": "model.pipeline_vanilla_transformer",
    "VanillaTransformerConfig": "model.configuration_vanilla_transformer",
    "VanillaTransformerForConditionalGeneration": "model.modeling_vanilla_transformer",
    "VanillaTransformerModel": "model.modeling_vanilla_transformer",
    "VanillaTransformerTrainer": "training.trainer",
    "VanillaTransformerTrainingArguments": "training.arguments",
    "average_checkpoints": "training.checkpoints",
    "noam": "training.schedule",
    "paper_config": "training.presets",
    "train_tokenizer": "data.tokenizer",
    "Translator": "inference.translator",
    "translate": "inference.translator",
}

__all__ = [
    "Ensemble",
    "MaxTokensBatchSampler",
    "TranslationPipeline",
    "Translator",
    "VanillaTransformerConfig",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerTrainer",
    "VanillaTransformerTrainingArguments",
    "__version__",
    "average_checkpoints",
    "convert",
    "noam",
    "paper_config",
    "train_tokenizer",
    "translate",
]


def __getattr__(name: str) -> Any:
    if name == "convert":
        return import_module(".sharing.convert", __name__)
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
