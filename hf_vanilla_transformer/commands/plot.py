"""`vanilla-transformer plot`: write a plot to a PNG or SVG file."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from .console import say
from .flags import add_model
from .models import labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HELP = "plot the attention of a model or the curves of training runs to a PNG or SVG file"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the kinds of plot, each with its flags."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")

    def add(kind: str, draw: Callable[[argparse.Namespace], "Figure"], help: str) -> argparse.ArgumentParser:
        flags = kinds.add_parser(kind, help=help)
        flags.add_argument("--output", required=True, metavar="FILE", help="file to write, ending in .png or .svg")
        flags.set_defaults(draw=draw)
        return flags

    flags = add("attention", _attention, "all attention heads of one layer for one sentence")
    add_model(flags)
    flags.add_argument("--sentence", required=True, help="sentence to translate")
    flags.add_argument("--target_lang", help="language to translate to, for a model of several")
    flags.add_argument(
        "--layer", type=int, default=-1, help="index of the layer, from 0; -1 is the last (default: -1)"
    )
    flags = add("training", _training, "loss, perplexity and BLEU of training runs, from their logs")
    flags.add_argument("runs", metavar="RUN", nargs="+", help="output folder of a training run")


def _attention(args: argparse.Namespace) -> "Figure":
    from ..serving.page import Explorer
    from ..study.plots import attention_heads

    explorer = Explorer.load(args.model)
    target = explorer.translate(args.sentence, 4, 0.6, args.target_lang)[0][2]
    return attention_heads(**explorer.attention(args.sentence, target, args.target_lang), layer=args.layer)


def _training(args: argparse.Namespace) -> "Figure":
    from ..study.plots import read_log, training_curves

    return training_curves({name: read_log(run) for name, run in zip(labels(args.runs), args.runs, strict=True)})


def run(args: argparse.Namespace) -> None:
    """Draw the plot and write it to a file."""
    from ..study.plots import save

    save(args.draw(args), args.output)
    say(f"Wrote the plot to {args.output}")
