"""`vanilla-transformer plot`: plot the attention of a model or the curves of training runs to a PNG or SVG file."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...commands.console import say
from ...commands.models import labels
from ...commands.shared_flags import ModelFlags
from ...flags import Flags, option

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(kw_only=True)
class Plot(Flags):
    """A kind of plot, with its flags.

    Args:
        output: file to write, ending in .png or .svg
    """

    KINDS: ClassVar[dict[str, type["Plot"]]] = {}  # by their names on the command line

    output: str = option(metavar="FILE")

    def draw(self) -> "Figure":
        """Return the plot."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Attention(ModelFlags, Plot):
    """all attention heads of one layer for one sentence

    Args:
        sentence: sentence to translate
        target_lang: language to translate to, for a model of several
        layer: index of the layer, from 0; -1 is the last
    """

    sentence: str = option()
    target_lang: str | None = option(None)
    layer: int = option(-1)

    def draw(self) -> "Figure":
        from ...inference.attention import Explorer
        from .plots import attention_heads

        # Beam search with the paper's settings (section 6.1), whatever the model's own are
        explorer = Explorer.load(self.model)
        target = explorer.translate(self.sentence, 4, 0.6, self.target_lang)[0].ids
        return attention_heads(**explorer.attention(self.sentence, target, self.target_lang), layer=self.layer)


@dataclass(kw_only=True)
class Training(Plot):
    """loss, perplexity and BLEU of training runs, from their logs

    Args:
        runs: output folder of a training run
    """

    runs: list[str] = option(metavar="RUN", positional=True)

    def draw(self) -> "Figure":
        from .plots import read_log, training_curves

        return training_curves({name: read_log(run) for name, run in zip(labels(self.runs), self.runs, strict=True)})


# Only here, because a class cannot name its subclasses
Plot.KINDS.update(attention=Attention, training=Training)


def run(args: Plot) -> None:
    """Draw the plot and write it to a file."""
    from .plots import save

    save(args.draw(), args.output)
    say(f"Wrote the plot to {args.output}")
