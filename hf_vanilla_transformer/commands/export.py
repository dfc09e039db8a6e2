"""`vanilla-transformer export`: export a model to a faster runtime."""

from dataclasses import dataclass

from ..flags import option
from ..inference.exports import export_model, format_names
from .console import say
from .shared_flags import ModelFlags


@dataclass(kw_only=True)
class ExportArguments(ModelFlags):
    """The flags of `export`.

    Args:
        output_dir: folder for the exported model; must be new or empty
        format: runtime to export to
        quantization: number format of the weights, if the format has several: int8, float16, ... (default: float32)
    """

    output_dir: str = option(metavar="OUT", positional=True)
    format: str = option(choices=format_names())
    quantization: str | None = option(None)


def run(args: ExportArguments) -> None:
    """Export the model to the format given as a flag."""
    export_model(args.model, args.output_dir, args.format, args.quantization)
    say(f"Exported the model to {args.output_dir}; its README.md explains how to run it")
