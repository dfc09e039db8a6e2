"""`vanilla-transformer export`: export a model to a faster runtime."""

import argparse

from .console import UsageError, say
from .flags import add_model

HELP = "export a model to a faster runtime"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `export`."""
    add_model(parser)
    parser.add_argument("output_dir", metavar="OUT", help="folder for the exported model; must be new or empty")
    parser.add_argument("--format", required=True, choices=["ctranslate2", "onnx"], help="runtime to export to")
    parser.add_argument("--quantization", help="CTranslate2 only: int8, float16, ... (default: float32)")


def run(args: argparse.Namespace) -> None:
    """Export the model to the format given as a flag."""
    from ..sharing.export import export_ctranslate2, export_onnx

    if args.format == "ctranslate2":
        export_ctranslate2(args.model, args.output_dir, args.quantization or "float32")
    elif args.quantization:
        raise UsageError("--quantization requires --format ctranslate2.")
    else:
        export_onnx(args.model, args.output_dir)
    say(f"Exported the model to {args.output_dir}; its README.md explains how to run it")
