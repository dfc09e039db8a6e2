"""The page of `demo`, with Gradio (the extra `demo`): translation, n-best lists and heat maps of the attention."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import torch

from ..errors import UserError
from ..files import import_extra
from ..inference.translator import Translator
from ..model.generation_vanilla_transformer import DEFAULT_LENGTH_PENALTY
from ..model.text_rules_vanilla_transformer import is_blank
from ..study.heads import all_heads, masks_without
from ..study.plots import KINDS, attention_map

if TYPE_CHECKING:
    from gradio import Blocks
    from matplotlib.figure import Figure

# Of a text. Checked here, not only in the text box, because a client need not be the page.
MAX_CHARACTERS = 2000
# Of a sentence: the axes of larger heat maps are not readable.
MAX_TOKENS = 128
_INTRODUCTION = """# {title}

The Transformer of [Attention Is All You Need](https://arxiv.org/abs/1706.03762). Translate a sentence, and see below
which tokens each attention head attends to."""

_ATTENTION = """## Attention

Each row shows how one token distributes its attention over the columns. A target row is the token that the decoder has
just read; from it, the decoder predicts the next token."""

_TABLE = "<table style='width: 100%'><tr><th align='left'>Score</th><th align='left'>Translation</th></tr>{}</table>"


class Candidate(NamedTuple):
    """A translation, its log-probability divided by the length penalty, and its token ids from start to `</s>`."""

    score: float
    text: str
    ids: list[int]


class Attention(TypedDict):
    """The attention weights of a model for one sentence.

    "weights" has those of the "encoder", the "decoder" and "cross", (layers, heads, queries, keys); "tokens" has the
    text of each token of the "source" and the "target".
    """

    weights: dict[str, torch.Tensor]
    tokens: dict[str, list[str]]


class Explorer:
    """Translate with a model and return its attention weights: the demo page without its user interface.

    Args:
        translator: the model, by its name on the page.
        thread: the one thread in which the model runs. PyTorch's own threads (OpenMP) are several times slower as soon
            as a second thread of Python uses them.
    """

    def __init__(self, translator: Translator, thread: ThreadPoolExecutor):
        self.translator = translator
        self.model = translator.model.eval()
        self._thread = thread
        self.heads = {str(head): head for head in all_heads(self.model.config)}

    @classmethod
    def load(cls, name: str, dtype: str = "float32") -> "Explorer":
        """Return the explorer of a model, which runs in a thread of its own, whoever calls.

        Args:
            name: the folder of a trained model, or its name on the Hub.
            dtype: the number format, one of `precision.DTYPES`.

        Raises:
            OSError, ValueError: as `Translator.load`.
        """
        thread = ThreadPoolExecutor(max_workers=1)
        translator = thread.submit(Translator.load, name, dtype=dtype).result()
        translator.name = name.rstrip("/").split("/")[-1]
        return cls(translator, thread)

    def translate(
        self, text: str, num_beams: int, alpha: float, target_lang: str | None = None, without: Sequence[str] = ()
    ) -> list[Candidate]:
        """Return the n best translations, best first; n is `num_beams`.

        Args:
            text: the source sentence.
            num_beams: beam size; 1 for greedy search.
            alpha: length penalty (section 6.1).
            target_lang: the target language, for a model that has several.
            without: the heads that are switched off, of `heads`.

        Raises:
            ValueError: if the text is blank or too long; the message is shown to the user of the page.
        """
        if is_blank(text):
            raise UserError("Type a sentence first.")
        if len(text) > MAX_CHARACTERS:
            raise UserError(f"The text has {len(text):,} characters, but the limit is {MAX_CHARACTERS:,}.")
        (source,) = self.translator.encode([text], target_lang=target_lang)
        # The model may have fewer positions.
        limit = min(MAX_TOKENS, self.translator.max_source_tokens)
        if len(source) > limit:
            raise UserError(f"The text has {len(source)} tokens, but the limit is {limit}.")

        settings: dict[str, Any] = {"num_beams": num_beams, "length_penalty": alpha, **self._masks(without)}
        (output,) = self._thread.submit(
            self.translator.translate_ids, [source], num_beams, scores=True, **settings
        ).result()
        end = self.model.config.eos_token_id
        # Without padding: up to the first `</s>` after the start token, which may be the same token.
        ids = [each[: each.index(end, 1) + 1] if end in each[1:] else each for each in output.hypotheses]
        return list(map(Candidate, output.scores, self.translator.decode(output.hypotheses), ids))

    def attention(
        self, text: str, target: list[int], target_lang: str | None = None, without: Sequence[str] = ()
    ) -> Attention:
        """Return all attention weights of the model for the source `text` and the output `target`.

        Args:
            text: the source sentence.
            target: the token ids of a translation, from the decoder start token to `</s>`.
            target_lang: the target language, for a model that has several.
            without: as for `translate`.
        """
        (source,) = self.translator.encode([text], target_lang=target_lang)
        # The last token, `</s>`, is only predicted: no query is computed for it.
        weights = self._thread.submit(self._weights, source, target[:-1], without).result()
        tokens = {"source": self._token_labels(source), "target": self._token_labels(target[:-1])}
        return {"weights": weights, "tokens": tokens}

    def _weights(self, source: list[int], target: list[int], without: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the weights of each kind of attention, (layers, heads, queries, keys), for what the decoder reads."""
        # (1, S) and (1, T)
        inputs = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([target])}
        inputs |= self._masks(without)

        weights = {}
        for kind in KINDS:
            # (layers, 1, heads, queries, keys)
            attention = self.model.attention(inputs, kind)
            if attention is None:
                raise UserError(f"{self.translator.name} has no attention weights to show: give a model in torch.")
            weights[kind] = attention.squeeze(1)
        return weights

    def _masks(self, without: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the head masks that switch off the heads of these names."""
        return masks_without([self.heads[name] for name in without], self.model.config)

    def _token_labels(self, ids: list[int]) -> list[str]:
        """Return a printable label for each token: "␣" for white space, "·" for an unprintable character."""
        texts = [str(self.translator.tokenizer.decode([token])).strip() or "␣" for token in ids]
        return ["".join(character if character.isprintable() else "·" for character in text) for text in texts]

    def heat_map(self, attention: Attention, kind: str, layer: int, head: int) -> "Figure":
        """Return the heat map of one attention head.

        Args:
            attention: the result of `attention`.
            kind: "encoder", "decoder" or "cross".
            layer, head: counted from 1; a layer behind the last is the last.
        """
        queries, keys = KINDS[kind]
        tokens = attention["tokens"]
        weights = attention["weights"][kind]
        # The slider goes to the larger number of layers, but encoder and decoder may have different ones.
        layer = min(layer, len(weights))
        title = f"{kind} attention, layer {layer}, head {head}"
        return attention_map(weights[layer - 1, head - 1], tokens[queries], tokens[keys], title, (queries, keys))


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
    rows = "".join(f"<tr><td>{each.score:.3f}</td><td>{escape(each.text)}</td></tr>" for each in candidates)
    best = candidates[0]
    return best.text, _TABLE.format(rows), (text, best.ids, target_lang, without)


def _draw(explorer: Explorer, shown: _Shown | None, kind: str, layer: int, head: int) -> "Figure | None":
    """Return the heat map of one head, or None if nothing has been translated yet."""
    if shown is None:
        return None
    return explorer.heat_map(explorer.attention(*shown), kind, int(layer), int(head))


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
