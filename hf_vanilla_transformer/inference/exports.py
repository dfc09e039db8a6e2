"""Exports: recognise, write, load and identify them, in the formats (`runtime.Format`) that plugins provide."""

import tempfile
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..files import CARD, CONFIGS, VOCABULARIES, WEIGHT_FILES, checksum, new_folder, public_name
from ..plugins import RUNTIMES, find, load, load_all
from ..version import install_command

if TYPE_CHECKING:  # it imports torch, and the command line needs only the names
    from .runtime import ExportedModel, Format

_MODEL_FILES = (WEIGHT_FILES, "adapter_*")  # what decides the translations of a saved model, with its configuration

_README = """# {title} export of a Transformer

Exported by hf-vanilla-transformer from {name}{details}. To run it, install the package in a clone of its repository:

    {install}
    vanilla-transformer translate THIS_FOLDER --backend {format} < in.txt > out.txt

{usage}
"""


def format_names() -> tuple[str, ...]:
    """Return the names of the formats that are installed; none of them is imported."""
    return tuple(find(RUNTIMES))


def find_format(name: str) -> "Format":
    """Return the format called `name`, one of `format_names`.

    Raises:
        UserError: if it is not installed, or cannot be imported.
    """
    return load(RUNTIMES, name)


def recognise(folder: str) -> "Format | None":
    """Return the format of the export in `folder`, or None if it is not an export."""
    return next((format for _, format in load_all(RUNTIMES) if format.recognises(Path(folder))), None)


def export_model(folder: str, output_dir: str, format_name: str, quantization: str | None = None) -> None:
    """Export the model saved in `folder`, with its tokenizer, into the new folder `output_dir`.

    Args:
        folder: the folder of a saved model, or its name on the Hub.
        format_name: one of `format_names`.
        quantization: number format of the stored weights, for formats that have several.

    Raises:
        ImportError: if the packages of the format are not installed.
        OSError: if the model cannot be loaded.
        ValueError: if the format does not support the model or the quantisation, or `output_dir` already exists and is
            not an empty folder.
    """
    # slow to import
    from ..loading import load_model, load_tokenizer

    format = find_format(format_name)
    format.check()
    if quantization and quantization not in format.quantizations:
        known = ", ".join(format.quantizations)
        remedy = f"choose one of {known}" if known else "it has a single number format, so omit it"
        raise UserError(f"Unknown quantisation {quantization!r} for {format.title}; {remedy}.")
    quantization = quantization or (format.quantizations[-1] if format.quantizations else None)

    # complete or not at all, so that an interrupted export is never taken for one
    with new_folder(output_dir) as target:
        model = load_model(str(folder)).eval()
        tokenizer = load_tokenizer(str(folder))
        for module in model.modules():
            # a layer with an adapter of PEFT, which then has the weights of both
            if hasattr(module, "merge"):
                layer = module.get_base_layer()
                # which may also be the matrix of a layer without this adapter
                layer.weight = deepcopy(layer.weight)
                module.merge()
        format.write(model, tokenizer, target, quantization)
        tokenizer.save_pretrained(target)
        readme = _README.format(
            title=format.title,
            format=format.name,
            install=install_command("export"),
            name=public_name(folder),
            details=f", quantisation {quantization}" if quantization else "",
            usage=format.usage,
        )
        (target / CARD).write_text(readme, encoding="utf-8")


def load_export(folder: str, format_name: str) -> "ExportedModel":
    """Load an export; export a saved model to a temporary folder first.

    Args:
        folder: an export, or the folder or Hub name of a saved model.
        format_name: one of `format_names`.

    Raises:
        ImportError: if the runtime is not installed.
        OSError: if the export or the model cannot be loaded.
        ValueError: if the export has another format, or the format does not support the model.
    """
    from ..loading import loading_errors  # slow to import

    format = find_format(format_name)
    recognised = recognise(folder)
    if recognised == format:
        with loading_errors(folder):
            return format.load(folder)
    if recognised:
        name = recognised.name
        raise UserError(f"{folder} is an export for {name}, not for {format.name}; use --backend {name}.")
    # a saved model: the runtime has read the temporary export before it is removed
    with tempfile.TemporaryDirectory() as temporary:
        exported = str(Path(temporary, "export"))
        export_model(folder, exported, format_name)
        return format.load(exported)


def identify(folder: Path) -> dict[str, str]:
    """Return the checksums of the files that decide what a saved model or an export translates, by relative path."""
    format = recognise(str(folder))
    patterns = (*CONFIGS, *VOCABULARIES, *(format.files if format else _MODEL_FILES))
    files = {file for pattern in patterns for file in folder.glob(pattern)}
    return {str(file.relative_to(folder)): checksum(file) for file in sorted(files)}
