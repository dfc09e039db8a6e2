"""Plots with matplotlib (requires the extra `plots`), readable in print and with colour-vision deficiency.

Heat maps use the perceptually uniform colour map cividis; lines differ in style as well as in colour, with the palette
of Okabe and Ito.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...errors import UserError
from ...files import STATE, JsonObject, import_extra, read_json, replacing
from ...inference.attention import KINDS, draw_head
from ...training.checkpoints import checkpoint_folders
from ...training.progress import overfitting, validations

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = ".xsv"  # of the curves of one run in one panel
_PERPLEXITY = "perplexity in validation and training"
_TRAINING, _VALIDATION = "training", "validation"


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure; width and height are in inches.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    return import_extra("matplotlib.figure", "plots").Figure(figsize=(width, height), layout="constrained")


def line_style(i: int) -> JsonObject:
    """Return the colour and line style of the `i`-th line."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": _STYLES[i % len(_STYLES)]}


def save(figure: "Figure", file: str) -> None:
    """Write a figure to a PNG or SVG file. Equal figures produce identical bytes.

    Raises:
        ValueError: if `file` ends in neither .png nor .svg.
    """
    import matplotlib

    kind = Path(file).suffix
    if kind not in (".png", ".svg"):
        raise UserError(f"Cannot write {file}: the name must end in .png or .svg.")
    # without random ids, dates and versions, so that a repeated command leaves no difference
    with matplotlib.rc_context({"svg.hashsalt": "vanilla-transformer"}), replacing(file) as unfinished:
        metadata = {"Date": None} if kind == ".svg" else {"Software": None}
        figure.savefig(unfinished, format=kind[1:], dpi=150, metadata=metadata)


def attention_heads(
    weights: Mapping[str, torch.Tensor], tokens: Mapping[str, Sequence[str]], layer: int = -1
) -> "Figure":
    """Plot all heads of one layer for one sentence, in three rows: encoder, decoder and cross-attention.

    Args:
        weights: attention of "encoder", "decoder" and "cross", each (layers, heads, queries, keys).
        tokens: the tokens of "source" and "target".
        layer: index of the layer; negative numbers count from the last.

    Raises:
        ValueError: if there is no such layer.
    """
    layers = min(len(all_layers) for all_layers in weights.values())
    heads = weights["encoder"].shape[1]
    if not -layers <= layer < layers:
        raise UserError(f"There is no layer {layer}: the model has {layers} layers, from 0 to {layers - 1}.")
    side = 1.1 + 0.17 * max(map(len, tokens.values()))
    figure = new_figure(side * heads + 1, side * 3 + 0.5)
    panels = figure.subplots(3, heads, squeeze=False)
    for row, (kind, (queries, keys)) in zip(panels, KINDS.items(), strict=True):
        for head, axes in enumerate(row):
            image = draw_head(axes, weights[kind][layer, head], tokens[queries], tokens[keys])
            # the queries are those of the whole row
            axes.tick_params(labelsize=6, labelleft=head == 0)
            axes.set_title(f"{kind}, head {head + 1}", fontsize=9)
    figure.suptitle(
        f"layer {layer % layers + 1} of {layers}: rows are queries, columns are keys\n"
        "(queries of the decoder and of cross-attention are the target tokens read so far; each predicts the next one)"
    )
    figure.colorbar(image, ax=panels, label="attention", shrink=0.6)
    return figure


def _is_valid(entry: object) -> bool:
    """Return whether an entry of a log has its update, and numbers for all measures that are plotted."""
    if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
        return False
    return all(isinstance(entry[key], (int, float)) for key in entry if key.endswith(("loss", "perplexity", "bleu")))


def read_log(run: str) -> list[dict[str, float]]:
    """Return the log of a training run from its folder or its checkpoints, whichever has seen the most updates.

    Raises:
        FileNotFoundError: if there is no log.
        ValueError: if a log is damaged.
    """
    # A run that was killed has the newest state in a checkpoint; one that has finished may keep no checkpoints.
    logs: dict[int, list[dict[str, float]]] = {}
    for folder in (Path(run), *checkpoint_folders(run)):
        if not (folder / STATE).is_file():
            continue
        state = read_json(folder / STATE)
        log = state.get("log_history") if isinstance(state, dict) else None
        is_valid = isinstance(log, list) and all(map(_is_valid, log))
        if not is_valid or not isinstance(state.get("global_step"), int):
            raise UserError(f"{folder / STATE} is damaged: it is not the state of a training run.")
        # of equally new logs the run's own, which ends with the totals
        logs.setdefault(state["global_step"], state["log_history"])
    if not logs:
        raise FileNotFoundError(f"{run} is not the folder of a training run: no {STATE} in it or in a checkpoint.")
    return logs[max(logs)]


def _curves(log: Sequence[Mapping[str, float]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return the points (update, value) in the log of a run, by panel and by what tells its curves there apart."""

    def logged(key: str) -> list[tuple[float, float]]:
        return [(entry["step"], entry[key]) for entry in log if key in entry]

    perplexities = {_TRAINING: logged("perplexity")}
    bleus: dict[str, list[tuple[float, float]]] = {}
    for updates, text, perplexity, bleu in validations(log):
        perplexities.setdefault(text or _VALIDATION, []).append((updates, perplexity))
        if bleu is not None:
            bleus.setdefault(text, []).append((updates, bleu))
    panels = {
        "training loss, with label smoothing": {"": logged("loss")},
        _PERPLEXITY: perplexities,
        "validation BLEU": bleus,
    }
    return {title: {name: points for name, points in panel.items() if points} for title, panel in panels.items()}


def training_curves(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> "Figure":
    """Plot loss, perplexity in training and validation, and BLEU by update, from the logs of one or more runs.

    A vertical line marks the best validation of a run that overfits. A run that is alone needs no name.

    Raises:
        ValueError: if none of these has been logged.
    """
    curves = {name: _curves(log) for name, log in runs.items()}
    present = [title for title in _curves([]) if any(panels[title] for panels in curves.values())]
    if not present:
        raise UserError(f"Nothing to plot: {', '.join(runs)} logged no loss, perplexity or BLEU.")
    figure = new_figure(4.5 * len(present), 4)
    for axes, title in zip(figure.subplots(1, len(present), squeeze=False)[0], present, strict=True):
        for i, (name, log) in enumerate(runs.items()):
            run = name if len(runs) > 1 else ""
            for marker, (part, points) in zip(cycle(_MARKERS), curves[name][title].items(), strict=False):
                # Curves of a run share their colour and style; that of training is thin
                width = 0.7 if part == _TRAINING else 1.5
                axes.plot(
                    *zip(*points, strict=True),
                    label=", ".join(filter(None, (run, part))),
                    linewidth=width,
                    marker=marker,
                    markersize=3 * width,
                    **line_style(i),
                )
            if title == _PERPLEXITY and (overfit := overfitting(log)):
                label = f"{run} overfits after update {overfit[0].updates:,}".strip()
                axes.axvline(overfit[0].updates, label=label, linewidth=0.7, **line_style(i))
        axes.set(xlabel="update", title=title)
        if title == _PERPLEXITY:
            # Numbers such as 3, where matplotlib would print 3 x 10^0, and not so many that they overlap
            axes.set_yscale("log")
            from matplotlib.ticker import LogFormatter, ScalarFormatter

            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(3, 0.4)))
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend()
    return figure
