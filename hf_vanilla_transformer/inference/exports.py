"""What exports for CTranslate2 and for ONNX have in common."""

from pathlib import Path
from typing import Any

CONFIG_FOLDER = "vanilla_transformer"  # in a CTranslate2 export: the model's own configuration
_ONNX_MANIFEST = "export.json"  # which transformers writes beside ONNX graphs


def num_positions(config: Any) -> int:
    """Return how many positions an export has; sinusoids allow room beyond what training saw."""
    return config.max_position_embeddings * (2 if config.position_embedding == "sinusoidal" else 1)


def export_format(folder: str) -> str | None:
    """Return the format of the export in `folder` ("ctranslate2" or "onnx"), or None if it is not an export."""
    if Path(folder, CONFIG_FOLDER).is_dir():
        return "ctranslate2"
    return "onnx" if Path(folder, _ONNX_MANIFEST).is_file() else None
