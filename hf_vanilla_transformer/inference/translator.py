"""Turn text into translations: the one place in which every verb, the server and Python's `translate` do it.

`Translator` owns the model, its tokenizer and directions, the limit on length, blank text, batching, n-best lists and
scores. Its callers add only their own input and output.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import torch
from transformers import AutoTokenizer

from ..data.batching import batches_by_length, pad
from ..data.tags import prefix_ids
from ..data.tokenizer import check_tokenizer
from ..export.format import Runtime
from ..export.registry import load_export, recognise
from ..model.loading import load, load_model
from ..model.text_rules_vanilla_transformer import Directions, is_blank, max_source_tokens
from .ensemble import Ensemble
from .precision import avoid_cudnn_attention, default_device, resolve_dtype
from .segments import Document

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_TOKENS = 2048  # source tokens per batch, padding included
Progress = Callable[[int], object]  # called after each batch with the number of sentences in it
_Result = TypeVar("_Result")


class Hypothesis(NamedTuple):
    """A translation and its score: the log-probability in nats divided by the length penalty."""

    text: str
    score: float


@dataclass(frozen=True)
class Translation:
    """The result for one sentence or text.

    Args:
        hypotheses: the best translations, best first; a blank sentence has empty ones, with a score of 0.
        problem: why there is no translation, such as "2,401 tokens, more than 1,024"; None if there is one.
    """

    hypotheses: list[Hypothesis]
    problem: str | None = None

    @property
    def text(self) -> str:
        """Return the best translation, or an empty string if there is none."""
        return self.hypotheses[0].text if self.hypotheses else ""


class Output(NamedTuple):
    """The result for one sentence of token ids.

    Args:
        hypotheses: the ids of the best hypotheses, best first, special tokens included.
        scores: their scores, as in `Hypothesis`; empty if they were not requested.
        problem: as in `Translation`.
    """

    hypotheses: list[list[int]]
    scores: list[float]
    problem: str | None = None


class Translator:
    """Translates text with a model.

    Args:
        model: a model in torch, an `Ensemble`, or an export.
        tokenizer: the tokenizer saved with it.
        name: the name of the model in messages.

    Attributes:
        directions: the languages of the model.
        max_source_tokens: the most tokens of a source that is translated, tags and `</s>` included.
    """

    def __init__(self, model: Runtime, tokenizer: "PreTrainedTokenizerBase", name: str = "the model"):
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.directions = Directions(model.config)
        self.max_source_tokens = max_source_tokens(model.config, tokenizer)

    @classmethod
    def load(cls, names: str | Sequence[str], backend: str = "torch", dtype: str | None = None) -> "Translator":
        """Return the translator of a saved model, on the accelerator if there is one; several names form an ensemble.

        Args:
            names: folders, or names on the Hub.
            backend: "torch", or one of `export.registry.FORMATS`, to which a saved model is exported first.
            dtype: number format of the weights in torch, one of `precision.DTYPES` (default: "float32").

        Raises:
            ImportError: if the runtime of an export is not installed.
            OSError: if a model or its tokenizer cannot be loaded.
            ValueError: if a model does not suit the backend or its tokenizer, or models of an ensemble differ in
                vocabulary or languages.
        """
        names = [names] if isinstance(names, str) else list(names)
        name = ", ".join(names)
        if backend != "torch":
            if dtype is not None or len(names) > 1:
                raise ValueError("A number format and ensembles need the backend torch.")
            exported = load_export(name, backend)
            return cls(exported, exported.tokenizer, name)

        loaded = {each: _load_in_torch(each, dtype or "float32") for each in names}
        if len(names) == 1:
            return cls(*loaded[name], name)

        # An ensemble averages probabilities token by token, so token 7 must be the same word in every model.
        first = loaded[names[0]][1]
        for other, (_, tokenizer) in loaded.items():
            if tokenizer.get_vocab() != first.get_vocab():
                raise ValueError(f"{names[0]} and {other} have different vocabularies; an ensemble must share one.")
        check_same_directions({each: Directions(model.config) for each, (model, _) in loaded.items()})
        return cls(Ensemble([loaded[each][0] for each in names]), first, name)

    def num_hypotheses(self, num_beams: int | None = None) -> int:
        """Return how many hypotheses of a sentence a beam search can return.

        Args:
            num_beams: the beam size; by default that of the model.
        """
        return (num_beams or self.model.generation_config.num_beams or 1) if self.model.returns_scores else 1

    def problem(self, num_tokens: int) -> str | None:
        """Return why a source of so many tokens, tags and `</s>` included, is not translated, or None if it is."""
        limit = self.max_source_tokens
        return f"{num_tokens:,} tokens, more than {limit:,}" if num_tokens > limit else None

    def encode(
        self,
        sentences: Sequence[str],
        source_lang: str | None = None,
        target_lang: str | None = None,
        tag: str | None = None,
    ) -> list[list[int]]:
        """Return the token ids of sentences, with the tags with which a source starts.

        Raises:
            ValueError: for a language or tag that the model does not have.
        """
        prefix = prefix_ids(self.model.config, self.tokenizer, source_lang, target_lang, tag)
        if not sentences:
            return []
        # not verbose: transformers would warn of long sentences, which are reported here
        return [[*prefix, *ids] for ids in self.tokenizer(list(sentences), verbose=False)["input_ids"]]

    def decode(self, hypotheses: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of generated ids."""
        # one by one: some releases of transformers return one empty text for an empty list
        return [str(self.tokenizer.decode(list(ids), skip_special_tokens=True)) for ids in hypotheses]

    def translate_ids(
        self,
        sources: Sequence[Sequence[int]],
        nbest: int = 1,
        scores: bool = False,
        max_tokens: int = MAX_TOKENS,
        progress: Progress | None = None,
        **generate_kwargs: object,
    ) -> list[Output]:
        """Return the output for each source, in order.

        Translations do not depend on how sentences are batched: padding is masked, and each sentence has its own
        length limit.

        Args:
            sources: the token ids of each sentence, as `encode` returns them.

        The other arguments are those of `translate`.
        """
        problems = [self.problem(len(source)) for source in sources]
        results = [Output([], [], problem) for problem in problems]
        places = [i for i, problem in enumerate(problems) if problem is None]
        # sentences without a translation are done at once
        if progress is not None and len(places) < len(sources):
            progress(len(sources) - len(places))

        def search(inputs: dict[str, torch.Tensor]) -> list[Output]:
            if nbest == 1 and not scores:
                # without scores, which exports may not have, and which cost one more pass with some settings
                found = self.model.generate(**inputs, **generate_kwargs)
                sequences = found if isinstance(found, torch.Tensor) else found.sequences
                return [Output([ids], []) for ids in sequences.tolist()]
            settings = {**generate_kwargs, "num_return_sequences": nbest, "output_sequence_scores": True}
            found = self.model.generate(**inputs, **settings)
            # (B n, T) -> (B, n, T), and the scores (B n,) -> (B, n)
            hypotheses = found.sequences.unflatten(0, (-1, nbest)).tolist()
            values = found.sequences_scores.unflatten(0, (-1, nbest)).tolist()
            return [Output(*each) for each in zip(hypotheses, values, strict=True)]

        outputs = self._in_batches([sources[i] for i in places], max_tokens, progress, search)
        for i, output in zip(places, outputs, strict=True):
            results[i] = output
        return results

    @torch.inference_mode()
    def _in_batches(
        self,
        sources: Sequence[Sequence[int]],
        max_tokens: int,
        progress: Progress | None,
        run: Callable[[dict[str, torch.Tensor]], Sequence[_Result]],
    ) -> list[_Result]:
        """Return what `run` returns for each source of a batch, in the order of `sources`."""
        results: dict[int, _Result] = {}
        model = self.model
        pad_token_id = model.config.pad_token_id
        # every model has one
        assert pad_token_id is not None
        # dropout would make translations random, as when a user translates with a model in training
        was_training = model.training
        model.eval()
        lengths = [len(source) for source in sources]
        # longest first, so that running out of memory fails immediately
        for batch in reversed(batches_by_length(lengths, lengths, max_tokens) if sources else []):
            # (B, S) each
            inputs = {
                "input_ids": pad([sources[i] for i in batch], pad_token_id).to(model.device),
                "attention_mask": pad([[1] * lengths[i] for i in batch], 0).to(model.device),
            }
            results.update(zip(batch, run(inputs), strict=True))
            if progress is not None:
                progress(len(batch))
        model.train(was_training)
        return [results[i] for i in range(len(sources))]

    def translate(
        self,
        sentences: Sequence[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        tag: str | None = None,
        nbest: int = 1,
        scores: bool = False,
        split_sentences: bool = False,
        max_tokens: int = MAX_TOKENS,
        progress: Progress | None = None,
        **generate_kwargs: object,
    ) -> list[Translation]:
        """Return the translation of each sentence, in the same order.

        Args:
            sentences: the source sentences.
            source_lang, target_lang: the direction, for a model that has several.
            tag: a tag with which some of the training sources started, such as "<bt>".
            nbest: number of hypotheses, at most the beam size unless tokens are sampled.
            scores: whether hypotheses have scores, even if there is only one of each sentence; otherwise they are 0.
            split_sentences: whether to cut each text into sentences and to join their translations; its score is the
                sum of theirs.
            max_tokens: the maximum number of source tokens per batch, padding included; a longer sentence forms a
                batch of its own.
            progress: called after each batch with the number of sentences in it.
            generate_kwargs: passed to `model.generate`; defaults come from the generation config of the model.

        Raises:
            ValueError: for a language or tag that the model does not have, or if `nbest` exceeds the beam size.
        """
        direction: dict[str, Any] = {"source_lang": source_lang, "target_lang": target_lang, "tag": tag}
        search: dict[str, Any] = {
            "nbest": nbest,
            "scores": scores,
            "max_tokens": max_tokens,
            "progress": progress,
            **generate_kwargs,
        }
        if split_sentences:
            # the rules by which a text is cut are those of its language
            language, _ = self.directions.resolve(source_lang, target_lang)
            documents = [Document(text, language) for text in sentences]
            pieces = [sentence for document in documents for sentence in document.sentences]
            # the sentences of all texts together, in batches of similar length
            translated = iter(self.translate(pieces, **direction, **search))
            return [_join(document, [next(translated) for _ in document.sentences], nbest) for document in documents]

        # a blank sentence never reaches the model, which would invent a translation
        results = [Translation([Hypothesis("", 0.0)] * nbest) for _ in sentences]
        places = [i for i, sentence in enumerate(sentences) if not is_blank(sentence)]
        if progress is not None and len(places) < len(sentences):
            progress(len(sentences) - len(places))
        sources = self.encode([sentences[i] for i in places], **direction)
        for i, output in zip(places, self.translate_ids(sources, **search), strict=True):
            texts = self.decode(output.hypotheses)
            hypotheses = map(Hypothesis, texts, output.scores or [0.0] * len(texts))
            results[i] = Translation(list(hypotheses), output.problem)
        return results


def _load_in_torch(name: str, dtype: str) -> tuple[Any, "PreTrainedTokenizerBase"]:
    """Return a saved model, on the accelerator if there is one, and its tokenizer."""
    if export := recognise(name):
        raise ValueError(
            f"{name} is an export for {export.title}: use evaluate, translate or serve with --backend {export.name}; "
            "for compare, pass a file of its translations."
        )
    device = default_device()
    if device.type == "cuda":
        avoid_cudnn_attention()
    model: Any = load_model(name, dtype=resolve_dtype(dtype, device))
    tokenizer = load(AutoTokenizer, name)
    check_tokenizer(tokenizer, model.config)
    return model.to(device), tokenizer


def check_same_directions(directions: Mapping[str, Directions]) -> None:
    """Check that models, by their names, translate in the same directions.

    Raises:
        ValueError: if they do not.
    """
    if len(set(map(str, directions.values()))) > 1:
        found = "; ".join(f"{name}: {each}" for name, each in directions.items())
        raise ValueError(f"The models have different directions: {found}.")


def _join(document: Document, translations: Sequence[Translation], nbest: int) -> Translation:
    """Return the translation of a text from those of its sentences; a sentence that has none is left out."""
    if not document.sentences:
        return Translation([Hypothesis("", 0.0)] * nbest)
    hypotheses = []
    for rank in range(nbest):
        chosen = [each.hypotheses[rank] if each.hypotheses else Hypothesis("", 0.0) for each in translations]
        hypotheses.append(Hypothesis(document.join([text for text, _ in chosen]), sum(score for _, score in chosen)))
    problems = [f"sentence {i}: {each.problem}" for i, each in enumerate(translations, 1) if each.problem]
    return Translation(hypotheses, "; ".join(problems) or None)


@overload
def translate(
    model: Runtime, tokenizer: "PreTrainedTokenizerBase", sentences: str, max_tokens: int = ..., **settings
) -> str: ...


@overload
def translate(
    model: Runtime,
    tokenizer: "PreTrainedTokenizerBase",
    sentences: Iterable[str],
    max_tokens: int = ...,
    **settings,
) -> list[str]: ...


def translate(
    model: Any,
    tokenizer: "PreTrainedTokenizerBase",
    sentences: str | Iterable[str],
    max_tokens: int = MAX_TOKENS,
    progress: Progress | None = None,
    *,
    dtype: str | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    tag: str | None = None,
    split_sentences: bool = False,
    **generate_kwargs,
) -> str | list[str]:
    """Return the translation of a string, or one per string of an iterable, in the same order.

    A blank sentence is translated to an empty string. So is one with more tokens than the model has positions, with a
    warning that names its index; `split_sentences` makes long texts work.

    Args:
        model: the model, an `Ensemble`, or an export loaded with `export.registry.load_export`.
        tokenizer: the tokenizer saved with the model.
        sentences: a source sentence, or several.
        dtype: number format of a copy of the model that translates, one of `precision.DTYPES`; by default the model
            itself translates. For models and ensembles in torch.

    The other arguments are those of `Translator.translate`.

    Raises:
        TypeError: if `sentences` is neither a string nor an iterable of strings.
        ValueError: for an unknown dtype, or a language or tag that the model does not have.
    """
    if (generate_kwargs.get("num_return_sequences") or 1) > 1:
        raise ValueError("translate returns one translation per sentence; Translator.translate has nbest.")
    texts = [sentences] if isinstance(sentences, str) else _check_sentences(sentences)
    if dtype is not None:
        # a copy, because the caller's model keeps its number format
        model = copy.deepcopy(model).to(resolve_dtype(dtype, model.device))
    translations = Translator(model, tokenizer).translate(
        texts,
        source_lang=source_lang,
        target_lang=target_lang,
        tag=tag,
        split_sentences=split_sentences,
        max_tokens=max_tokens,
        progress=progress,
        **generate_kwargs,
    )
    problems = {i: each.problem for i, each in enumerate(translations) if each.problem}
    if problems:
        listed = "; ".join(f"{i} ({problem})" for i, problem in problems.items())
        advice = "" if split_sentences else " split_sentences=True cuts texts into sentences."
        warnings.warn(f"Not translated, counted from 0: {listed}.{advice}", stacklevel=2)
    results = [translation.text for translation in translations]
    return results[0] if isinstance(sentences, str) else results


def _check_sentences(sentences: Iterable[str]) -> list[str]:
    """Return sentences as a list, after checking that they are strings."""
    if not isinstance(sentences, Iterable):
        raise TypeError(f"translate expects a string or an iterable of strings, got {type(sentences).__name__}.")
    texts = list(sentences)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"translate expects strings, but sentence {i}, counted from 0, is {type(text).__name__}.")
    return texts
