"""Load models and tokenizers from untrusted sources without running their code, with one clear error on failure."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedConfig
from transformers.utils import find_adapter_config_file

from .configuration_vanilla_transformer import VanillaTransformerConfig

if TYPE_CHECKING:
    from .modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration


def load(auto_class: Any, name: str, **kwargs) -> Any:
    """Return `auto_class.from_pretrained(name)` without running code from `name`.

    Raises:
        OSError: If loading fails for any reason other than a missing package or a lack of memory.
    """
    with loading_errors(name):
        return auto_class.from_pretrained(name, trust_remote_code=False, **kwargs)


@contextmanager
def loading_errors(name: str) -> Iterator[None]:
    """Turn any error while loading `name` into an `OSError` that names it.

    Errors for missing packages and lack of memory pass through unchanged.
    """
    try:
        yield
    except (ImportError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # damaged files can raise any exception
        where = name if Path(name).is_dir() else f"{name} (not a local folder)"
        raise OSError(f"Cannot load {where}: {error}") from error


def load_config(name: str) -> VanillaTransformerConfig:
    """Return the configuration of the model `name`, a local folder or a repository on the Hub.

    Raises:
        OSError: If it cannot be loaded.
        ValueError: If it belongs to a different model type.
    """
    config = load(AutoConfig, name)
    _check_model_type(config, name)
    return config


def _check_model_type(config: PreTrainedConfig, name: str) -> None:
    if config.model_type != VanillaTransformerConfig.model_type:
        hint = f"; convert it with `vanilla-transformer convert {name} OUT`" if config.model_type == "marian" else ""
        raise ValueError(f"{name} is a {config.model_type} model, not a vanilla_transformer model{hint}.")


def load_model(name: str, **kwargs) -> "VanillaTransformerForConditionalGeneration":
    """Return the translation model `name`, a local folder or a repository on the Hub.

    Args:
        kwargs: arguments of `from_pretrained`, for example `dtype` or `config`.

    Raises:
        OSError: If it cannot be loaded or its weights are incomplete.
        ValueError: If it is a different type of model.
    """
    with loading_errors(name):
        adapter = find_adapter_config_file(name)
    if adapter is None:  # an adapter's folder has no configuration
        # fail early, before loading the weights of a different type of model
        load_config(name)
    model = load_complete(AutoModelForSeq2SeqLM, name, **kwargs)
    _check_model_type(model.config, name)
    _check_decoding(model.generation_config, name)
    return model


def load_complete(auto_class: Any, name: str, **kwargs) -> Any:
    """Return the model `name`, after checking that its weights are complete.

    Raises:
        OSError: If it cannot be loaded, or they are not.
    """
    model, report = load(auto_class, name, output_loading_info=True, use_safetensors=True, **kwargs)
    if missing := sorted(report["missing_keys"]):
        raise OSError(
            f"Cannot load {name}: its weights do not contain {len(missing)} of the model's tensors, for example "
            f"{missing[0]}. Download or save the model again."
        )
    return model


def _check_decoding(settings: GenerationConfig, name: str) -> None:
    """Check that the decoding settings saved with a model have the types that `generate` expects."""
    integers = ("num_beams", "num_return_sequences", "max_length", "max_new_tokens")
    tokens = ("pad_token_id", "bos_token_id", "decoder_start_token_id")
    types: dict[str, tuple[type, ...]] = {
        **dict.fromkeys((*integers, *tokens), (int,)),
        "length_penalty": (int, float),
        "eos_token_id": (int, list),
    }
    for field, expected in types.items():
        value = getattr(settings, field, None)
        if value is not None and (isinstance(value, bool) or not isinstance(value, expected)):
            names = " or ".join(kind.__name__ for kind in expected)
            raise OSError(
                f"Cannot load {name}: {field} in its generation_config.json must be {names}, but is {value!r}."
            )
