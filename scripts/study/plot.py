"""Draw the pictures of the paper's formulas, of Table 3 and of a hyperparameter search, as PNG or SVG.

python scripts/study/plot.py positions --d_model 128 --output positions.png
python scripts/study/plot.py noam --output noam.png
python scripts/study/plot.py masks --output masks.png
python scripts/study/plot.py table3 .github/gallery/ablation.json --output table3.png
python scripts/study/plot.py search runs/study/trials.json --output search.png

Attention and training curves of your own models are drawn by `vanilla-transformer plot`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from published import TABLE_3
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from hf_vanilla_transformer import VanillaTransformerConfig, noam
from hf_vanilla_transformer.data.batching import pad
from hf_vanilla_transformer.inference.attention import COLOUR_MAP
from hf_vanilla_transformer.model.cache_vanilla_transformer import CACHE
from hf_vanilla_transformer.model.layers_vanilla_transformer import sinusoids
from hf_vanilla_transformer.plugins.study.plots import COLOURS, line_style, new_figure, save


def positions(d_model: int, count: int) -> Figure:
    """Plot the sinusoids of section 3.5 for the first `count` positions, and the dot products of rows by distance."""
    table = sinusoids(count, d_model)
    figure = new_figure(11, 4)
    left, right = figure.subplots(1, 2)
    image = left.imshow(table.numpy(), cmap=COLOUR_MAP, aspect="auto", vmin=-1, vmax=1, interpolation="nearest")
    left.set(xlabel="dimension", ylabel="position", title=f"alternating sine and cosine, d_model {d_model}")
    figure.colorbar(image, ax=left)
    products = table @ table.T
    for i, position in enumerate((count // 4, count // 2)):
        distances = torch.arange(count) - position
        right.plot(distances, products[position], label=f"from position {position}", **line_style(i))
    right.set(xlabel="distance", ylabel="dot product", title="the same at every position")
    right.legend()
    return figure


def noam_curves(curves: Sequence[tuple[int, int]], steps: int) -> Figure:
    """Plot the learning rate of equation 3 by update for pairs of (d_model, warm-up).

    The peak of the paper's base model is marked if its pair (512, 4000) is among them.
    """
    figure = new_figure(8, 4.5)
    axes = figure.add_subplot()
    updates = range(1, steps + 1)
    for i, (d_model, warmup) in enumerate(curves):
        rates = [noam(step, d_model, warmup) for step in updates]
        axes.plot(updates, rates, label=f"d_model {d_model}, warm-up {warmup:,}", **line_style(i))
    if (512, 4000) in curves and steps >= 4000:
        peak = noam(4000, 512, 4000)
        axes.plot(4000, peak, "o", color="black", label=f"peak of the paper's base model, {peak:.2e}")
    axes.set(xlabel="update", ylabel="learning rate", ylim=(0, None))
    axes.legend()
    return figure


def masks(lengths: Sequence[int]) -> Figure:
    """Plot the attention masks of a batch of sentences: padding, causal, and both combined for the shortest sentence.

    The masks are created by the same functions as in the model.
    """
    config = VanillaTransformerConfig()
    config._attn_implementation = "sdpa"  # its masks are True where attention is allowed
    real = pad([[1] * length for length in lengths], 0)
    longest, shortest = max(lengths), lengths.index(min(lengths))
    states = torch.zeros(len(lengths), longest, 1)

    def create(create_mask: Callable[..., Any], attention_mask: torch.Tensor) -> torch.Tensor:
        """Return a mask of shape (B, T, T)."""
        settings = {CACHE: None} if create_mask is create_causal_mask else {}
        mask = create_mask(config=config, inputs_embeds=states, attention_mask=attention_mask, **settings)
        if mask is None:  # transformers returns None if nothing is masked or the mask is purely causal
            full = torch.ones(len(lengths), longest, longest, dtype=torch.bool)
            return full.tril() if create_mask is create_causal_mask else full
        return mask[:, 0]

    panels = {
        "padding: keys of each sentence": create(create_bidirectional_mask, real)[:, 0],
        "causal": create(create_causal_mask, torch.ones_like(real))[0],
        f"both, for a target of {min(lengths)} tokens": create(create_causal_mask, real)[shortest],
    }
    figure = new_figure(11, 3.6)
    for axes, (title, panel) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        axes.imshow(panel.numpy(), cmap=COLOUR_MAP, vmin=0, vmax=1, aspect="auto")
        axes.set(title=title, xlabel="key", ylabel="sentence" if title.startswith("padding") else "query")
        axes.set_xticks(range(longest))
        axes.set_yticks(range(len(panel)))
    figure.suptitle("light: visible; dark: masked")
    return figure


def ablation(results: Mapping[str, Mapping[str, float]]) -> Figure:
    """Plot rows of Table 3 as differences to base: results of `scripts/study/ablate.py` next to those of the paper.

    Raises:
        ValueError: if base is missing, there is no other row, or a row lacks BLEU or perplexity.
    """
    if not isinstance(results, Mapping) or not all(isinstance(row, Mapping) for row in results.values()):
        raise ValueError("Not results of scripts/study/ablate.py: expected a JSON object with one object per row.")
    rows = [row for row in results if row != "base" and row in TABLE_3]
    if "base" not in results or not rows:
        raise ValueError("Rows are compared with base: the results must contain base and at least one other row.")
    if missing := [
        row
        for row in ("base", *rows)
        if not all(isinstance(results[row].get(key), (int, float)) for key in ("bleu", "perplexity"))
    ]:
        raise ValueError(f"BLEU or perplexity is missing for {', '.join(missing)}.")
    figure = new_figure(10, 1.2 + 0.5 * len(rows))
    for axes, measure in zip(figure.subplots(1, 2, sharey=True), ("BLEU", "perplexity"), strict=True):
        key = measure.lower()
        here = [results[row][key] - results["base"][key] for row in rows]
        paper = [getattr(TABLE_3[row], key) - getattr(TABLE_3["base"], key) for row in rows]
        for offset, values, name, colour, hatch in (
            (-0.2, here, "here", COLOURS[0], ""),
            (0.2, paper, "paper", COLOURS[5], "///"),
        ):
            places = [i + offset for i in range(len(rows))]
            axes.barh(places, values, 0.38, label=name, color=colour, hatch=hatch, edgecolor="white")
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set(title=f"{measure}, difference to base ({results['base'][key]:.2f} here)", yticks=range(len(rows)))
        axes.set_yticklabels(rows)
        axes.legend()
    axes.invert_yaxis()
    return figure


def search(result: Mapping[str, Any]) -> Figure:
    """Plot a hyperparameter search: the result of each trial, the best so far, and the importance of each setting."""
    figure = new_figure(11, 4)
    left, right = figure.subplots(1, 2)
    for state, marker, colour in (("complete", "o", COLOURS[0]), ("pruned", "x", COLOURS[1])):
        trials = [trial for trial in result["trials"] if trial["state"] == state and trial["value"] is not None]
        if trials:
            numbers, values = zip(*((trial["number"], trial["value"]) for trial in trials), strict=True)
            left.scatter(numbers, values, marker=marker, color=colour, label=state)
    best_of = max if result["direction"] == "maximize" else min
    # a pruned trial has only an intermediate value
    done = [trial for trial in result["trials"] if trial["state"] == "complete"]
    best = accumulate((trial["value"] for trial in done), best_of)
    left.step([trial["number"] for trial in done], [*best], where="post", color="black", label="best so far")
    left.set(xlabel="trial (0 has the given settings)", ylabel=result["measure"])
    left.locator_params(axis="x", integer=True)
    left.legend()
    shares = sorted(result["importances"].items(), key=lambda item: item[1])
    right.barh([name for name, _ in shares], [share for _, share in shares], color=COLOURS[0])
    right.set(xlabel="importance (PED-ANOVA)")
    return figure


def curve(text: str) -> tuple[int, int]:
    """Parse d_model and warm-up, as in 512:4000."""
    width, _, warmup = text.partition(":")
    try:
        return positive(width), positive(warmup)
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"must have the form 512:4000, got {text!r}") from None


def positive(text: str) -> int:
    """Parse a positive integer."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be positive, got {number}")
    return number


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    with_output = argparse.ArgumentParser(add_help=False)
    with_output.add_argument("--output", required=True, metavar="FILE", help="ends in .png or .svg")

    flags = kinds.add_parser("positions", parents=[with_output], help="sinusoids and their dot products by distance")
    flags.add_argument("--d_model", type=positive, default=512, help="width of the model (default: 512)")
    flags.add_argument("--positions", type=positive, default=100, help="number of positions (default: 100)")

    flags = kinds.add_parser("noam", parents=[with_output], help="learning rate of the noam schedule by update")
    curves = [(512, 4000), (512, 8000), (256, 4000), (1024, 4000)]
    flags.add_argument(
        "--curves", nargs="+", type=curve, default=curves, metavar="WIDTH:WARMUP", help="d_model and warm-up updates"
    )
    flags.add_argument("--steps", type=positive, default=20_000, help="number of updates (default: 20000)")

    flags = kinds.add_parser("masks", parents=[with_output], help="padding, causal and combined masks")
    flags.add_argument(
        "--lengths", nargs="+", type=positive, default=[8, 5, 3], help="of the sentences (default: 8 5 3)"
    )

    flags = kinds.add_parser("table3", parents=[with_output], help="rows of Table 3 against the paper's")
    flags.add_argument("results", type=Path, metavar="FILE", help="the ablation.json of scripts/study/ablate.py")

    flags = kinds.add_parser("search", parents=[with_output], help="trials of `tune`, and which settings mattered")
    flags.add_argument("results", type=Path, metavar="FILE", help="the trials.json of `vanilla-transformer tune`")

    args = parser.parse_args(argv)
    try:
        save(draw(args), args.output)
    except (ValueError, OSError) as error:
        sys.exit(f"plot.py: {error}")


def draw(args: argparse.Namespace) -> Figure:
    """Return the plot that the flags ask for."""
    if args.kind == "positions":
        return positions(args.d_model, args.positions)
    if args.kind == "noam":
        return noam_curves(args.curves, args.steps)
    if args.kind == "masks":
        return masks(args.lengths)
    results = json.loads(args.results.read_text(encoding="utf-8"))
    return search(results) if args.kind == "search" else ablation(results)


if __name__ == "__main__":
    main()
