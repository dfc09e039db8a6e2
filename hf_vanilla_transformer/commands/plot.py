"""`vanilla-transformer plot`: write a plot to a PNG or SVG file."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ..flags import option, positive
from .console import say
from .flags import ModelFlags
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


@dataclass(kw_only=True)
class Plot:
    """A kind of plot, with its flags."""

    KINDS: ClassVar[dict[str, type["Plot"]]] = {}  # by their names on the command line

    output: str = option("file to write, ending in .png or .svg", metavar="FILE")

    def draw(self) -> "Figure":
        """Return the plot."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Positions(Plot):
    """sinusoidal positions and their dot products by distance"""

    d_model: int = option("width of the model", 512, parse=positive)
    positions: int = option("number of positions", 100, parse=positive)

    def draw(self) -> "Figure":
        from ..study.plots import positions

        return positions(self.d_model, self.positions)


@dataclass(kw_only=True)
class Noam(Plot):
    """learning rate of the noam schedule by update"""

    curves: list[tuple[int, int]] = option(
        "d_model and warm-up updates of each curve (default: 512:4000 512:8000 256:4000 1024:4000)",
        [],
        parse=_curve,
        metavar="WIDTH:WARMUP",
    )
    steps: int = option("number of updates", 20_000, parse=positive)

    def draw(self) -> "Figure":
        from ..study.plots import noam_curves

        return noam_curves(self.curves or [(512, 4000), (512, 8000), (256, 4000), (1024, 4000)], self.steps)


@dataclass(kw_only=True)
class Masks(Plot):
    """padding, causal and combined masks"""

    lengths: list[int] = option("lengths of the sentences", [8, 5, 3], parse=positive)

    def draw(self) -> "Figure":
        from ..study.plots import masks

        return masks(self.lengths)


@dataclass(kw_only=True)
class Attention(ModelFlags, Plot):
    """all attention heads of one layer for one sentence"""

    sentence: str = option("sentence to translate")
    target_lang: str | None = option("language to translate to, for a model of several", None)
    layer: int = option("index of the layer, from 0; -1 is the last", -1)

    def draw(self) -> "Figure":
        from ..serving.page import Explorer
        from ..study.plots import attention_heads

        explorer = Explorer.load(self.model)
        target = explorer.translate(self.sentence, 4, 0.6, self.target_lang)[0][2]
        return attention_heads(**explorer.attention(self.sentence, target, self.target_lang), layer=self.layer)


@dataclass(kw_only=True)
class Training(Plot):
    """loss, perplexity and BLEU of training runs, from their logs"""

    runs: list[str] = option("output folder of a training run", metavar="RUN", positional=True)

    def draw(self) -> "Figure":
        from ..study.plots import read_log, training_curves

        return training_curves({name: read_log(run) for name, run in zip(labels(self.runs), self.runs, strict=True)})


@dataclass(kw_only=True)
class Table3(Plot):
    """rows of Table 3, measured by scripts/study/ablate.py"""

    results: str = option("the ablation.json that the script writes", metavar="FILE", positional=True)

    def draw(self) -> "Figure":
        from ..files import read_json
        from ..study.plots import ablation

        return ablation(read_json(Path(self.results)))


Plot.KINDS.update(positions=Positions, noam=Noam, masks=Masks, attention=Attention, training=Training, table3=Table3)


def run(args: Plot) -> None:
    """Draw the plot and write it to a file."""
    from ..study.plots import save

    save(args.draw(), args.output)
    say(f"Wrote the plot to {args.output}")
