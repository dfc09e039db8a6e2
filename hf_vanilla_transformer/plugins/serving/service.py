"""Translate texts of any length with several models: what the HTTP server does, without HTTP."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ...data.languages import probabilities
from ...errors import UserError
from ...files import import_extra
from ...flags import Settings
from ...inference.glossary import Direction, Glossary
from ...inference.segments import Document, Links
from ...inference.translator import Output, Translator
from ...model.text_rules_vanilla_transformer import is_blank
from .batcher import Batcher, Sentence
from .monitoring import Metrics

# LibreTranslate's code for a source language that is to be detected.
AUTO = "auto"
_SHORT = 1000  # characters of a text that is cut into sentences at once, in 3 ms at most
_CHARACTERS_PER_TOKEN = 100  # that are cut while a token is translated
_Result = TypeVar("_Result")


class UnsupportedError(UserError):
    """A request for something that these models cannot do; the message is for whoever asked."""


@dataclass(frozen=True)
class Detection:
    """A language, and how certain it is that a text is in it, in per cent."""

    confidence: float
    language: str


@dataclass(frozen=True)
class Language:
    """A language with its code and English name, and those into which it is translated."""

    code: str
    name: str
    targets: list[str]


@dataclass(frozen=True)
class Answer:
    """The translation of a text and of how many sentences, others of it, and what could not be translated.

    Args:
        doubtful: as in `Translation`.
    """

    text: str
    alternatives: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    detected: Detection | None = None
    sentences: int = 0
    doubtful: list[str] = field(default_factory=list)


class Candidate(NamedTuple):
    """A translation of a sentence, and whether it is doubtful."""

    text: str
    is_doubtful: bool


class ServedModel:
    """A model of the server, with its settings.

    Args:
        translator: the model.
        decoding: arguments of `generate`, such as the beam size.

    Raises:
        ValueError: if the model does not say which languages it translates.
    """

    def __init__(self, translator: Translator, decoding: Settings, metrics: Metrics):
        self.translator = translator
        self._decoding = decoding
        self._metrics = metrics
        if not translator.directions.pairs:
            raise UserError(f"{translator.name} does not say which languages it translates: its config.json must.")
        self.max_hypotheses = translator.num_hypotheses(decoding.get("num_beams"))

    def check(self) -> None:
        """Translate a short sentence, to find out whether the model works.

        Raises:
            Exception: if it does not.
        """
        source, target = self.translator.directions.pairs[0]
        self._search(self.translator.encode(["."], source, target), 1)

    def translate(self, sources: list[list[int]], nbest: int) -> list[list[Candidate]]:
        """Return the `nbest` best hypotheses of each source, best first and each in one line, from a single batch."""
        try:
            outputs = self._search(sources, nbest)
        except BaseException:
            self._metrics.failures.inc()
            raise

        padding = self.translator.model.config.pad_token_id
        # of the best hypotheses, without the start token
        generated = (token for output in outputs for token in output.hypotheses[0][1:])
        self._metrics.batches.observe(len(sources))
        self._metrics.sentences.inc(len(sources))
        self._metrics.tokens.labels("source").inc(sum(map(len, sources)))
        self._metrics.tokens.labels("target").inc(sum(token != padding for token in generated))

        answers = []
        for output in outputs:
            # A sentence stands within a line of its text, which a line break would cut.
            texts = [" ".join(text.splitlines()) for text in self.translator.decode(output.hypotheses)]
            answers.append([Candidate(text, output.is_doubtful) for text in texts])
        return answers

    def _search(self, sources: list[list[int]], nbest: int) -> list[Output]:
        # The tokens of a batch, so that `translate_ids` does not cut this one up: the batcher has chosen its size.
        # Twice, because lengths are rounded up.
        whole = 2 * max(map(len, sources)) * len(sources)
        scores = self.translator.knows_doubt
        return self.translator.translate_ids(sources, nbest, scores, max_tokens=whole, **self._decoding)


@dataclass(frozen=True)
class _Job:
    """A text cut into sentences, those that are queued, and what is known of the rest.

    Args:
        document: the text.
        align: returns the alignment of sentences with their translations; only the model thread may call it.
        insert_terms: puts the terms of a glossary into the hypotheses of sentences; in this thread, too.
        queued: the sentences to translate, by their place among those of the document.
    """

    document: Document
    align: Callable[[list[tuple[str, str]]], list[Links | None]] | None = None
    insert_terms: Callable[[Sequence[str], Sequence[Sequence[str]]], list[list[str]]] | None = None
    queued: dict[int, Sentence] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    detected: Detection | None = None

    def join(self, hypotheses: Sequence[Sequence[Candidate]]) -> Answer:
        """Put the hypotheses of the queued sentences into the text, whose other sentences stay as they are."""
        queued = dict(zip(self.queued, hypotheses, strict=True))
        of_sentences: Sequence[Sequence[str]] = [
            [candidate.text for candidate in queued.get(place, ())] for place in range(len(self.document.sentences))
        ]
        if self.insert_terms:
            of_sentences = self.insert_terms(self.document.sentences, of_sentences)
        links = self.align(self.document.pairs(of_sentences)) if self.align else []
        # With no sentence there is still the text itself, of white space or already in the target language.
        count = max(map(len, hypotheses), default=1)
        # Without duplicates, which arise where hypotheses differ only in special tokens or white space.
        best, *others = dict.fromkeys(self.document.join_hypotheses(of_sentences, iter(links), count))
        doubtful = [of_sentences[place][0] for place, (first, *_) in queued.items() if first.is_doubtful]
        return Answer(best, others, self.warnings, self.detected, len(of_sentences), doubtful)


class TranslationService:
    """Translates texts in all directions of its models.

    Args:
        models: the models.
        batcher: runs them.
        placeholders: as for `Document`.

    Raises:
        ValueError: if two models translate in the same direction.

    Attributes:
        directions: the model of each direction.
        glossaries: the terms of each direction that has some, with their translations.
    """

    def __init__(self, models: Sequence[ServedModel], batcher: Batcher, placeholders: str | None = None):
        self.batcher = batcher
        self._placeholders = placeholders
        self.directions: dict[Direction, ServedModel] = {}
        self.glossaries: dict[Direction, Glossary] = {}
        for model in models:
            # exports run a search as a whole
            if hasattr(model.translator.model, "before_step"):
                model.translator.model.before_step = batcher.give_way
            for direction in model.translator.directions.pairs:
                other = self.directions.setdefault(direction, model)
                if other is not model:
                    names = f"{other.translator.name} and {model.translator.name}"
                    raise UserError(f"{names} both translate from {' to '.join(direction)}.")

    def languages(self) -> list[Language]:
        """Return every language, with its code if its English name is unknown."""
        names = import_extra("babel", "serve").Locale("en").languages
        targets = {code: [target for source, target in self.directions if source == code] for code in self._codes()}
        # Babel writes pt_BR and zh_Hans.
        return [Language(code, names.get(code.replace("-", "_"), code), into) for code, into in targets.items()]

    def _code(self, language: str) -> str:
        """Return the code of a language as the models write it; clients of LibreTranslate need not know its case."""
        return next((code for code in self._codes() if code.lower() == language.lower()), language)

    def _codes(self) -> list[str]:
        """Return the languages of all directions, in the order of the models."""
        return list(dict.fromkeys(language for direction in self.directions for language in direction))

    def detect(self, text: str) -> list[Detection]:
        """Return the languages of the models, with the certainty that a text is in each, the most certain first."""
        certainty = probabilities(text, self._codes())
        return [_detection(certainty, code) for code in sorted(certainty, key=certainty.__getitem__, reverse=True)]

    async def in_turn(self, function: Callable[[], _Result], characters: int) -> _Result:
        """Return the result of a function that works on a text: at once if it is short, else when it is its turn.

        A long text has its turn among the sentences. In a thread of its own, it would keep Python's lock from the
        model, which needs it for each of the many operations of a search: a few clients with long texts would make
        every search take many times as long.
        """
        if characters <= _SHORT:
            return function()
        (result,) = await asyncio.wrap_future(self.batcher.call(function, characters // _CHARACTERS_PER_TOKEN))
        return result

    async def translate(
        self,
        texts: Sequence[str],
        source: str,
        target: str,
        alternatives: int = 0,
        document: type[Document] = Document,
    ) -> list[Answer]:
        """Return the translation of each text; one that is already in `target` is returned as it is.

        Args:
            source: the language of the texts, or "auto".
            alternatives: number of other translations of each text; there are at most as many as beams, less one, and
                none with ONNX Runtime.
            document: what the texts are, such as `HtmlDocument`.

        Raises:
            QueueFullError: if too many sentences wait already.
            RequestTooLargeError: if the texts have more sentences than the queue holds.
            UnsupportedError: if no model has the direction, or the language of a text cannot be detected.
        """
        source = self._code(source)
        target = self._code(target)
        # Before the texts are cut and encoded, which takes time that a busy server does not have.
        self.batcher.check_room(max(1, sum(not is_blank(text) for text in texts)))

        def cut() -> list[_Job]:
            return [self._job(document, text, source, target, 1 + alternatives) for text in texts]

        jobs = await self.in_turn(cut, sum(map(len, texts)) + len(texts))
        answers = self.batcher.submit([sentence for job in jobs for sentence in job.queued.values()])
        try:
            hypotheses = [await asyncio.wrap_future(answer) for answer in answers]
        finally:
            # If the request has failed or its client has left, the rest of it is dropped; what is done stays done.
            for answer in answers:
                answer.cancel()
        remaining = iter(hypotheses)
        joins = [partial(job.join, [next(remaining) for _ in job.queued]) for job in jobs]
        if any(job.document.aligned or job.insert_terms for job in jobs):
            # The alignments need the model.
            (translations,) = await asyncio.wrap_future(self.batcher.call(lambda: [join() for join in joins]))
            return translations
        return [join() for join in joins]

    async def translate_parts(
        self, texts: Sequence[str], source: str, target: str, document: type[Document]
    ) -> list[Answer]:
        """Translate the texts of one file, which are in one language, as `translate` does."""
        target = self._code(target)
        if source == AUTO:

            def detect() -> Detection:
                sentences = (sentence for text in texts for sentence in document(text, None).sentences)
                return self._detect_source(" ".join(sentences), target)

            source = (await self.in_turn(detect, sum(map(len, texts)))).language
        return await self.translate(texts, source, target, document=document)

    def _job(self, document: type[Document], text: str, source: str, target: str, nbest: int) -> _Job:
        """Cut a text into sentences for the model of its direction."""
        detected = None
        if source == AUTO:
            # Tags are in no language
            sample = text if document is Document else " ".join(document(text, None).sentences)
            detected = self._detect_source(sample, target)
            source = detected.language

        job = _Job(document(text, source, target, self._placeholders), detected=detected)
        if source == target and source in self._codes():
            return job
        model = self.directions.get((source, target))
        if model is None:
            known = ", ".join(f"{source} to {target}" for source, target in self.directions)
            raise UnsupportedError(f"{source} to {target} is not supported. Supported directions: {known}.")

        languages: dict[str, Any] = {"source_lang": source, "target_lang": target}
        glossary = self.glossaries.get((source, target), Glossary())
        job = replace(job, align=partial(model.translator.align, glossary=glossary, **languages))
        if any(map(glossary.find, job.document.sentences)):
            job = replace(job, insert_terms=partial(model.translator.insert_terms, glossary=glossary, **languages))
        ids = model.translator.encode(job.document.sentences, source, target)
        for place, sentence in enumerate(ids):
            if problem := model.translator.problem(len(sentence)):
                job.warnings.append(f"Sentence {place + 1} has {problem}: it is not translated.")
            else:
                count = min(nbest, model.max_hypotheses)
                job.queued[place] = Sentence(model.translate, sentence, count, model.check)
        return job

    def _detect_source(self, text: str, target: str) -> Detection:
        """Return the most probable language of a text among `target` and those that are translated into it."""
        sources = [source for source, into in self.directions if into == target]
        if not sources:
            known = ", ".join(dict.fromkeys(into for _, into in self.directions))
            raise UnsupportedError(f"The target language {target} is not supported. Supported languages: {known}.")
        # Among all languages of the models, so that the answer is that of `detect`; but only these are of use here.
        certainty = probabilities(text, self._codes())
        best = max((*sources, target), key=certainty.__getitem__)
        # A single source language needs no detection, whatever the probabilities are.
        if not certainty[best] and len(sources) > 1:
            raise UnsupportedError("The language of the text cannot be detected; set source to its code.")
        return _detection(certainty, best)


def _detection(certainty: dict[str, float], language: str) -> Detection:
    return Detection(round(100 * certainty[language], 1), language)
