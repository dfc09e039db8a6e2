"""`vanilla-transformer export`: write a model for a faster runtime."""

import argparse

from .console import UsageError, say
from .flags import add_model

HELP = "write a model for a faster runtime"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `export`."""
    add_model(parser)
    parser.add_argument("output_dir", metavar="OUT", help="a new folder")
    parser.add_argument("--format", required=True, choices=["ctranslate2", "onnx"])
    parser.add_argument("--quantization", help="CTranslate2's: int8, float16, ... (default: float32)")


def run(args: argparse.Namespace) -> None:
    """Write the model for another runtime."""
    from ..sharing.export import export_ctranslate2, export_onnx

    if args.format == "ctranslate2":
        export_ctranslate2(args.model, args.output_dir, args.quantization or "float32")
    elif args.quantization:
        raise UsageError("--quantization is for --format ctranslate2.")
    else:
        export_onnx(args.model, args.output_dir)
    say(f"{args.output_dir} has the model for {args.format}; its README.md says how to run it")
