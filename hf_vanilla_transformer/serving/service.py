"""Translate texts of any length with several models at once: what the HTTP server does, without HTTP."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

from ..data.language_filter import probabilities
from ..data.tags import parse_language_pair, prefix_ids
from ..files import import_extra
from ..inference.translation import translate_ids, translate_ids_nbest
from .batching import Batcher
from .metrics import Metrics
from .segments import segments

AUTO = "auto"  # a source language to be detected


class UnsupportedError(ValueError):
    """A request for something that these models cannot do; the message is for whoever asked."""


class Detection(NamedTuple):
    """A language and the probability, from 0 to 1, that a text is in it."""

    language: str
    probability: float


@dataclass(frozen=True)
class Limits:
    """How the sentences of different requests share a model.

    Args:
        max_tokens, max_delay, max_queue: as for `Batcher`.
    """

    max_tokens: int = 2048
    max_delay: float = 0.005
    max_queue: int = 1024


@dataclass(frozen=True)
class Translation:
    """The translation of a text, other translations of it, and what could not be translated."""

    text: str
    alternatives: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    detected: Detection | None = None


class Translator:
    """A model whose batches are translated in a thread of its own.

    Args:
        name: the name of the model in messages.
        decoding: arguments of `generate`, such as the beam size.

    Raises:
        ValueError: if the model does not say which languages it translates.
    """

    def __init__(
        self, name: str, model: Any, tokenizer: Any, decoding: dict[str, Any], limits: Limits, metrics: Metrics
    ):
        self.name, self.model, self.tokenizer = name, model, tokenizer
        self.lock: AbstractContextManager = Lock()  # for whoever else uses the model
        self._decoding, self._metrics = decoding, metrics
        config = model.config
        pairs = config.language_pairs or [f"{config.source_lang}-{config.target_lang}"]
        if not config.language_pairs and None in (config.source_lang, config.target_lang):
            raise ValueError(f"{name} does not say which languages it translates: set them in its config.json.")
        self.prefixes = {pair: prefix_ids(config, tokenizer, *pair) for pair in map(parse_language_pair, pairs)}
        self.num_beams = decoding.get("num_beams") or model.generation_config.num_beams or 1
        self.batcher = Batcher(self._translate, limits.max_tokens, limits.max_delay, limits.max_queue)

    def _translate(self, sources: list[list[int]], nbest: int) -> list[list[str]]:
        """Return the hypotheses of each source, each in one line."""
        whole = 2 * max(map(len, sources)) * len(sources)  # max_tokens of a single batch, whose lengths are rounded up
        with self.lock:
            if nbest == 1:
                outputs = [[ids] for ids in translate_ids(self.model, sources, whole, **self._decoding)]
            else:
                found = translate_ids_nbest(self.model, sources, nbest, whole, **self._decoding)
                outputs = [[ids for ids, _ in hypotheses] for hypotheses in found]
        padding = self.model.config.pad_token_id
        self._metrics.count_batch(sources, sum(token != padding for best, *_ in outputs for token in best[1:]))
        texts = [self.tokenizer.batch_decode(hypotheses, skip_special_tokens=True) for hypotheses in outputs]
        return [[" ".join(text.splitlines()) for text in hypotheses] for hypotheses in texts]


class _Document(NamedTuple):
    """A text cut into sentences and white space, for a model that translates the sentences."""

    translator: Translator
    pieces: list[str]
    places: list[int]  # indices of the pieces to translate
    sources: list[list[int]]  # their token ids
    warnings: list[str]
    detected: Detection | None

    def join(self, hypotheses: Sequence[Sequence[str]]) -> Translation:
        """Put the hypotheses of the sentences into the text."""
        texts = []
        for rank in range(max(map(len, hypotheses), default=1)):
            pieces = list(self.pieces)
            for place, found in zip(self.places, hypotheses, strict=True):
                pieces[place] = found[min(rank, len(found) - 1)]
            texts.append("".join(pieces))
        best, *others = dict.fromkeys(texts)
        return Translation(best, others, self.warnings, self.detected)


class TranslationService:
    """Translates texts in all directions of its models.

    Args:
        translators: the models.

    Raises:
        ImportError: if the extra `serve` is not installed.
        ValueError: if two models translate in the same direction.
    """

    def __init__(self, translators: Sequence[Translator]):
        self._names = import_extra("babel", "serve").Locale("en").languages
        self.directions: dict[tuple[str, str], Translator] = {}
        for translator in translators:
            for direction in translator.prefixes:
                other = self.directions.setdefault(direction, translator)
                if other is not translator:
                    raise ValueError(
                        f"{other.name} and {translator.name} both translate from {' to '.join(direction)}."
                    )
        self.translators = list(translators)

    def languages(self) -> list[dict[str, Any]]:
        """Return every language with its code, its English name, and the languages into which it is translated."""
        codes = dict.fromkeys(language for direction in self.directions for language in direction)
        targets = {code: [target for source, target in self.directions if source == code] for code in codes}
        return [{"code": code, "name": self._names.get(code, code), "targets": targets[code]} for code in codes]

    def detect(self, text: str, target: str | None = None) -> list[Detection]:
        """Return the probable languages of a text, the most probable first, among those that are translated.

        Args:
            target: only languages that are translated into this one count.
        """
        sources = dict.fromkeys(source for source, into in self.directions if target in (None, into))
        found = probabilities(text, list(sources))
        return [Detection(*item) for item in sorted(found.items(), key=lambda item: item[1], reverse=True)]

    async def translate(
        self, texts: Sequence[str], source: str, target: str, alternatives: int = 0
    ) -> list[Translation]:
        """Return the translation of each text.

        Args:
            source: the language of the texts, or "auto".
            alternatives: number of other translations of each text; there are at most as many as beams, less one.

        Raises:
            QueueFullError: if too many sentences wait already.
            UnsupportedError: if no model has the direction, or the language of a text cannot be detected.
        """
        documents = [self._document(text, source, target) for text in texts]
        answers: list[list[asyncio.Future]] = []
        try:
            for document in documents:
                nbest = min(1 + alternatives, document.translator.num_beams)
                submitted = document.translator.batcher.submit(document.sources, nbest)
                answers.append([asyncio.wrap_future(answer) for answer in submitted])
            hypotheses = [[await answer for answer in of_document] for of_document in answers]
        finally:  # if the request has failed or nobody waits for it, the rest of it is dropped
            for answer in chain.from_iterable(answers):
                answer.cancel()
        return [document.join(found) for document, found in zip(documents, hypotheses, strict=True)]

    def _document(self, text: str, source: str, target: str) -> _Document:
        """Cut a text into sentences for the model of its direction."""
        detected = None
        if source == AUTO:
            detected = self._detect_source(text, target)
            source = detected.language
        translator = self.directions.get((source, target))
        if translator is None:
            known = ", ".join(f"{source} to {target}" for source, target in self.directions)
            raise UnsupportedError(f"{source} to {target} is not supported; these directions are: {known}.")
        parts = segments(text, source)
        places = [i for i, part in enumerate(parts) if part.is_sentence]
        tokenizer, prefix = translator.tokenizer, translator.prefixes[source, target]
        ids = tokenizer([parts[i].text for i in places], verbose=False)["input_ids"] if places else []
        limit, warnings = translator.model.config.max_position_embeddings - len(prefix), []
        for number, length in enumerate(map(len, ids), 1):
            if length > limit:
                warnings.append(f"Sentence {number} has {length:,} tokens, more than {limit:,}: it is not translated.")
        fitting = [
            (i, [*prefix, *sentence]) for i, sentence in zip(places, ids, strict=True) if len(sentence) <= limit
        ]
        return _Document(
            translator,
            [part.text for part in parts],
            [i for i, _ in fitting],
            [row for _, row in fitting],
            warnings,
            detected,
        )

    def _detect_source(self, text: str, target: str) -> Detection:
        """Return the most probable language of a text among those that are translated into `target`."""
        found = self.detect(text, target)
        if not found:
            known = ", ".join(dict.fromkeys(into for _, into in self.directions))
            raise UnsupportedError(f"{target} is not supported as a target; these languages are: {known}.")
        if len(found) > 1 and not found[0].probability:
            raise UnsupportedError("The language of the text cannot be detected: name it as the source.")
        return found[0]

    def queue_length(self) -> int:
        """Return the number of sentences that wait."""
        return sum(len(translator.batcher) for translator in self.translators)

    def close(self) -> None:
        """Finish what waits, and stop."""
        for translator in self.translators:
            translator.batcher.close()
