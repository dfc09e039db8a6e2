"""Translate texts of any length with several models: what the HTTP server does, without HTTP."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..data.language_filter import probabilities
from ..data.tags import prefix_ids
from ..export.onnx import OnnxModel
from ..files import import_extra
from ..inference.segments import segments
from ..inference.translation import translate_ids, translate_ids_nbest
from ..model.text_rules_vanilla_transformer import parse_language_pair
from .batcher import Batcher, Sentence
from .monitoring import Metrics

AUTO = "auto"  # a source language to be detected


class UnsupportedError(ValueError):
    """A request for something that these models cannot do; the message is for whoever asked."""


class Detection(NamedTuple):
    """A language and the probability, from 0 to 1, that a text is in it."""

    language: str
    probability: float


@dataclass(frozen=True)
class Translation:
    """The translation of a text, other translations of it, and what could not be translated."""

    text: str
    alternatives: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    detected: Detection | None = None


class Translator:
    """A model and its directions.

    Args:
        name: the name of the model in messages.
        decoding: arguments of `generate`, such as the beam size.

    Raises:
        ValueError: if the model does not say which languages it translates.
    """

    def __init__(self, name: str, model: Any, tokenizer: Any, decoding: dict[str, Any], metrics: Metrics):
        self.name, self.model, self.tokenizer = name, model, tokenizer
        self._decoding, self._metrics = decoding, metrics
        config = model.config
        directions = [(config.source_lang, config.target_lang)]
        if config.language_pairs:
            directions = [*map(parse_language_pair, config.language_pairs)]
        elif None in directions[0]:
            raise ValueError(f"{name} does not say which languages it translates: set them in its config.json.")
        self.prefixes = {direction: prefix_ids(config, tokenizer, *direction) for direction in directions}
        beams = decoding.get("num_beams") or model.generation_config.num_beams or 1
        self.max_hypotheses = 1 if isinstance(model, OnnxModel) else beams

    def translate(self, sources: list[list[int]], nbest: int) -> list[list[str]]:
        """Return the `nbest` best hypotheses of each source, best first and each in one line, from a single batch."""
        whole = 2 * max(map(len, sources)) * len(sources)  # tokens of a batch; twice, because lengths are rounded up
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

    pieces: list[str]
    places: list[int]  # indices of the pieces to translate
    sentences: list[Sentence]
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
        batcher: runs them.

    Raises:
        ImportError: if the extra `serve` is not installed.
        ValueError: if two models translate in the same direction.
    """

    def __init__(self, translators: Sequence[Translator], batcher: Batcher):
        self._names = import_extra("babel", "serve").Locale("en").languages
        self._batcher = batcher
        self.directions: dict[tuple[str, str], Translator] = {}
        for translator in translators:
            for direction in translator.prefixes:
                other = self.directions.setdefault(direction, translator)
                if other is not translator:
                    raise ValueError(
                        f"{other.name} and {translator.name} both translate from {' to '.join(direction)}."
                    )

    def languages(self) -> list[dict[str, Any]]:
        """Return every language with its code, its English name, and the languages into which it is translated."""
        codes = dict.fromkeys(language for direction in self.directions for language in direction)
        targets = {code: [target for source, target in self.directions if source == code] for code in codes}
        names = {code: self._names.get(code.replace("-", "_"), code) for code in codes}
        return [{"code": code, "name": names[code], "targets": targets[code]} for code in codes]

    def detect(self, text: str) -> list[Detection]:
        """Return the languages of the models with the probability that a text is in each, the most probable first."""
        languages = [language for direction in self.directions for language in direction]
        found = probabilities(text, list(dict.fromkeys(languages)))
        return [Detection(*item) for item in sorted(found.items(), key=lambda item: item[1], reverse=True)]

    async def translate(
        self, texts: Sequence[str], source: str, target: str, alternatives: int = 0
    ) -> list[Translation]:
        """Return the translation of each text; one that is already in `target` is returned as it is.

        Args:
            source: the language of the texts, or "auto".
            alternatives: number of other translations of each text; there are at most as many as beams, less one, and
                none with ONNX Runtime.

        Raises:
            QueueFullError: if too many sentences wait already.
            UnsupportedError: if no model has the direction, or the language of a text cannot be detected.
        """
        self._batcher.check_room()
        documents = await asyncio.to_thread(
            lambda: [self._document(text, source, target, 1 + alternatives) for text in texts]
        )
        answers = self._batcher.submit([sentence for document in documents for sentence in document.sentences])
        try:
            hypotheses = [await asyncio.wrap_future(answer) for answer in answers]
        finally:  # if the request has failed or nobody waits for it, the rest of it is dropped
            for answer in answers:
                answer.cancel()
        remaining = iter(hypotheses)
        return [document.join([next(remaining) for _ in document.places]) for document in documents]

    def _document(self, text: str, source: str, target: str, nbest: int) -> _Document:
        """Cut a text into sentences for the model of its direction."""
        detected = None
        if source == AUTO:
            detected = self._detect_source(text, target)
            source = detected.language
        if source == target and any(source in direction for direction in self.directions):
            return _Document([text], [], [], [], detected)
        translator = self.directions.get((source, target))
        if translator is None:
            known = ", ".join(f"{source} to {target}" for source, target in self.directions)
            raise UnsupportedError(f"{source} to {target} is not supported. Supported directions: {known}.")
        parts = segments(text, source)
        places = [i for i, part in enumerate(parts) if part.is_sentence]
        tokenizer, prefix = translator.tokenizer, translator.prefixes[source, target]
        ids = tokenizer([parts[i].text for i in places], verbose=False)["input_ids"] if places else []
        limit, warnings = translator.model.config.max_position_embeddings - len(prefix), []
        for number, length in enumerate(map(len, ids), 1):
            if length > limit:
                warnings.append(f"Sentence {number} has {length:,} tokens, more than {limit:,}: it is not translated.")
        nbest = min(nbest, translator.max_hypotheses)
        sentences = {
            place: Sentence(translator.translate, [*prefix, *sentence], nbest)
            for place, sentence in zip(places, ids, strict=True)
            if len(sentence) <= limit
        }
        return _Document([part.text for part in parts], [*sentences], [*sentences.values()], warnings, detected)

    def _detect_source(self, text: str, target: str) -> Detection:
        """Return the most probable language of a text among `target` and those that are translated into it."""
        sources = [source for source, into in self.directions if into == target]
        if not sources:
            known = ", ".join(dict.fromkeys(into for _, into in self.directions))
            raise UnsupportedError(f"The target language {target} is not supported. Supported languages: {known}.")
        best = next(found for found in self.detect(text) if found.language in (*sources, target))
        if best.probability:
            return best
        if len(sources) > 1:
            raise UnsupportedError("The language of the text cannot be detected; set source to its code.")
        return Detection(sources[0], 0.0)
