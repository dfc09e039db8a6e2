"""Identify the format of an export and its number of positions."""

from pathlib import Path

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig

CONFIG_FOLDER = "vanilla_transformer"  # subfolder of a CTranslate2 export with the original configuration of the model
_ONNX_MANIFEST = "export.json"  # written by transformers next to the ONNX graphs


def num_positions(config: VanillaTransformerConfig) -> int:
    """Return the number of positions in an export.

    It is `max_position_embeddings`, doubled for sinusoids, which can be computed beyond the length seen in training.
    """
    return config.max_position_embeddings * (2 if config.position_embedding == "sinusoidal" else 1)


def export_format(folder: str) -> str | None:
    """Return the format of the export in `folder` ("ctranslate2" or "onnx"), or None if it is not an export."""
    if Path(folder, CONFIG_FOLDER).is_dir():
        return "ctranslate2"
    return "onnx" if Path(folder, _ONNX_MANIFEST).is_file() else None
