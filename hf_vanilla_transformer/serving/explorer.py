"""The page of `demo`, with Gradio (the extra `demo`): translation, n-best lists and heat maps of the attention."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from html import escape
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch

from ..files import import_extra
from ..inference.translator import Translator
from ..model.generation_vanilla_transformer import DEFAULT_LENGTH_PENALTY
from ..model.text_rules_vanilla_transformer import is_blank
from ..study.plots import attention_map

if TYPE_CHECKING:
    from gradio import Blocks, Slider
    from matplotlib.figure import Figure

    from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

MAX_CHARACTERS = 2000  # per text; checked here too, because a client need not be the page
MAX_TOKENS = 128  # per sentence; larger heat maps are not readable
_KINDS = {  # kind of attention: model output, queries, keys
    "encoder": ("encoder_attentions", "source", "source"),
    "decoder": ("decoder_attentions", "target", "target"),
    "cross": ("cross_attentions", "target", "source"),
}
_INTRODUCTION = """# {title}

The Transformer of [Attention Is All You Need](https://arxiv.org/abs/1706.03762). Translate a sentence, and see below
which tokens each attention head attends to."""

_TABLE = "<table style='width: 100%'><tr><th align='left'>Score</th><th align='left'>Translation</th></tr>{}</table>"
_ROW = "<tr><td>{}</td><td>{}</td></tr>"


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
        self.name = translator.name
        # shown models are in torch: attention needs their forward pass
        self.model: VanillaTransformerForConditionalGeneration = translator.model.eval()  # type: ignore[assignment]
        self.tokenizer = translator.tokenizer
        self.directions = translator.directions
        self._thread = thread

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

    def _source_ids(self, text: str, target_lang: str | None) -> list[int]:
        """Return the token ids of a source, with the tag of the target language if the model has tags."""
        (ids,) = self.translator.encode([text], target_lang=target_lang)
        return ids

    def translate(self, text: str, num_beams: int, alpha: float, target_lang: str | None = None) -> list[Candidate]:
        """Return the n best translations, best first; n is `num_beams`.

        Args:
            text: the source sentence.
            num_beams: beam size; 1 for greedy search.
            alpha: length penalty (section 6.1).
            target_lang: the target language, for a model that has several.

        Raises:
            ValueError: if the text is blank or too long; the message is shown to the user of the page.
        """
        if is_blank(text):
            raise ValueError("Type a sentence first.")
        if len(text) > MAX_CHARACTERS:
            raise ValueError(
                f"The text has {len(text):,} characters, but the limit is {MAX_CHARACTERS:,}. Try a shorter sentence."
            )
        source = self._source_ids(text, target_lang)
        if len(source) > MAX_TOKENS:
            raise ValueError(
                f"The text has {len(source)} tokens, but the limit is {MAX_TOKENS}. Try a shorter sentence."
            )

        search = partial(
            self.translator.translate_ids, nbest=num_beams, scores=True, num_beams=num_beams, length_penalty=alpha
        )
        (output,) = self._thread.submit(search, [source]).result()
        if output.problem:
            # the model may have fewer positions than the page shows
            raise ValueError(f"The text has {output.problem}. Try a shorter sentence.")
        ids = map(self._without_padding, output.hypotheses)
        return list(map(Candidate, output.scores, self.translator.decode(output.hypotheses), ids))

    def _without_padding(self, ids: list[int]) -> list[int]:
        """Return the token ids up to the first `</s>` after the start token, which may be the same token."""
        end = self.model.config.eos_token_id
        return ids[: ids.index(end, 1) + 1] if end in ids[1:] else ids

    def attention(self, text: str, target: list[int], target_lang: str | None = None) -> Attention:
        """Return all attention weights of the model for the source `text` and the output `target`.

        Args:
            text: the source sentence.
            target: the token ids of a translation, from the decoder start token to `</s>`.
            target_lang: the target language, for a model that has several.
        """
        source = self._source_ids(text, target_lang)
        weights = self._thread.submit(self._weights, source, target[:-1]).result()
        tokens = {"source": self._token_labels(source), "target": self._token_labels(target[:-1])}
        return {"weights": weights, "tokens": tokens}

    @torch.inference_mode()
    def _weights(self, source: list[int], target: list[int]) -> dict[str, torch.Tensor]:
        """Return the weights of each kind of attention, (layers, heads, queries, keys), for what the decoder reads."""
        source_ids = torch.tensor([source], device=self.model.device)  # (1, S)
        target_ids = torch.tensor([target], device=self.model.device)  # (1, T)

        attention = self.model.config._attn_implementation
        # the only one that returns its weights
        self.model.set_attn_implementation("eager")
        try:
            outputs = self.model(input_ids=source_ids, decoder_input_ids=target_ids, output_attentions=True)
        finally:
            self.model.set_attn_implementation(attention)

        # per layer (1, heads, queries, keys)
        return {kind: torch.stack(outputs[name]).squeeze(1).float().cpu() for kind, (name, *_) in _KINDS.items()}

    def _token_labels(self, ids: list[int]) -> list[str]:
        """Return a printable label for each token: "␣" for white space, "·" for an unprintable character."""
        texts = [str(self.tokenizer.decode([token])).strip() or "␣" for token in ids]
        return ["".join(character if character.isprintable() else "·" for character in text) for text in texts]

    def heat_map(self, attention: Attention, kind: str, layer: int, head: int) -> "Figure":
        """Return the heat map of one attention head.

        Args:
            attention: the result of `attention`.
            kind: "encoder", "decoder" or "cross".
            layer, head: counted from 1.
        """
        _, queries, keys = _KINDS[kind]
        tokens = attention["tokens"]
        title = f"{kind} attention, layer {layer}, head {head}"
        weights = attention["weights"][kind][layer - 1, head - 1]
        return attention_map(weights, tokens[queries], tokens[keys], title, (queries, keys))


_Shown = tuple[str, list[int], str | None]  # the arguments of `Explorer.attention` for what is on the page


def _event_handlers(
    gr: ModuleType, explorer: Explorer
) -> "tuple[Callable[..., tuple[str, str, _Shown]], Callable[..., Figure | None]]":
    """Return the functions that the page calls to translate a text and to draw a heat map.

    Args:
        gr: the module `gradio`.
        explorer: the model.
    """

    def translate(text: str, num_beams: int, alpha: float, target_lang: str | None = None) -> tuple[str, str, _Shown]:
        try:
            candidates = explorer.translate(text, int(num_beams), alpha, target_lang)
        except ValueError as error:
            raise gr.Error(str(error), title="Cannot translate", print_exception=False) from None
        rows = "".join(_ROW.format(f"{each.score:.3f}", escape(each.text)) for each in candidates)
        best = candidates[0]
        return best.text, _TABLE.format(rows), (text, best.ids, target_lang)

    def show(shown: _Shown | None, kind: str, layer: int, head: int) -> "Figure | None":
        if shown is None:
            # nothing has been translated yet
            return None
        attention = explorer.attention(*shown)
        num_layers = len(attention["weights"][kind])
        return explorer.heat_map(attention, kind, min(int(layer), num_layers), int(head))

    return translate, show


def build_page(explorer: Explorer) -> "Blocks":
    """Return the demo page for a model, to launch.

    Raises:
        ImportError: if Gradio is not installed.
    """
    gr = import_extra("gradio", "demo")
    config = explorer.model.config
    defaults = explorer.model.generation_config
    directions = explorer.directions
    translate, show = _event_handlers(gr, explorer)

    def slider(maximum: int, value: int, label: str) -> "Slider":
        """Return a slider from 1 to `maximum`, hidden if there is only one value."""
        return gr.Slider(1, max(maximum, 2), value, step=1, label=label, visible=maximum > 1)

    with gr.Blocks(title=explorer.name, analytics_enabled=False) as page:
        gr.Markdown(_INTRODUCTION.format(title=explorer.name))
        with gr.Row():
            with gr.Column():
                label = f"Source ({directions.source_lang or 'any language'})"
                source = gr.Textbox(label=label, lines=3, max_lines=8, max_length=MAX_CHARACTERS)
                num_beams = gr.Slider(1, 10, defaults.num_beams or 1, step=1, label="Beam size (translations shown)")
                value = DEFAULT_LENGTH_PENALTY if defaults.length_penalty is None else defaults.length_penalty
                alpha = gr.Slider(0, 2, value, step=0.1, label="Length penalty (alpha)")
                several = len(directions.targets) > 1
                target_lang = gr.Dropdown(directions.targets, label="Target language", visible=several)
                button = gr.Button("Translate", variant="primary")
            with gr.Column():
                best = gr.Textbox(label=f"Translation ({directions.target_lang or 'any language'})", lines=3)
                table = gr.HTML()
        gr.Markdown(
            "## Attention\n\nEach row shows how one token distributes its attention over the columns. A target row is "
            "the token that the decoder has just read; from it, the decoder predicts the next token."
        )
        with gr.Row():
            kind = gr.Radio(list(_KINDS), value="cross", label="Attention")
            num_layers = max(config.num_encoder_layers, config.num_decoder_layers)
            layer = slider(num_layers, num_layers, "Layer")
            head = slider(config.num_heads, 1, "Head")
        plot = gr.Plot(show_label=False)
        # not the weights of its attention, which are large and quickly computed
        shown = gr.State()
        selection = [shown, kind, layer, head]
        for event in (button.click, source.submit):
            inputs = [source, num_beams, alpha, target_lang]
            event(translate, inputs, [best, table, shown]).success(show, selection, plot)
        for control in (kind, layer, head):
            control.change(show, selection, plot, show_progress="hidden")
    return page
