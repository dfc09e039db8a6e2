"""`vanilla-transformer export`: export a model to a faster runtime."""

import argparse

from ..export.registry import FORMATS
from .console import UsageError, say
from .flags import add_model

HELP = "export a model to a faster runtime"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `export`."""
    add_model(parser)
    parser.add_argument("output_dir", metavar="OUT", help="folder for the exported model; must be new or empty")
    parser.add_argument("--format", required=True, choices=FORMATS, help="runtime to export to")
    parser.add_argument("--quantization", help="CTranslate2 only: int8, float16, ... (default: float32)")


def run(args: argparse.Namespace) -> None:
    """Export the model to the format given as a flag."""
    from ..export.registry import export_model, find_format

    if args.quantization and not find_format(args.format).quantizations:
        raise UsageError(f"--quantization has no effect with --format {args.format}.")
    export_model(args.model, args.output_dir, args.format, args.quantization)
    say(f"Exported the model to {args.output_dir}; its README.md explains how to run it")
