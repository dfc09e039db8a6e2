"""`vanilla-transformer plot`: write a plot to a PNG or SVG file."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .console import say
from .flags import add_model, positive
from .models import labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HELP = "plot masks, attention, training curves and more to a PNG or SVG file"


def _curve(text: str) -> tuple[int, int]:
    """Parse d_model and warm-up, as in 512:4000."""
    width, _, warmup = text.partition(":")
    try:
        return positive(width), positive(warmup)
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"must have the form 512:4000, got {text!r}") from None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the kinds of plot, each with its flags."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")

    def add(kind: str, draw: Callable[[argparse.Namespace], "Figure"], help: str) -> argparse.ArgumentParser:
        flags = kinds.add_parser(kind, help=help)
        flags.add_argument("--output", required=True, metavar="FILE", help="file to write, ending in .png or .svg")
        flags.set_defaults(draw=draw)
        return flags

    flags = add("positions", _positions, "sinusoidal positions and their dot products by distance")
    flags.add_argument("--d_model", type=positive, default=512, help="width of the model (default: 512)")
    flags.add_argument("--positions", type=positive, default=100, help="number of positions (default: 100)")
    flags = add("noam", _noam, "learning rate of the noam schedule by update")
    flags.add_argument(
        "--curves",
        nargs="+",
        type=_curve,
        metavar="WIDTH:WARMUP",
        default=[(512, 4000), (512, 8000), (256, 4000), (1024, 4000)],
        help="d_model and warm-up updates of each curve (default: 512:4000 512:8000 256:4000 1024:4000)",
    )
    flags.add_argument("--steps", type=positive, default=20_000, help="number of updates (default: 20000)")
    flags = add("masks", _masks, "padding, causal and combined masks")
    flags.add_argument(
        "--lengths", nargs="+", type=positive, default=[8, 5, 3], help="lengths of the sentences (default: 8 5 3)"
    )
    flags = add("attention", _attention, "all attention heads of one layer for one sentence")
    add_model(flags)
    flags.add_argument("--sentence", required=True, help="sentence to translate")
    flags.add_argument("--target_lang", help="language to translate to, for a model of several")
    flags.add_argument(
        "--layer", type=int, default=-1, help="index of the layer, from 0; -1 is the last (default: -1)"
    )
    flags = add("training", _training, "loss, perplexity and BLEU of training runs, from their logs")
    flags.add_argument("runs", metavar="RUN", nargs="+", help="output folder of a training run")
    flags = add("table3", _table3, "rows of Table 3, measured by scripts/study/ablate.py")
    flags.add_argument("results", metavar="FILE", help="the ablation.json that the script writes")


def _positions(args: argparse.Namespace) -> "Figure":
    from ..study.plots import positions

    return positions(args.d_model, args.positions)


def _noam(args: argparse.Namespace) -> "Figure":
    from ..study.plots import noam_curves

    return noam_curves(args.curves, args.steps)


def _masks(args: argparse.Namespace) -> "Figure":
    from ..study.plots import masks

    return masks(args.lengths)


def _attention(args: argparse.Namespace) -> "Figure":
    from ..serving.explorer import Explorer
    from ..study.plots import attention_heads

    explorer = Explorer.load(args.model)
    target = explorer.translate(args.sentence, 4, 0.6, args.target_lang)[0][2]
    return attention_heads(**explorer.attention(args.sentence, target, args.target_lang), layer=args.layer)


def _training(args: argparse.Namespace) -> "Figure":
    from ..study.plots import read_log, training_curves

    return training_curves({name: read_log(run) for name, run in zip(labels(args.runs), args.runs, strict=True)})


def _table3(args: argparse.Namespace) -> "Figure":
    from ..files import read_json
    from ..study.plots import ablation

    return ablation(read_json(Path(args.results)))


def run(args: argparse.Namespace) -> None:
    """Draw the plot and write it to a file."""
    from ..study.plots import save

    save(args.draw(args), args.output)
    say(f"Wrote the plot to {args.output}")
