"""Load a model and its tokenizer for translation."""

from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..data.tokenizer import check_tokenizer
from ..export.registry import recognise
from ..model.loading import load, load_model
from .precision import avoid_cudnn_attention, default_device, resolve_dtype


def load_with_tokenizer(name: str, dtype: str = "float32") -> tuple[Any, PreTrainedTokenizerBase]:
    """Return a model, on the accelerator if there is one, and its tokenizer.

    Args:
        name: the folder of a trained model, or its name on the Hub.
        dtype: the number format, one of `precision.DTYPES`.

    Raises:
        OSError: if the model or the tokenizer cannot be loaded.
        ValueError: if it is an export or a different type of model, the tokenizer does not belong to it, or the dtype
            is unknown.
    """
    if export := recognise(name):
        raise ValueError(
            f"{name} is an export for {export.title}: use evaluate, translate or serve --no_page with --backend "
            f"{export.name}; for compare, pass a file of its translations."
        )
    device = default_device()
    if device.type == "cuda":
        avoid_cudnn_attention()
    model: Any = load_model(name, dtype=resolve_dtype(dtype, device))
    tokenizer = load(AutoTokenizer, name)
    check_tokenizer(tokenizer, model.config)
    return model.to(device), tokenizer
