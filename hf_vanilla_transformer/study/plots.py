"""Pictures, with matplotlib (the extra `plots`): for print and for eyes that see fewer colours.

Heat maps go from dark to light evenly (cividis); lines differ in style as well as in colour (Okabe and Ito's).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data.batching import pad
from ..files import STATE, import_extra
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.layers_vanilla_transformer import sinusoids
from ..training.checkpoints import checkpoint_folders
from ..training.presets import TABLE_3
from ..training.schedule import noam

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
_HEAT = "cividis"
_INCHES_A_TOKEN = 0.32


def figure_class() -> "type[Figure]":
    """matplotlib's `Figure`.

    Raises:
        ImportError: where matplotlib is missing.
    """
    return import_extra("matplotlib.figure", "plots").Figure


def _figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches."""
    return figure_class()(figsize=(width, height), layout="constrained")


def _style(i: int) -> dict[str, Any]:
    return {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _STYLES[i % len(_STYLES)]}


def save(figure: "Figure", file: str) -> None:
    """Writes a picture, the same bytes each time.

    Raises:
        ValueError: if `file` ends in neither .png nor .svg.
    """
    import matplotlib

    kind = Path(file).suffix
    if kind not in (".png", ".svg"):
        raise ValueError(f"{file}: a picture's name ends in .png or .svg.")
    with matplotlib.rc_context({"svg.hashsalt": "vanilla-transformer"}):
        figure.savefig(file, dpi=150, metadata={"Date": None} if kind == ".svg" else {"Software": None})


def positions(d_model: int, count: int) -> "Figure":
    """Section 3.5's table, a row for each of the first `count` positions, and dot products of its rows by distance."""
    table = sinusoids(count, d_model)
    figure = _figure(11, 4)
    left, right = figure.subplots(1, 2)
    image = left.imshow(table.numpy(), cmap=_HEAT, aspect="auto", vmin=-1, vmax=1, interpolation="nearest")
    left.set(xlabel="dimension", ylabel="position", title=f"sine and cosine by turns, d_model {d_model}")
    figure.colorbar(image, ax=left)
    products = table @ table.T
    for i, position in enumerate((count // 4, count // 2)):
        distances = torch.arange(count) - position
        right.plot(distances, products[position], label=f"from position {position}", **_style(i))
    right.set(xlabel="distance", ylabel="dot product", title="the same at every position")
    right.legend()
    return figure


def noam_curves(curves: Sequence[tuple[int, int]], steps: int) -> "Figure":
    """Equation 3's learning rate by update, for pairs of d_model and warm-up; the paper's own peak is marked."""
    figure = _figure(8, 4.5)
    axes = figure.add_subplot()
    updates = range(1, steps + 1)
    for i, (d_model, warmup) in enumerate(curves):
        rates = [noam(step, d_model, warmup) for step in updates]
        axes.plot(updates, rates, label=f"d_model {d_model}, warm-up {warmup:,}", **_style(i))
    if (512, 4000) in curves and steps >= 4000:
        peak = noam(4000, 512, 4000)
        axes.plot(4000, peak, "o", color="black", label=f"the peak of the paper's base, {peak:.2e}")
    axes.set(xlabel="update", ylabel="learning rate", ylim=(0, None))
    axes.legend()
    return figure


def masks(lengths: Sequence[int]) -> "Figure":
    """What may be attended to in a batch of sentences: padding, causal, and both for the shortest sentence.

    The masks are those that the model makes.
    """
    from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

    config = VanillaTransformerConfig()
    config._attn_implementation = "sdpa"  # whose masks are true where there is attention
    real = pad([[1] * length for length in lengths], 0)
    longest, shortest = max(lengths), lengths.index(min(lengths))
    states = torch.zeros(len(lengths), longest, 1)

    def mask(make: Any, keep: torch.Tensor) -> torch.Tensor:
        settings = {"past_key_values": None} if make is create_causal_mask else {}
        made = make(config=config, inputs_embeds=states, attention_mask=keep, **settings)
        if made is None:  # transformers leaves out masks that hide nothing, or all that comes later
            full = torch.ones(len(lengths), longest, longest, dtype=torch.bool)
            return full.tril() if make is create_causal_mask else full
        return made[:, 0]

    panels = {
        "padding: keys of each sentence": mask(create_bidirectional_mask, real)[:, 0],
        "causal": mask(create_causal_mask, torch.ones_like(real))[0],
        f"both, for a target of {min(lengths)} tokens": mask(create_causal_mask, real)[shortest],
    }
    figure = _figure(11, 3.6)
    for axes, (title, panel) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        axes.imshow(panel.numpy(), cmap=_HEAT, vmin=0, vmax=1, aspect="auto")
        axes.set(title=title, xlabel="key", ylabel="sentence" if title.startswith("padding") else "query")
        axes.set_xticks(range(longest))
        axes.set_yticks(range(len(panel)))
    figure.suptitle("light: may be attended to; dark: hidden")
    return figure


def attention_map(
    weights: torch.Tensor, queries: Sequence[str], keys: Sequence[str], title: str, of: tuple[str, str]
) -> "Figure":
    """A heat map of one head's attention: a row for each query, which sums to 1 over the keys.

    Args:
        weights: (queries, keys), section 3.2.1's softmax.
        of: what queries and keys are, for the axes.

    Raises:
        ImportError: where matplotlib is missing.
    """
    height, width = (max(3.0, 1.6 + _INCHES_A_TOKEN * len(tokens)) for tokens in (queries, keys))
    figure = _figure(width + 0.8, height)
    axes = figure.add_subplot()
    image = axes.imshow(weights.numpy(), cmap=_HEAT, vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(keys)), keys, rotation=90)
    axes.set_yticks(range(len(queries)), queries)
    axes.set_xlabel(of[1])
    axes.set_ylabel(of[0])
    axes.set_title(title)
    figure.colorbar(image, ax=axes, label="attention")
    return figure


def attention_heads(
    weights: Mapping[str, torch.Tensor], tokens: Mapping[str, Sequence[str]], layer: int = -1
) -> "Figure":
    """Every head of one layer on one sentence: rows are the encoder's, the decoder's and cross-attention.

    Args:
        weights: "encoder", "decoder" and "cross", each (layers, heads, queries, keys).
        tokens: "source" and "target".

    Raises:
        ValueError: if there is no such layer.
    """
    rows = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}
    layers, heads = min(len(all_layers) for all_layers in weights.values()), weights["encoder"].shape[1]
    if not -layers <= layer < layers:
        raise ValueError(f"There are {layers} layers, from 0 to {layers - 1}; none is {layer}.")
    side = 1.1 + 0.17 * max(map(len, tokens.values()))
    figure = _figure(side * heads + 1, side * 3 + 0.5)
    panels = figure.subplots(3, heads, squeeze=False)
    for line, (kind, (queries, keys)) in zip(panels, rows.items(), strict=True):
        for head, axes in enumerate(line):
            image = axes.imshow(weights[kind][layer, head].numpy(), cmap=_HEAT, vmin=0, vmax=1, aspect="auto")
            axes.set_xticks(range(len(tokens[keys])), tokens[keys], rotation=90, fontsize=6)
            axes.set_yticks(range(len(tokens[queries])), tokens[queries] if head == 0 else [], fontsize=6)
            axes.set_title(f"{kind}, head {head + 1}", fontsize=9)
    figure.suptitle(
        f"layer {layer % layers + 1} of {layers}: each row of a panel looks at its columns\n"
        "(the decoder's rows, in cross-attention too, are tokens it has read, to predict the next)"
    )
    figure.colorbar(image, ax=panels, label="attention", shrink=0.6)
    return figure


def read_log(run: str) -> list[dict[str, float]]:
    """What a training run has logged so far, from its folder or a checkpoint, whichever is newest.

    Raises:
        FileNotFoundError: if there is no log.
        ValueError: if one is damaged.
    """
    files = [folder / STATE for folder in (Path(run), *checkpoint_folders(run))]
    files = [file for file in files if file.is_file()]
    states = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    for file, state in zip(files, states, strict=True):
        if not isinstance(state, dict) or not isinstance(state.get("global_step"), int):
            raise ValueError(f"{file} is damaged: it is no state of a training run.")
        logs = state.get("log_history")
        if not isinstance(logs, list) or not all(isinstance(log, dict) and "step" in log for log in logs):
            raise ValueError(f"{file} is damaged: its log_history is no log.")
    if states:
        return max(states, key=lambda state: state["global_step"])["log_history"]
    raise FileNotFoundError(f"{run} holds no training run: there is no {STATE}, nor a checkpoint with one.")


def training_curves(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> "Figure":
    """Training loss, validation perplexity and validation BLEU by update, for the logs of one or several runs."""
    measures = {
        "loss": "training loss, smoothed labels",
        "eval_perplexity": "validation perplexity",
        "eval_bleu": "validation BLEU",
    }
    present = {
        key: title for key, title in measures.items() if any(key in log for run in runs.values() for log in run)
    }
    if not present:
        raise ValueError(f"Nothing has been logged yet in {', '.join(runs)}.")
    figure = _figure(4.5 * len(present), 4)
    for axes, (key, title) in zip(figure.subplots(1, len(present), squeeze=False)[0], present.items(), strict=True):
        for i, (name, run) in enumerate(runs.items()):
            points = [(log["step"], log[key]) for log in run if key in log]
            if points:
                axes.plot(*zip(*points, strict=True), label=name, marker=".", markersize=3, **_style(i))
        axes.set(xlabel="update", title=title)
        if key == "eval_perplexity":
            axes.set_yscale("log")
            from matplotlib.ticker import ScalarFormatter

            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_formatter(ScalarFormatter())
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def learning_rates(result: Mapping[str, Any]) -> "Figure":
    """A range test: the loss while the rate rises with the schedule off, and validation loss by factor with it on."""
    figure = _figure(11, 4)
    left, right = figure.subplots(1, 2)
    off, on = result["schedule_off"], [row for row in result["schedule_on"] if row["eval_loss"] is not None]
    left.plot(off["rates"], off["smoothed_losses"], **_style(0))
    for i, (name, rate) in enumerate((("falls fastest", off["steepest"]), ("lowest", off["lowest"])), start=1):
        left.axvline(rate, label=f"{name}: {rate:.2g}", **_style(i))
    left.set(xscale="log", xlabel="learning rate", ylabel="training loss, smoothed", title="schedule off")
    left.legend()
    right.plot([row["factor"] for row in on], [row["eval_loss"] for row in on], marker="o", **_style(0))
    right.set(xscale="log", xlabel="factor on the schedule", ylabel="validation loss")
    right.set_title(f"schedule on, {result['updates']:,} updates each")
    return figure


def search_results(result: Mapping[str, Any]) -> "Figure":
    """A hyperparameter search: what every trial reached, the best so far, and which settings mattered."""
    figure = _figure(11, 4)
    left, right = figure.subplots(1, 2)
    for state, marker, colour in (("complete", "o", _COLOURS[0]), ("pruned", "x", _COLOURS[1])):
        trials = [trial for trial in result["trials"] if trial["state"] == state and trial["value"] is not None]
        if trials:
            name = "given up early" if state == "pruned" else "complete"
            numbers, values = zip(*((trial["number"], trial["value"]) for trial in trials), strict=True)
            left.scatter(numbers, values, marker=marker, color=colour, label=name)
    best_of = max if result["direction"] == "maximize" else min
    done = [trial for trial in result["trials"] if trial["state"] == "complete"]
    best = [best_of(trial["value"] for trial in done[: i + 1]) for i in range(len(done))]
    left.step([trial["number"] for trial in done], best, where="post", color="black", label="best so far")
    left.set(xlabel="trial (0 is the given settings)", ylabel=result["measure"])
    left.locator_params(axis="x", integer=True)
    left.legend()
    shares = sorted(result["importances"].items(), key=lambda item: item[1])
    right.barh([name for name, _ in shares], [share for _, share in shares], color=_COLOURS[0])
    right.set(xlabel="share of what mattered (PED-ANOVA)")
    return figure


def costs(lengths: Sequence[int], seconds: Mapping[str, Sequence[float]], d_model: int) -> "Figure":
    """Time of one layer of each type by the length of the sequence, and where it is as long as the layer is wide."""
    figure = _figure(8, 5)
    axes = figure.add_subplot()
    for i, (kind, times) in enumerate(seconds.items()):
        axes.plot(lengths, [1000 * time for time in times], label=kind, marker=".", **_style(i))
    axes.axvline(d_model, color="gray", linewidth=0.8, label=f"n = d = {d_model}")
    axes.set(xscale="log", yscale="log", xlabel="length n", ylabel="milliseconds a sequence")
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    axes.legend()
    return figure


def ablation(results: Mapping[str, Mapping[str, float]]) -> "Figure":
    """Rows of Table 3 against base: what `scripts/study/ablate.py` measured, and beside it what the paper did.

    Raises:
        ValueError: if base is not among the rows, or nothing else is, or one lacks a measure.
    """
    if not isinstance(results, Mapping) or not all(isinstance(row, Mapping) for row in results.values()):
        raise ValueError("Not results of scripts/study/ablate.py: they are an object with an object for each row.")
    rows = [row for row in results if row != "base" and row in TABLE_3]
    if "base" not in results or not rows:
        raise ValueError("Rows are compared with base: it must be among the results, with at least one other.")
    if missing := [
        row
        for row in ("base", *rows)
        if not all(isinstance(results[row].get(key), (int, float)) for key in ("bleu", "perplexity"))
    ]:
        raise ValueError(f"There is no BLEU or no perplexity for {', '.join(missing)}.")
    figure = _figure(10, 1.2 + 0.5 * len(rows))
    for axes, measure in zip(figure.subplots(1, 2, sharey=True), ("BLEU", "perplexity"), strict=True):
        key = measure.lower()
        here = [results[row][key] - results["base"][key] for row in rows]
        paper = [getattr(TABLE_3[row], key) - getattr(TABLE_3["base"], key) for row in rows]
        for offset, values, name, colour, hatch in (
            (-0.2, here, "here", _COLOURS[0], ""),
            (0.2, paper, "paper", _COLOURS[5], "///"),
        ):
            places = [i + offset for i in range(len(rows))]
            axes.barh(places, values, 0.38, label=name, color=colour, hatch=hatch, edgecolor="white")
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set(title=f"{measure}, difference to base ({results['base'][key]:.2f} here)", yticks=range(len(rows)))
        axes.set_yticklabels(rows)
        axes.legend()
    axes.invert_yaxis()
    return figure
