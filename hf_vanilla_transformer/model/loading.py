"""Load models and tokenizers that come from elsewhere: none of their code runs, and any fault is one clear error."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig
from transformers.utils import find_adapter_config_file

from .configuration_vanilla_transformer import VanillaTransformerConfig


def load(auto_class: Any, name: str, **kwargs: Any) -> Any:
    """Return `auto_class.from_pretrained(name)`, without running code that `name` brings along.

    Raises:
        OSError: if that fails, whatever is wrong with the files.
    """
    with loading(name):
        return auto_class.from_pretrained(name, trust_remote_code=False, **kwargs)


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Turn whatever goes wrong with the files of `name` into an `OSError` that names it.

    Missing packages and missing memory stay what they are.
    """
    try:
        yield
    except (ImportError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # files from elsewhere may be damaged in any way
        where = name if Path(name).is_dir() else f"{name}, which is no folder"
        raise OSError(f"Cannot load {where}: {error}") from error


def load_config(name: str) -> Any:
    """Return the configuration of the model saved in the folder `name`, or under that name on the Hub.

    Raises:
        OSError: if it cannot be loaded.
        ValueError: if it is that of a model of another kind.
    """
    config = load(AutoConfig, name)
    _check_kind(config, name)
    return config


def _check_kind(config: Any, name: str) -> None:
    if config.model_type != VanillaTransformerConfig.model_type:
        hint = " (hf_vanilla_transformer.convert.from_marian makes one of it)" if config.model_type == "marian" else ""
        raise ValueError(f"{name} is a {config.model_type} model, not one of this package{hint}.")


def load_model(name: str, **kwargs: Any) -> Any:
    """Return the translation model saved in the folder `name`, or under that name on the Hub.

    Args:
        kwargs: as for `from_pretrained`, such as `dtype` or `config`.

    Raises:
        OSError: if it cannot be loaded, or its weights are incomplete.
        ValueError: if it is a model of another kind.
    """
    with loading(name):
        adapter = find_adapter_config_file(name)
    if adapter is None:  # before gigabytes of another kind are loaded; an adapter's folder has no configuration
        load_config(name)
    model, report = load(AutoModelForSeq2SeqLM, name, output_loading_info=True, **kwargs)
    if missing := sorted(report["missing_keys"]):
        raise OSError(
            f"Cannot load {name}: its weights lack {len(missing)} of the model's tensors, such as {missing[0]}; "
            "fetch or save it again."
        )
    _check_kind(model.config, name)
    _check_decoding(model.generation_config, name)
    return model


def _check_decoding(settings: GenerationConfig, name: str) -> None:
    """See that the decoding settings saved with a model are of the types that `generate` expects."""
    whole, number = ("num_beams", "num_return_sequences", "max_length", "max_new_tokens"), ("length_penalty",)
    tokens = ("pad_token_id", "bos_token_id", "decoder_start_token_id", "eos_token_id")
    types: dict[str, Any] = {
        **dict.fromkeys((*whole, *tokens), int),
        **dict.fromkeys(number, (int, float)),
        "eos_token_id": (int, list),
    }
    for field, expected in types.items():
        value = getattr(settings, field, None)
        if value is not None and (isinstance(value, bool) or not isinstance(value, expected)):
            raise OSError(f"Cannot load {name}: {field} in its generation_config.json is {value!r}.")
