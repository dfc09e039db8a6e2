"""Look into a model: its attention heads, and the weights with which it reads a sentence and its translation."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypedDict

import torch

from ..errors import UserError
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.generation_vanilla_transformer import HEAD_MASKS
from ..model.text_rules_vanilla_transformer import is_blank
from .translator import Translator

# The sides of the queries and keys of each kind of attention
KINDS = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}
COLOUR_MAP = "cividis"
# Of a text. Checked here, not only in a text box, because a client need not be the page.
MAX_CHARACTERS = 2000
# Of a sentence: the axes of larger heat maps are not readable.
MAX_TOKENS = 128
_MASKS = dict(zip(KINDS, HEAD_MASKS, strict=True))  # the argument for each kind of attention


class Head(NamedTuple):
    """A head of an attention layer; layer and number count from 1."""

    kind: str  # one of `KINDS`
    layer: int
    number: int

    def __str__(self) -> str:
        return f"{self.kind}, layer {self.layer}, head {self.number}"


def layers_by_kind(config: VanillaTransformerConfig) -> dict[str, int]:
    """Return how many layers a model has of each kind of attention."""
    return {kind: config.num_encoder_layers if kind == "encoder" else config.num_decoder_layers for kind in KINDS}


def all_heads(config: VanillaTransformerConfig) -> list[Head]:
    """Return all heads of a model, kind by kind and layer by layer."""
    return [
        Head(kind, layer, number)
        for kind, layers in layers_by_kind(config).items()
        for layer in range(1, layers + 1)
        for number in range(1, config.num_heads + 1)
    ]


def masks_without(heads: Iterable[Head], config: VanillaTransformerConfig) -> dict[str, torch.Tensor]:
    """Return the arguments of the forward pass and of `generate` that switch heads off; each is (layers, heads)."""
    layers = layers_by_kind(config)
    masks: dict[str, torch.Tensor] = {}
    for kind, layer, number in heads:
        mask = masks.setdefault(_MASKS[kind], torch.ones(layers[kind], config.num_heads))
        mask[layer - 1, number - 1] = 0
    return masks


class Candidate(NamedTuple):
    """A translation, its log-probability divided by the length penalty, and its token ids from start to `</s>`."""

    score: float
    text: str
    ids: list[int]


class Attention(TypedDict):
    """The attention weights of a model for one sentence.

    "weights" has those of the "encoder", the "decoder" and "cross", (layers, heads, queries, keys); "tokens" has the
    text of each token of the "source", and of those that the decoder has read, "target", and "predicted" from each.
    """

    weights: dict[str, torch.Tensor]
    tokens: dict[str, list[str]]


class Explorer:
    """Translate with a model and return its attention weights: what the demo page and `plot` show.

    Args:
        translator: the model, by its name on the page.
        thread: the one thread in which the model runs. PyTorch's own threads (OpenMP) are several times slower as soon
            as a second thread of Python uses them.
    """

    def __init__(self, translator: Translator, thread: ThreadPoolExecutor):
        self.translator = translator
        self.model = translator.model
        self._thread = thread
        self.heads = {str(head): head for head in all_heads(self.model.config)}

    @classmethod
    def load(cls, name: str, dtype: str = "float32") -> "Explorer":
        """Return the explorer of a model, which runs in a thread of its own, whoever calls.

        Args:
            name: the folder of a trained model, or its name on the Hub.
            dtype: the number format, one of `hardware.DTYPES`.

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
        ids = [row[: row.index(end, 1) + 1] if end in row[1:] else row for row in output.hypotheses]
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
        tokens = {"source": source, "target": target[:-1], "predicted": target[1:]}
        return {"weights": weights, "tokens": {side: self._token_labels(ids) for side, ids in tokens.items()}}

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


def draw_head(axes: Any, weights: torch.Tensor, queries: Sequence[str], keys: Sequence[str]) -> Any:
    """Draw the attention of one head, (queries, keys), as a heat map on axes of matplotlib, and return its image."""
    # one scale for every map, so that their colours can be compared
    image = axes.imshow(weights.numpy(), cmap=COLOUR_MAP, vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(keys)), keys, rotation=90)
    axes.set_yticks(range(len(queries)), queries)
    return image
