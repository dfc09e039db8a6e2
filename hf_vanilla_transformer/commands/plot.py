"""`vanilla-transformer plot`: draw a picture, PNG or SVG by the name of the file."""

import argparse
import json
from pathlib import Path
from typing import Any

from .console import say
from .flags import add_model, positive

HELP = "draw a picture, as PNG or SVG"


def _curve(text: str) -> tuple[int, int]:
    width, _, warmup = text.partition(":")
    try:
        return positive(width), positive(warmup)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be like 512:4000, got {text!r}") from None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the kinds of picture, each with its flags."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")

    def add(kind: str, draw: Any, help: str) -> argparse.ArgumentParser:
        flags = kinds.add_parser(kind, help=help)
        flags.add_argument("--output", required=True, metavar="FILE", help="a file that ends in .png or .svg")
        flags.set_defaults(draw=draw)
        return flags

    flags = add("positions", _positions, "sinusoids, and their dot products by distance")
    flags.add_argument("--d_model", type=positive, default=512, help="default: 512")
    flags.add_argument("--positions", type=positive, default=100, help="default: 100")
    flags = add("noam", _noam, "the learning rate by update")
    flags.add_argument(
        "--curves",
        nargs="+",
        type=_curve,
        metavar="WIDTH:WARMUP",
        default=[(512, 4000), (512, 8000), (256, 4000), (1024, 4000)],
        help="d_model and warm-up of each (default: 512:4000 512:8000 256:4000 1024:4000)",
    )
    flags.add_argument("--steps", type=positive, default=20_000, help="default: 20000")
    flags = add("masks", _masks, "padding, causal and combined masks")
    flags.add_argument("--lengths", nargs="+", type=positive, default=[8, 5, 3], help="of the sentences of a batch")
    flags = add("attention", _attention, "every head of one layer on a sentence")
    add_model(flags)
    flags.add_argument("--sentence", required=True, help="to translate")
    flags.add_argument("--layer", type=int, default=-1, help="counted from 0, or from the last, which is -1 (default)")
    flags = add("training", _training, "loss, perplexity and BLEU of runs, from their logs")
    flags.add_argument("runs", metavar="RUN", nargs="+", help="the output folder of a training run")
    flags = add("table3", _table3, "rows of Table 3, from scripts/study/ablate.py")
    flags.add_argument("results", metavar="FILE", help="ablation.json")


def _positions(args: argparse.Namespace) -> Any:
    from ..study.plots import positions

    return positions(args.d_model, args.positions)


def _noam(args: argparse.Namespace) -> Any:
    from ..study.plots import noam_curves

    return noam_curves(args.curves, args.steps)


def _masks(args: argparse.Namespace) -> Any:
    from ..study.plots import masks

    return masks(args.lengths)


def _attention(args: argparse.Namespace) -> Any:
    from ..serving.page import Explorer
    from ..study.plots import attention_heads

    explorer = Explorer(args.model)
    target = explorer.translate(args.sentence, 4, 0.6)[0][2]
    return attention_heads(**explorer.attention(args.sentence, target), layer=args.layer)


def _training(args: argparse.Namespace) -> Any:
    from ..study.plots import read_log, training_curves

    names = [Path(run).name for run in args.runs]
    if len(set(names)) < len(names):
        names = args.runs
    return training_curves({name: read_log(run) for name, run in zip(names, args.runs, strict=True)})


def _table3(args: argparse.Namespace) -> Any:
    from ..study.plots import ablation

    return ablation(json.loads(Path(args.results).read_text(encoding="utf-8")))


def run(args: argparse.Namespace) -> None:
    """Draw the picture and save it."""
    from ..study.plots import save

    save(args.draw(args), args.output)
    say(f"The picture is in {args.output}")
