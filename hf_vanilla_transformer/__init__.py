"""The original Transformer (Vaswani et al. 2017) for Hugging Face transformers.

Importing this package registers the model with transformers' Auto classes under "vanilla_transformer".
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .registration import register
from .version import __version__ as __version__

# For type checkers and editors, which do not follow `__getattr__`; `as` marks a name as public
if TYPE_CHECKING:
    from .data.batching import MaxTokensBatchSampler as MaxTokensBatchSampler
    from .data.tokenizer import train_tokenizer as train_tokenizer
    from .inference.ensemble import Ensemble as Ensemble
    from .inference.translator import Translator as Translator
    from .inference.translator import translate as translate
    from .model.configuration_vanilla_transformer import VanillaTransformerConfig as VanillaTransformerConfig
    from .model.modeling_vanilla_transformer import (
        VanillaTransformerForConditionalGeneration as VanillaTransformerForConditionalGeneration,
    )
    from .model.modeling_vanilla_transformer import VanillaTransformerModel as VanillaTransformerModel
    from .model.pipeline_vanilla_transformer import TranslationPipeline as TranslationPipeline
    from .sharing import convert as convert
    from .training.arguments import VanillaTransformerTrainingArguments as VanillaTransformerTrainingArguments
    from .training.checkpoints import average_checkpoints as average_checkpoints
    from .training.presets import paper_config as paper_config
    from .training.schedule import noam as noam
    from .training.trainer import VanillaTransformerTrainer as VanillaTransformerTrainer

register()

# The modules of the public names, imported on first use, because torch, the Trainer and datasets are slow to import
_MODULES = {
    "Ensemble": "inference.ensemble",
    "MaxTokensBatchSampler": "data.batching",
    "TranslationPipeline": "model.pipeline_vanilla_transformer",
    "Translator": "inference.translator",
    "VanillaTransformerConfig": "model.configuration_vanilla_transformer",
    "VanillaTransformerForConditionalGeneration": "model.modeling_vanilla_transformer",
    "VanillaTransformerModel": "model.modeling_vanilla_transformer",
    "VanillaTransformerTrainer": "training.trainer",
    "VanillaTransformerTrainingArguments": "training.arguments",
    "average_checkpoints": "training.checkpoints",
    "convert": "sharing.convert",
    "noam": "training.schedule",
    "paper_config": "training.presets",
    "train_tokenizer": "data.tokenizer",
    "translate": "inference.translator",
}


__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        module = import_module(f".{_MODULES[name]}", __name__)
        return module if name == "convert" else getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # Completion in a notebook shows what has not been imported yet
    return sorted({*globals(), *_MODULES})
