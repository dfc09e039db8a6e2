"""Build the demo page with Gradio (the extra `demo`): translation, n-best lists and heat maps of the attention."""

from collections.abc import Callable
from functools import partial
from html import escape
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ..files import import_extra
from ..inference.translator import Translator
from ..model.generation_vanilla_transformer import DEFAULT_LENGTH_PENALTY
from ..study.plots import attention_map
from .batcher import Batcher, QueueFullError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CHARACTERS = 2000  # per text; enforced on the server as well as in the browser
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


class Explorer:
    """Translate with a model and return its attention weights: the demo page without its user interface.

    Args:
        translator: the model, by its name on the page.
        run: calls a function that uses the model, in the thread in which the model runs.
        max_characters: limit for each text.
    """

    def __init__(
        self,
        translator: Translator,
        run: Callable[[Callable[[], Any]], Any],
        max_characters: int = MAX_CHARACTERS,
    ):
        self.translator = translator
        self.name = translator.name
        self.max_characters = max_characters
        self.model: Any = translator.model.eval()
        self.tokenizer: Any = translator.tokenizer
        self._run = run
        directions = translator.directions
        self.target_langs = directions.targets if directions.has_tags else []  # none for a single direction

    @classmethod
    def load(cls, name: str, dtype: str = "float32") -> "Explorer":
        """Return the explorer of a model, which runs in a thread of its own, whoever calls.

        Args:
            name: the folder of a trained model, or its name on the Hub.
            dtype: the number format, one of `precision.DTYPES`.

        Raises:
            OSError, ValueError: as `Translator.load`.
        """
        run = Batcher(max_delay=0).run
        translator = run(partial(Translator.load, name, dtype=dtype))
        translator.name = name.rstrip("/").split("/")[-1]
        return cls(translator, run)

    def _source_ids(self, text: str, target_lang: str | None) -> torch.Tensor:
        """Return the token ids of a source (1, S), with the tag of the target language if the model has tags."""
        return torch.tensor(self.translator.encode([text], target_lang=target_lang), device=self.model.device)

    def translate(
        self, text: str, num_beams: int, alpha: float, target_lang: str | None = None
    ) -> list[tuple[float, str, list[int]]]:
        """Return the n best translations as (score, text, token ids), best first; n is `num_beams`.

        The score is the log-probability divided by the length penalty.

        Args:
            text: the source sentence.
            num_beams: beam size; 1 for greedy search.
            alpha: length penalty (section 6.1).
            target_lang: the target language, for a model that has several.

        Raises:
            ValueError: if the text is blank or too long; the message is shown to the user of the page.
        """
        if not text.strip():
            raise ValueError("Type a sentence first.")
        limit = self.max_characters
        if len(text) > limit:
            raise ValueError(
                f"The text has {len(text):,} characters, but the limit is {limit:,}. Try a shorter sentence."
            )
        source = self._source_ids(text, target_lang)
        length = source.shape[1]
        if length > MAX_TOKENS:
            raise ValueError(f"The text has {length} tokens, but the limit is {MAX_TOKENS}. Try a shorter sentence.")
        translate = partial(
            self.translator.translate_ids,
            source.tolist(),
            nbest=num_beams,
            scores=True,
            num_beams=num_beams,
            length_penalty=alpha,
        )
        (output,) = self._run(translate)
        if output.problem:
            raise ValueError(f"The text has {output.problem}. Try a shorter sentence.")
        end = self.model.config.eos_token_id  # followed only by padding
        ids = [row[: row.index(end, 1) + 1] if end in row[1:] else row for row in output.hypotheses]
        return list(zip(output.scores, self.translator.decode(output.hypotheses), ids, strict=True))

    def attention(self, text: str, target: list[int], target_lang: str | None = None) -> dict[str, Any]:
        """Return all attention weights of the model for the source `text` and the output `target`.

        Args:
            text: the source sentence.
            target: the token ids of a translation, from the decoder start token to `</s>`.
            target_lang: the target language, for a model that has several.

        Returns:
            "weights": for "encoder", "decoder" and "cross", the weights (layers, heads, queries, keys);
            "tokens": the text of each token of the "source" and the "target".
        """
        source = self._source_ids(text, target_lang)
        target_ids = torch.tensor([target[:-1]], device=source.device)

        @torch.inference_mode()
        def compute() -> dict[str, torch.Tensor]:
            attention = self.model.config._attn_implementation
            self.model.set_attn_implementation("eager")  # the only one that returns its weights
            try:
                outputs = self.model(input_ids=source, decoder_input_ids=target_ids, output_attentions=True)
            finally:
                self.model.set_attn_implementation(attention)
            return {kind: torch.stack(outputs[name]).squeeze(1).float().cpu() for kind, (name, *_) in _KINDS.items()}

        weights = self._run(compute)
        tokens = {"source": self._token_labels(source[0].tolist()), "target": self._token_labels(target[:-1])}
        return {"weights": weights, "tokens": tokens}

    def _token_labels(self, ids: list[int]) -> list[str]:
        """Return a printable label for each token: "␣" for white space, "·" for an unprintable character."""
        texts = [str(self.tokenizer.decode([token])).strip() or "␣" for token in ids]
        return ["".join(character if character.isprintable() else "·" for character in text) for text in texts]

    def heat_map(self, attention: dict[str, Any], kind: str, layer: int, head: int) -> "Figure":
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


def _event_handlers(gr: ModuleType, explorer: Explorer) -> tuple[Callable[..., tuple], Callable[..., Any]]:
    """Return the functions that the page calls to translate a text and to draw a heat map.

    Args:
        gr: the module `gradio`.
        explorer: the model.
    """

    def translate(
        text: str, num_beams: int, alpha: float, target_lang: str | None = None
    ) -> tuple[str, str, tuple[str, list[int], str | None]]:
        try:
            candidates = explorer.translate(text, int(num_beams), alpha, target_lang)
        except (ValueError, QueueFullError) as error:
            raise gr.Error(str(error), title="Cannot translate", print_exception=False) from None
        rows = "".join(_ROW.format(f"{score:.3f}", escape(translation)) for score, translation, _ in candidates)
        _, best, ids = candidates[0]
        return best, _TABLE.format(rows), (text, ids, target_lang)

    def show(shown: tuple[str, list[int], str | None] | None, kind: str, layer: int, head: int) -> Any:
        if shown is None:  # nothing has been translated yet
            return None
        try:
            attention = explorer.attention(*shown)
        except QueueFullError as error:
            raise gr.Error(str(error), title="Cannot show the attention", print_exception=False) from None
        num_layers = len(attention["weights"][kind])
        return explorer.heat_map(attention, kind, min(int(layer), num_layers), int(head))

    return translate, show


def build_page(*explorers: Explorer) -> Any:
    """Return the demo page for a model, or a page with a tab for each, as a `gradio.Blocks` to launch or to mount.

    Raises:
        ImportError: if Gradio is not installed.
    """
    gr = import_extra("gradio", "demo")
    pages = [_build_one(gr, explorer) for explorer in explorers]
    if len(pages) == 1:
        return pages[0]
    names = [explorer.name for explorer in explorers]
    return gr.TabbedInterface(pages, names, title=", ".join(names), analytics_enabled=False)


def _build_one(gr: ModuleType, explorer: Explorer) -> Any:
    """Return the page for one model."""
    config, defaults = explorer.model.config, explorer.model.generation_config
    translate, show = _event_handlers(gr, explorer)

    def slider(maximum: int, value: int, label: str) -> Any:
        """Return a slider from 1 to `maximum`, hidden if there is only one value."""
        return gr.Slider(1, max(maximum, 2), value, step=1, label=label, visible=maximum > 1)

    with gr.Blocks(title=explorer.name, analytics_enabled=False) as page:
        gr.Markdown(_INTRODUCTION.format(title=explorer.name))
        with gr.Row():
            with gr.Column():
                label = f"Source ({explorer.translator.directions.source_lang or 'any language'})"
                source = gr.Textbox(label=label, lines=3, max_lines=8, max_length=explorer.max_characters)
                num_beams = gr.Slider(1, 10, defaults.num_beams or 1, step=1, label="Beam size (translations shown)")
                value = DEFAULT_LENGTH_PENALTY if defaults.length_penalty is None else defaults.length_penalty
                alpha = gr.Slider(0, 2, value, step=0.1, label="Length penalty (alpha)")
                targets = explorer.target_langs
                target_lang = gr.Dropdown(targets, label="Target language", visible=len(targets) > 1)
                button = gr.Button("Translate", variant="primary")
            with gr.Column():
                best = gr.Textbox(
                    label=f"Translation ({explorer.translator.directions.target_lang or 'any language'})", lines=3
                )
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
        shown = gr.State()  # not the weights of its attention, which are large and quickly computed
        selection = [shown, kind, layer, head]
        for event in (button.click, source.submit):
            inputs = [source, num_beams, alpha, target_lang]
            event(translate, inputs, [best, table, shown]).success(show, selection, plot)
        for control in (kind, layer, head):
            control.change(show, selection, plot, show_progress="hidden")
    return page
