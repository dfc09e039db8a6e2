"""A page in the browser, with Gradio (the extra `demo`): translate, see the n best, and look at the attention."""

from html import escape
from typing import Any

import torch
from transformers import AutoTokenizer

from ..files import import_extra
from ..model.loading import load, load_model
from ..study.plots import attention_map

MAX_CHARACTERS = 2000  # of a text, whoever sends it
MAX_TOKENS = 128  # of a sentence: the heat maps hold no more
_KINDS = {
    "encoder": ("encoder_attentions", "source", "source"),
    "decoder": ("decoder_attentions", "target", "target"),
    "cross": ("cross_attentions", "target", "source"),
}
_INTRODUCTION = """# {title}

The Transformer of [Attention Is All You Need](https://arxiv.org/abs/1706.03762). Type a sentence, translate it, and
see below which tokens each head attends to."""

_TABLE = "<table style='width: 100%'><tr><th align='left'>score</th><th align='left'>the n best</th></tr>{}</table>"
_ROW = "<tr><td>{}</td><td>{}</td></tr>"


class Explorer:
    """What the page does, apart from its looks.

    Args:
        name: a trained model's folder, or its name on the Hub.
    """

    def __init__(self, name: str):
        # only the eager attention has weights to look at
        self.model = load_model(name, attn_implementation="eager").eval()
        self.tokenizer = load(AutoTokenizer, name)

    @torch.inference_mode()
    def translate(self, text: str, num_beams: int, alpha: float) -> list[tuple[float, str, list[int]]]:
        """The n best of beam search, n its beams, each with its score, its text and its tokens.

        Raises:
            ValueError: for text that is blank or too long, in words for whoever typed it.
        """
        if not text.strip():
            raise ValueError("Type a sentence first.")
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"That is {len(text):,} characters; the page takes {MAX_CHARACTERS:,}.")
        inputs = self.tokenizer(text, return_tensors="pt", verbose=False)
        length = inputs["input_ids"].shape[1]
        if length > MAX_TOKENS:
            raise ValueError(f"That is {length} tokens; the page takes {MAX_TOKENS}. Try a shorter sentence.")
        outputs = self.model.generate(
            **inputs,
            num_beams=num_beams,
            num_return_sequences=num_beams,
            length_penalty=alpha if num_beams > 1 else None,
            return_dict_in_generate=True,
            output_scores=True,
        )
        end = self.model.config.eos_token_id  # shorter ones are filled up after it
        texts = self.tokenizer.batch_decode(outputs.sequences, skip_special_tokens=True)
        if num_beams > 1:
            scores = outputs.sequences_scores.tolist()
        else:  # greedy search does not weigh
            steps = self.model.compute_transition_scores(outputs.sequences, outputs.scores, normalize_logits=True)
            scores = [steps.sum().item()]
        rows = [row[: row.index(end, 1) + 1] if end in row[1:] else row for row in outputs.sequences.tolist()]
        return list(zip(scores, texts, rows, strict=True))

    @torch.inference_mode()
    def attention(self, text: str, target: list[int]) -> dict[str, Any]:
        """All attention weights of the model that reads `text` and writes `target`, and the tokens of both."""
        source = self.tokenizer(text, return_tensors="pt")["input_ids"]
        outputs = self.model(input_ids=source, decoder_input_ids=torch.tensor([target[:-1]]), output_attentions=True)
        weights = {kind: torch.stack(outputs[name]).squeeze(1) for kind, (name, _, _) in _KINDS.items()}
        tokens = {"source": self._names(source[0].tolist()), "target": self._names(target[:-1])}
        return {"weights": weights, "tokens": tokens}  # weights: (layers, heads, queries, keys)

    def _names(self, ids: list[int]) -> list[str]:
        words = [str(self.tokenizer.decode([token])).strip() or "␣" for token in ids]
        return ["".join(letter if letter.isprintable() else "·" for letter in word) for word in words]

    def picture(self, attention: dict[str, Any], kind: str, layer: int, head: int) -> Any:
        """The heat map of one head; layer and head count from 1."""
        _, queries, keys = _KINDS[kind]
        names = attention["tokens"]
        title = f"{kind} attention, layer {layer}, head {head}"
        weights = attention["weights"][kind][layer - 1, head - 1]
        return attention_map(weights, names[queries], names[keys], title, (queries, keys))


def build_page(name: str) -> Any:
    """The page for a trained model, as a `gradio.Blocks` to `launch()`.

    Args:
        name: the model's folder, or its name on the Hub.

    Raises:
        ImportError: where Gradio is missing.
    """
    gr = import_extra("gradio", "demo")
    explorer = Explorer(name)
    config, saved = explorer.model.config, explorer.model.generation_config
    layers = {kind: config.num_encoder_layers if kind == "encoder" else config.num_decoder_layers for kind in _KINDS}

    def translate(text: str, num_beams: int, alpha: float) -> tuple[str, str, dict[str, Any]]:
        try:
            candidates = explorer.translate(text, int(num_beams), alpha)
        except ValueError as error:
            raise gr.Error(str(error), title="Nothing to translate") from None
        rows = "".join(_ROW.format(f"{score:.3f}", escape(words)) for score, words, _ in candidates)
        return candidates[0][1], _TABLE.format(rows), explorer.attention(text, candidates[0][2])

    def show(attention: dict[str, Any] | None, kind: str, layer: int, head: int) -> Any:
        return attention and explorer.picture(attention, kind, min(int(layer), layers[kind]), int(head))

    def slider(highest: int, value: int, label: str) -> Any:
        """From 1 to `highest`, and hidden where there is no choice."""
        return gr.Slider(1, max(highest, 2), value, step=1, label=label, visible=highest > 1)

    with gr.Blocks(title=name, analytics_enabled=False) as page:
        gr.Markdown(_INTRODUCTION.format(title=name.rstrip("/").split("/")[-1]))
        with gr.Row():
            with gr.Column():
                label = f"Source ({config.source_lang or 'any language'})"
                source = gr.Textbox(label=label, lines=3, max_lines=8, max_length=MAX_CHARACTERS)
                num_beams = gr.Slider(1, 10, saved.num_beams or 1, step=1, label="Beam size, and how many are shown")
                alpha = gr.Slider(0, 2, saved.length_penalty, step=0.1, label="Alpha, the weight of length")
                button = gr.Button("Translate", variant="primary")
            with gr.Column():
                best = gr.Textbox(label=f"Translation ({config.target_lang or 'any language'})", lines=3)
                table = gr.HTML()
        gr.Markdown(
            "## Attention\n\nEach row shows how one token spreads its attention over the columns. A row of the target "
            "is the token just read: it predicts the next one."
        )
        with gr.Row():
            kind = gr.Radio(list(_KINDS), value="cross", label="Which")
            layer = slider(max(layers.values()), max(layers.values()), "Layer")
            head = slider(config.num_heads, 1, "Head")
        picture = gr.Plot(show_label=False)
        attention = gr.State()
        chosen = [attention, kind, layer, head]
        for event in (button.click, source.submit):
            event(translate, [source, num_beams, alpha], [best, table, attention]).success(show, chosen, picture)
        for control in (kind, layer, head):
            control.change(show, chosen, picture, show_progress="hidden")
    return page
