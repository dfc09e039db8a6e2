"""The page of `demo`, with Gradio (the extra `demo`): translation, n-best lists and heat maps of the attention."""

from collections.abc import Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING

import torch

from ...data.phrases import splits
from ...files import import_extra
from ...inference.attention import KINDS, MAX_CHARACTERS, Attention, Explorer, draw_head
from ...model.generation_vanilla_transformer import DEFAULT_LENGTH_PENALTY

if TYPE_CHECKING:
    from gradio import Blocks
    from matplotlib.figure import Figure

_INCHES_PER_TOKEN = 0.32
_NUM_EXAMPLES = 4
_INTRODUCTION = """# {title}

The Transformer of [Attention Is All You Need](https://arxiv.org/abs/1706.03762). Translate a sentence, and see below
which tokens each attention head attends to."""

_ATTENTION = """## Attention

Each row shows how one token distributes its attention over the columns. In the decoder and in cross-attention, a row
is named after the token that the decoder predicts there, the one after the token that it has just read."""

_TABLE = "<table style='width: 100%'><tr><th align='left'>Score</th><th align='left'>Translation</th></tr>{}</table>"


def attention_map(
    weights: torch.Tensor, queries: Sequence[str], keys: Sequence[str], title: str, axis_labels: tuple[str, str]
) -> "Figure":
    """Plot the attention of one head as a heat map, with one row per query.

    Args:
        weights: (queries, keys), the softmax of section 3.2.1; each row sums to 1.
        axis_labels: labels of the query axis and of the key axis.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    height = max(3.0, 1.6 + _INCHES_PER_TOKEN * len(queries))
    width = max(3.0, 1.6 + _INCHES_PER_TOKEN * len(keys))
    figure = import_extra("matplotlib.figure", "demo").Figure(figsize=(width + 0.8, height), layout="constrained")
    axes = figure.add_subplot()
    image = draw_head(axes, weights, queries, keys)
    axes.set(xlabel=axis_labels[1], ylabel=axis_labels[0], title=title)
    figure.colorbar(image, ax=axes, label="attention")
    return figure


def heat_map(attention: Attention, kind: str, layer: int, head: int) -> "Figure":
    """Return the heat map of one attention head.

    Args:
        attention: the result of `Explorer.attention`.
        kind: "encoder", "decoder" or "cross".
        layer, head: counted from 1; a layer behind the last is the last.
    """
    queries, keys = KINDS[kind]
    tokens = attention["tokens"]
    weights = attention["weights"][kind]
    # Queries of the decoder: what it predicts says more than what it has just read
    rows = "predicted" if queries == "target" else queries
    # The slider goes to the larger number of layers, but encoder and decoder may have different ones.
    layer = min(layer, len(weights))
    title = f"{kind} attention, layer {layer}, head {head}"
    return attention_map(weights[layer - 1, head - 1], tokens[rows], tokens[keys], title, (rows, keys))


# The arguments of `Explorer.attention` for what is on the page, which keeps these and not the weights themselves: they
# are large, and quickly computed.
_Shown = tuple[str, list[int], str | None, list[str]]


def _translate(
    explorer: Explorer, text: str, num_beams: int, alpha: float, target_lang: str | None, without: list[str]
) -> tuple[str, str, _Shown]:
    """Return what the page shows of a text's translations: the best, a table of all, and what to draw."""
    try:
        candidates = explorer.translate(text, int(num_beams), alpha, target_lang, without)
    except ValueError as error:
        # Gradio would print other exceptions with a traceback and show them without their message.
        gr = import_extra("gradio", "demo")
        raise gr.Error(str(error), title="Cannot translate", print_exception=False) from None
    # Gradio does not escape the content of an HTML element.
    rows = "".join(
        f"<tr><td>{candidate.score:.3f}</td><td>{escape(candidate.text)}</td></tr>" for candidate in candidates
    )
    best = candidates[0]
    return best.text, _TABLE.format(rows), (text, best.ids, target_lang, without)


def _draw(explorer: Explorer, shown: _Shown | None, kind: str, layer: int, head: int) -> "Figure | None":
    """Return the heat map of one head, or None if nothing has been translated yet."""
    if shown is None:
        return None
    return heat_map(explorer.attention(*shown), kind, int(layer), int(head))


def _examples(languages: Sequence[str]) -> list[str]:
    """Return some short built-in phrases in the first of these languages that they have, or none."""
    language = next((language for language in languages if language in ("en", "de")), None)
    texts = [getattr(phrase, language) for phrase in splits()["test"]] if language else []
    # Gradio cuts longer ones
    return [text for text in texts if len(text) < 60][:_NUM_EXAMPLES]


def build_page(explorer: Explorer) -> "Blocks":
    """Return the demo page for a model, to launch.

    Raises:
        ImportError: if Gradio is not installed.
    """
    gr = import_extra("gradio", "demo")
    config = explorer.model.config
    defaults = explorer.model.generation_config
    directions = explorer.translator.directions
    draw = partial(_draw, explorer)

    with gr.Blocks(title=explorer.translator.name, analytics_enabled=False) as page:
        gr.Markdown(_INTRODUCTION.format(title=explorer.translator.name))
        with gr.Row():
            with gr.Column():
                label = f"Source ({directions.source_lang or 'any language'})"
                source = gr.Textbox(label=label, lines=3, max_lines=8, max_length=MAX_CHARACTERS)
                if examples := _examples(directions.sources):
                    gr.Examples(examples, source, label="Examples")
                num_beams = gr.Slider(1, 10, defaults.num_beams or 1, step=1, label="Beam size (translations shown)")
                value = DEFAULT_LENGTH_PENALTY if defaults.length_penalty is None else defaults.length_penalty
                alpha = gr.Slider(0, 2, value, step=0.1, label="Length penalty (alpha)")
                targets = directions.targets
                target_lang = gr.Dropdown(targets, label="Target language", visible=len(targets) > 1)
                without = gr.Dropdown(list(explorer.heads), value=[], multiselect=True, label="Heads switched off")
                button = gr.Button("Translate", variant="primary")
            with gr.Column():
                best = gr.Textbox(label=f"Translation ({directions.target_lang or 'any language'})", lines=3)
                table = gr.HTML()
        gr.Markdown(_ATTENTION)
        with gr.Row():
            kind = gr.Radio(list(KINDS), value="cross", label="Attention")
            num_layers = max(config.num_encoder_layers, config.num_decoder_layers)
            # A slider needs two values; one that has only a single value is hidden.
            layer = gr.Slider(1, max(num_layers, 2), num_layers, step=1, label="Layer", visible=num_layers > 1)
            head = gr.Slider(1, max(config.num_heads, 2), 1, step=1, label="Head", visible=config.num_heads > 1)
        plot = gr.Plot(show_label=False)
        shown = gr.State()
        selection = [shown, kind, layer, head]
        inputs = [source, num_beams, alpha, target_lang, without]
        for event in (button.click, source.submit):
            event(partial(_translate, explorer), inputs, [best, table, shown]).success(draw, selection, plot)
        for control in (kind, layer, head):
            control.change(draw, selection, plot, show_progress="hidden")
    return page
