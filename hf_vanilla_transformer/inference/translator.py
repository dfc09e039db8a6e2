"""Turn text into translations: the one place in which every verb, the server and Python's `translate` do it.

`Translator` owns the model, its tokenizer and directions, the limit on length, blank text, batching, n-best lists and
scores. Its callers add only their own input and output.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, overload

import torch
from transformers import PreTrainedTokenizerBase

from ..data.batching import batches_by_length, pad
from ..data.tokenizer import check_tokenizer, prefix_ids
from ..errors import UserError, checking_settings
from ..loading import load_model, load_tokenizer
from ..model.generation_vanilla_transformer import DEFAULT_LENGTH_PENALTY, can_decode_incrementally, length_penalty
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..model.text_rules_vanilla_transformer import Directions, check_weights, is_blank, max_source_tokens, normalise
from ..plugins import DOCUMENTS, load
from .alignment import align
from .ensemble import Ensemble
from .exports import load_export, recognise
from .glossary import Glossary, insert_terms, link_terms
from .hardware import (
    MAX_TOKENS,
    avoid_cudnn_attention,
    choose_dtype,
    default_device,
    default_max_tokens,
    is_faster_in_parallel,
    named_dtype,
    run_in_parallel,
)
from .runtime import Runtime
from .segments import Document, Links

Progress = Callable[[int], object]  # called after each batch with the number of sentences in it


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
        doubtful: the translations of sentences that score far below those of the validation text, which is known only
            if scores are requested and the model has a `doubtful_score`; empty for all others.
    """

    hypotheses: list[Hypothesis]
    problem: str | None = None
    doubtful: tuple[str, ...] = ()

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
        is_doubtful: whether the best hypothesis is, as in `Translation`.
    """

    hypotheses: list[list[int]]
    scores: list[float]
    problem: str | None = None
    is_doubtful: bool = False


@contextmanager
def _evaluating(model: Runtime) -> Iterator[None]:
    """Turn dropout off in this block, whether it succeeds or not; only a model in torch has any."""
    if not isinstance(model, torch.nn.Module):
        yield
        return
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


class Translator:
    """Translates text with a model.

    Args:
        model: a model in torch, an `Ensemble`, or an export.
        tokenizer: the tokenizer saved with it.
        name: the name of the model in messages.

    Raises:
        ValueError: if weights of the model are NaN or infinite.

    Attributes:
        directions: the languages of the model.
        max_source_tokens: the most tokens of a source that is translated, tags and `</s>` included.
    """

    def __init__(self, model: Runtime, tokenizer: PreTrainedTokenizerBase, name: str = "the model"):
        # Here and not in each search, which would have to wait for the device
        if isinstance(model, torch.nn.Module):
            check_weights(model, name)
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.directions = Directions(model.config)
        self.max_source_tokens = max_source_tokens(model.config, tokenizer)

    @classmethod
    def load(
        cls,
        names: str | Sequence[str],
        backend: str = "torch",
        dtype: str | None = None,
        batch_size: int | None = 1,
        num_beams: int | None = None,
    ) -> "Translator":
        """Return the translator of a saved model, on the accelerator if there is one; several names form an ensemble.

        Args:
            names: folders, or names on the Hub.
            backend: "torch", or one of `exports.format_names`, to which a saved model is exported first.
            dtype: number format of the weights in torch, one of `hardware.DTYPES` (default: "float32"); "auto" is the
                faster one here.
            batch_size, num_beams: of the search for which "auto" measures, as in `hardware.choose_dtype`.

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
                raise UserError("A number format and ensembles need the backend torch.")
            exported = load_export(name, backend)
            return cls(exported, exported.tokenizer, name)

        models, tokenizers = zip(*(_load_in_torch(name, dtype or "float32") for name in names), strict=True)
        model = models[0] if len(models) == 1 else _make_ensemble(names, models, tokenizers)
        if dtype == "auto":
            model.to(choose_dtype(model, batch_size, num_beams))  # type: ignore[arg-type]
        return cls(model, tokenizers[0], name)

    @property
    def dtype(self) -> str | None:
        """Return the name of the number format of a model in torch, None for an export."""
        dtype = getattr(self.model, "dtype", None)
        return dtype and str(dtype).removeprefix("torch.")

    def num_hypotheses(self, num_beams: int | None = None) -> int:
        """Return how many hypotheses of a sentence a beam search can return.

        Args:
            num_beams: the beam size; by default that of the model.
        """
        return self._num_beams({"num_beams": num_beams}) if self.model.returns_scores else 1

    @property
    def knows_doubt(self) -> bool:
        """Return whether translations with scores can be found doubtful, as in `Translation`."""
        return self.model.returns_scores and self.model.config.doubtful_score is not None

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
        """Return the token ids of sentences in normal form, with the tags with which a source starts.

        Raises:
            ValueError: for a language or tag that the model does not have.
        """
        # Before the check for no sentences, so that wrong languages are errors even then
        prefix = prefix_ids(self.model.config, self.tokenizer, source_lang, target_lang, tag)
        if not sentences:
            return []
        self.directions.check_tags(sentences)
        texts = list(map(normalise, sentences))
        # Not verbose: transformers would log a warning for sentences longer than `model_max_length`. They are reported
        # by `problem` instead, which also counts the tags.
        return [[*prefix, *ids] for ids in self.tokenizer(texts, verbose=False)["input_ids"]]

    def decode(self, hypotheses: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of generated ids."""
        # The start token, `</s>` and the padding behind it are special tokens too
        # One by one: some releases of transformers return one empty text for an empty list
        return [str(self.tokenizer.decode(list(ids), skip_special_tokens=True)) for ids in hypotheses]

    @torch.inference_mode()
    def translate_ids(
        self,
        sources: Sequence[Sequence[int]],
        nbest: int = 1,
        scores: bool = False,
        max_tokens: int | None = None,
        progress: Progress | None = None,
        **generate_kwargs: object,
    ) -> list[Output]:
        """Return the output for each source, in order.

        Translations do not depend on how sentences are batched: padding is masked, and each sentence has its own
        length limit.

        Args:
            sources: the token ids of each sentence, as `encode` returns them; no ids have no ids as their translation.
            nbest: number of hypotheses, at most the beam size unless tokens are sampled.
            scores: whether hypotheses have scores, even if there is only one of each sentence.
            max_tokens: the maximum number of source tokens per batch, padding included; a longer sentence forms a
                batch of its own. By default 2,048, and 4,096 with one beam, unless scores take another pass.
            progress: called after each batch with the number of sentences in it.
            generate_kwargs: passed to `model.generate`; defaults come from the generation config of the model.

        Raises:
            ValueError: if `nbest` exceeds the beam size.
        """
        blank = Output([[]] * nbest, [0.0] * nbest)
        # Those that are too long keep an output with their problem: training never reached their last positions, so a
        # translation would be wrong without anyone noticing
        results = [Output([], [], self.problem(len(source))) if len(source) else blank for source in sources]
        places = [i for i, source in enumerate(sources) if len(source) and results[i].problem is None]
        if progress is not None and len(places) < len(sources):
            progress(len(sources) - len(places))
        if not places:
            return results

        if max_tokens is None:
            takes_one_pass = nbest == 1 and not (scores and self.scores_take_a_pass(generate_kwargs))
            max_tokens = default_max_tokens(self._num_beams(generate_kwargs)) if takes_one_pass else MAX_TOKENS
        lengths = [len(sources[i]) for i in places]
        # Longest first, so that running out of memory happens in the first batch and not after an hour
        batches = [[places[i] for i in batch] for batch in reversed(batches_by_length(lengths, lengths, max_tokens))]

        def search(batch: list[int]) -> list[Output]:
            return self._search([sources[i] for i in batch], nbest, scores, generate_kwargs)

        if len(batches) > 1 and self._can_search_in_parallel(generate_kwargs):
            searches = run_in_parallel(search, batches)
        else:
            searches = (search(batch) for batch in batches)
        # Closed even if `progress` raises, so that no further search begins
        with _evaluating(self.model), closing(searches):
            for batch, outputs in zip(batches, searches, strict=True):
                for i, output in zip(batch, outputs, strict=True):
                    results[i] = output
                if progress is not None:
                    progress(len(batch))
        return results

    def _num_beams(self, settings: dict[str, Any]) -> int:
        """Return the beam size of a search with these arguments of `generate`."""
        return self._setting("num_beams", settings) or 1

    def _setting(self, name: str, settings: dict[str, Any]) -> Any:
        """Return a setting of a search with these arguments of `generate`, by default the model's own."""
        value = settings.get(name)
        if value is None:
            value = getattr(settings.get("generation_config") or self.model.generation_config, name)
        return value

    def _length_penalty(self, length: int, settings: dict[str, Any]) -> float:
        """Return the length penalty of `length` tokens in a search with these arguments of `generate`."""
        alpha = self._setting("length_penalty", settings)
        alpha = DEFAULT_LENGTH_PENALTY if alpha is None else alpha
        return float(length_penalty(self.model.config, length, alpha))

    def mean_log_probs(self, outputs: Sequence[Output], settings: dict[str, Any]) -> list[float | None]:
        """Return the log-probability per token, in nats, of the best hypothesis of each sentence, None without any.

        Args:
            outputs: those of a search with scores.
            settings: its arguments of `generate`.
        """
        padding = self.model.config.pad_token_id
        ends = self._setting("eos_token_id", settings)
        ends = ends if isinstance(ends, (list, tuple)) else [ends]

        def count(tokens: Sequence[int]) -> int:
            # a beam search fills up with the end if the padding is token 0
            end = next((number for number, token in enumerate(tokens, 1) if token in ends), None)
            return end or sum(token != padding for token in tokens)

        def mean(output: Output) -> float | None:
            # without the start token
            length = count(output.hypotheses[0][1:]) if output.hypotheses else 0
            return output.scores[0] * self._length_penalty(length, settings) / length if length else None

        return list(map(mean, outputs))

    def scores_take_a_pass(self, settings: dict[str, Any]) -> bool:
        """Return whether the scores of a search with one beam probably need another pass of the model."""
        with _evaluating(self.model):
            return bool(self._setting("do_sample", settings)) or not can_decode_incrementally(self.model)

    def _can_search_in_parallel(self, settings: dict[str, object]) -> bool:
        """Return whether several batches should be searched at once, in threads that share nothing but the weights."""
        return (
            is_faster_in_parallel(self.model)
            # no random numbers, and no objects with a state, such as logits processors
            and not settings.get("do_sample")
            and all(value is None or isinstance(value, (int, float)) for value in settings.values())
            # which holds only for one thread
            and not torch.is_autocast_enabled("cpu")
        )

    def _search(
        self, sources: Sequence[Sequence[int]], nbest: int, scores: bool, settings: dict[str, object]
    ) -> list[Output]:
        """Return the output for each source of one batch."""
        pad_token_id = self.model.config.pad_token_id
        assert pad_token_id is not None  # every model has one
        # Not `input_ids != pad_token_id`, which would also hide a padding token inside a source
        inputs = {
            "input_ids": pad(sources, pad_token_id).to(self.model.device),  # (batch, longest source)
            "attention_mask": pad([[1] * len(source) for source in sources], 0).to(self.model.device),
        }
        has_scores = scores or nbest > 1
        # a number saved with the model would be that of other calls
        settings = {**settings, "num_return_sequences": nbest}
        if has_scores:
            # `output_sequence_scores` is this package's: unlike transformers' `output_scores`, it keeps the fast
            # search, and does not store the (steps, batch * beams, vocabulary) logits of the whole search
            settings["output_sequence_scores"] = True
        with checking_settings():
            generated = self.model.generate(**inputs, **settings)
        # `return_dict_in_generate` may be among the settings, or in the generation config of the model
        sequences = getattr(generated, "sequences", generated)

        # generate() returns the hypotheses of a sentence in consecutive rows: (batch * nbest, longest output)
        hypotheses = sequences.unflatten(0, (-1, nbest)).tolist()
        values: list[list[float]] = [[]] * len(sources)
        if has_scores:
            values = generated.sequences_scores.unflatten(0, (-1, nbest)).tolist()
        outputs = list(map(Output, hypotheses, values))
        return self._with_doubts(outputs, settings) if has_scores else outputs

    def _with_doubts(self, outputs: list[Output], settings: dict[str, Any]) -> list[Output]:
        """Return the outputs of a search with scores, with whether their best hypotheses are doubtful."""
        threshold = self.model.config.doubtful_score
        # sampled tokens are less probable than those that a search chooses
        if threshold is None or self._setting("do_sample", settings):
            return outputs
        means = self.mean_log_probs(outputs, settings)
        doubts = [mean is not None and mean < threshold for mean in means]
        return [output._replace(is_doubtful=doubt) for output, doubt in zip(outputs, doubts, strict=True)]

    def translate(
        self,
        sentences: Sequence[str],
        *,
        source_lang: str | None = None,
        target_lang: str | None = None,
        tag: str | None = None,
        split_sentences: bool = False,
        placeholders: str | None = None,
        nbest: int = 1,
        glossary: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        **search: Any,
    ) -> list[Translation]:
        """Return the translation of each sentence, in the same order.

        Args:
            sentences: the source sentences.
            source_lang, target_lang: the direction, for a model that has several.
            tag: a tag with which some of the training sources started, such as "<bt>".
            split_sentences: whether to cut each text into sentences and to join their translations; its score is the
                sum of theirs.
            placeholders: with `split_sentences`, a regular expression for placeholders besides the usual ones.
            glossary: terms and the translations that they get, as `Glossary`.
            nbest, progress, search: as the arguments of `translate_ids`, where scores are 0 unless requested.

        Raises:
            ValueError: for a language or tag that the model does not have, if `nbest` exceeds the beam size, or for a
                glossary with a runtime that has no attention weights.
        """
        direction: dict[str, Any] = {"source_lang": source_lang, "target_lang": target_lang, "tag": tag}
        if split_sentences:
            search |= {"nbest": nbest, "placeholders": placeholders, "progress": progress, "glossary": glossary}
            return self.translate_documents(sentences, Document, **direction, **search)
        if placeholders is not None:
            raise UserError("placeholders requires split_sentences=True.")

        encoded = self.encode(sentences, **direction)
        # A blank text has no tokens, not the `</s>` that a tokenizer makes of it: the model would invent a translation
        sources = [[] if is_blank(text) else ids for text, ids in zip(sentences, encoded, strict=True)]
        outputs = self.translate_ids(sources, nbest, progress=progress, **search)
        decoded = [self.decode(output.hypotheses) for output in outputs]
        if glossary:
            decoded = self.insert_terms(sentences, decoded, glossary, **direction)
        translations = []
        for output, texts in zip(outputs, decoded, strict=True):
            hypotheses = map(Hypothesis, texts, output.scores or [0.0] * len(texts))
            doubtful = tuple(texts[:1]) if output.is_doubtful else ()
            translations.append(Translation(list(hypotheses), output.problem, doubtful))
        return translations

    def insert_terms(
        self,
        sentences: Sequence[str],
        hypotheses: Sequence[Sequence[str]],
        glossary: Mapping[str, str],
        **direction: Any,
    ) -> list[list[str]]:
        """Return the hypotheses of each sentence with the asked translations of the terms in it.

        Args:
            direction: `source_lang`, `target_lang` and `tag`, as for `translate`.

        Raises:
            ValueError: as `translate`.
        """
        find = Glossary.of(glossary).find
        rows = list(zip(map(normalise, sentences), hypotheses, strict=True))
        terms = {sentence: find(sentence) for sentence, _ in rows}
        pairs = [(sentence, text) for sentence, texts in rows if terms[sentence] for text in texts]
        asked = {}
        for pair, links in zip(pairs, self.align(pairs, **direction), strict=True):
            if links is None:
                raise UserError(f"A glossary needs attention weights, which {self.name} has only in --backend torch.")
            asked[pair] = insert_terms(*pair, terms[pair[0]], links)
        return [[asked.get((sentence, text), text) for text in texts] for sentence, texts in rows]

    def translate_html(self, texts: Sequence[str], **settings: Any) -> list[Translation]:
        """Return the translation of each text in HTML, sentence by sentence, as `translate_documents`.

        All tags are copied, and inline ones go to the translations of the words in them. Comments, code, and elements
        with translate="no" stay as they are; the attributes alt and title are translated.

        Args:
            texts: pages or parts of pages.
            settings: as for `translate`.

        Raises:
            ValueError: as `translate`, or if the plugin for documents is not installed.
        """
        return self.translate_documents(texts, load(DOCUMENTS, "html").document, **settings)

    def translate_documents(
        self,
        texts: Sequence[str],
        document: type[Document],
        source_lang: str | None = None,
        target_lang: str | None = None,
        tag: str | None = None,
        nbest: int = 1,
        placeholders: str | None = None,
        **settings: Any,
    ) -> list[Translation]:
        """Return the translation of each text, sentence by sentence; the score of a text is the sum of theirs.

        Args:
            texts: the texts.
            document: cuts each of them into sentences, and joins their translations.
            source_lang, target_lang, tag, nbest, placeholders, settings: as for `translate`.
        """
        direction: dict[str, Any] = {"source_lang": source_lang, "target_lang": target_lang, "tag": tag}
        language, target = self.directions.resolve(source_lang, target_lang)
        documents = [document(text, language, target, placeholders) for text in texts]
        # The sentences of all documents at once, because those of one alone seldom fill a batch
        sentences = list(chain.from_iterable(text.sentences for text in documents))
        remaining = iter(self.translate(sentences, nbest=nbest, **direction, **settings))
        translated = [(text, [next(remaining) for _ in text.sentences]) for text in documents]
        pairs = list(chain.from_iterable(text.pairs(_texts(translations)) for text, translations in translated))
        links = iter(self.align(pairs, **direction, glossary=settings.get("glossary")))
        return [_join(text, translations, links, nbest) for text, translations in translated]

    def align(
        self,
        pairs: Sequence[tuple[str, str]],
        source_lang: str | None = None,
        target_lang: str | None = None,
        tag: str | None = None,
        glossary: Mapping[str, str] | None = None,
    ) -> list[Links | None]:
        """Return the alignment of each sentence with its translation, None if the runtime returns no attention.

        Args:
            pairs: the sentences and their translations.
            source_lang, target_lang, tag: as for `translate`.
            glossary: the terms that are in the translations.
        """
        if not pairs:
            # Nothing for the model to do, which may be at work in another thread
            return []
        prefix = prefix_ids(self.model.config, self.tokenizer, source_lang, target_lang, tag)
        with _evaluating(self.model):
            alignments = align(self.model, self.tokenizer, prefix, pairs, self.max_source_tokens, MAX_TOKENS)
        if not glossary:
            return alignments
        find = Glossary.of(glossary).find
        return [
            links and link_terms(translation, find(sentence), links)
            for (sentence, translation), links in zip(pairs, alignments, strict=True)
        ]


def _load_in_torch(
    name: str, dtype: str
) -> tuple[VanillaTransformerForConditionalGeneration, PreTrainedTokenizerBase]:
    """Return a saved model, on the accelerator if there is one, and its tokenizer."""
    device = default_device()
    if device.type == "cuda":
        avoid_cudnn_attention()
    try:
        model = load_model(name, dtype=named_dtype(dtype))
    except (OSError, ValueError):
        # only now, because asking imports the plugin of every format
        if export := recognise(name):
            raise UserError(
                f"{name} is an export for {export.title}: use evaluate, translate or serve with --backend "
                f"{export.name}; for compare, pass a file of its translations."
            ) from None
        raise
    tokenizer = load_tokenizer(name)
    # Here, because a token id beyond the embedding fails deep in torch, and on a GPU at some later operation
    check_tokenizer(tokenizer, model.config)
    return model.to(device), tokenizer  # type: ignore[arg-type]


def _make_ensemble(
    names: Sequence[str],
    models: Sequence[VanillaTransformerForConditionalGeneration],
    tokenizers: Sequence[PreTrainedTokenizerBase],
) -> Ensemble:
    """Return the ensemble of some models, given by name.

    Raises:
        ValueError: if they differ in vocabulary or languages.
    """
    # Equal sizes are not enough: an ensemble would average the probabilities of different tokens
    for other, tokenizer in zip(names, tokenizers, strict=True):
        if tokenizer.get_vocab() != tokenizers[0].get_vocab():
            raise UserError(f"{names[0]} and {other} have different vocabularies: an ensemble must share one.")
    check_same_directions({name: Directions(model.config) for name, model in zip(names, models, strict=True)})
    return Ensemble(models)


def check_same_directions(directions: Mapping[str, Directions]) -> None:
    """Check that models, by their names, translate in the same directions.

    Raises:
        ValueError: if they do not.
    """
    if len(set(map(str, directions.values()))) > 1:
        listed = "; ".join(f"{name}: {of_model}" for name, of_model in directions.items())
        raise UserError(f"The models have different directions: {listed}.")


def _texts(translations: Iterable[Translation]) -> list[list[str]]:
    """Return the texts of the hypotheses of each sentence."""
    return [[hypothesis.text for hypothesis in translation.hypotheses] for translation in translations]


def _join(
    document: Document, translations: Sequence[Translation], links: Iterator[Links | None], nbest: int
) -> Translation:
    """Return the translation of a document from those of its sentences, as `Document.join_hypotheses`."""
    texts = document.join_hypotheses(_texts(translations), links, nbest)
    if not document.sentences:
        # as `translate` returns nothing for white space
        texts = ["" if is_blank(text) else text for text in texts]
    ranks = zip(*(translation.hypotheses for translation in translations if translation.hypotheses), strict=True)
    scores = [sum(hypothesis.score for hypothesis in rank) for rank in ranks] or [0.0] * nbest
    problems = [f"sentence {i}: {result.problem}" for i, result in enumerate(translations, 1) if result.problem]
    doubtful = tuple(chain.from_iterable(translation.doubtful for translation in translations))
    return Translation(list(map(Hypothesis, texts, scores)), "; ".join(problems) or None, doubtful)


# A type checker learns from these that a string gives a string
@overload
def translate(model: Runtime, tokenizer: PreTrainedTokenizerBase, sentences: str, **settings: Any) -> str: ...


@overload
def translate(
    model: Runtime, tokenizer: PreTrainedTokenizerBase, sentences: Iterable[str], **settings: Any
) -> list[str]: ...


def translate(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sentences: str | Iterable[str],
    max_tokens: int | None = None,
    progress: Progress | None = None,
    *,
    dtype: str | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    tag: str | None = None,
    split_sentences: bool = False,
    **generate_kwargs: Any,
) -> str | list[str]:
    """Return the translation of a string, or one per string of an iterable, in the same order.

    A blank sentence is translated to an empty string. So is one with more tokens than the model has positions, with a
    warning that names its index; `split_sentences` makes long texts work.

    Args:
        model: the model, an `Ensemble`, or an export loaded with `exports.load_export`.
        tokenizer: the tokenizer saved with the model.
        sentences: a source sentence, or several.
        dtype: number format of a copy of the model that translates, one of `hardware.DTYPES`; by default the model
            itself translates. For models and ensembles in torch.

    The other arguments are those of `Translator.translate`, among them `glossary` and `placeholders`.

    Raises:
        TypeError: if `sentences` is neither a string nor an iterable of strings.
        ValueError: for an unknown dtype, or a language or tag that the model does not have.
    """
    if (generate_kwargs.get("num_return_sequences") or 1) > 1:
        raise UserError("translate returns one translation per sentence; Translator.translate has nbest.")
    texts = [sentences] if isinstance(sentences, str) else _check_sentences(sentences)
    if dtype is not None:
        # a text that is split has more sentences
        model = _copy_in(dtype, model, None if split_sentences else len(texts), generate_kwargs.get("num_beams"))

    translator = Translator(model, tokenizer)
    translations = translator.translate(
        texts,
        source_lang=source_lang,
        target_lang=target_lang,
        tag=tag,
        split_sentences=split_sentences,
        max_tokens=max_tokens,
        progress=progress,
        **generate_kwargs,
    )
    problems = [f"{i} ({result.problem})" for i, result in enumerate(translations) if result.problem]
    if problems:
        advice = "" if split_sentences else " split_sentences=True cuts texts into sentences."
        # One warning for all sentences, at the line of the caller
        warnings.warn(f"Not translated, counted from 0: {'; '.join(problems)}.{advice}", stacklevel=2)
    results = [translation.text for translation in translations]
    return results[0] if isinstance(sentences, str) else results


def _copy_in(dtype: str, model: Any, batch_size: int | None, num_beams: int | None) -> Any:
    """Return a copy of a model in a number format, where "auto" is the faster one for such a search."""
    # `Module.to` would convert the weights of the caller's model
    model = copy.deepcopy(model).eval()
    return model.to(choose_dtype(model, batch_size, num_beams) if dtype == "auto" else named_dtype(dtype))


def _check_sentences(sentences: Iterable[str]) -> list[str]:
    """Return sentences as a list, after checking that they are strings."""
    if not isinstance(sentences, Iterable):
        raise TypeError(f"translate expects a string or an iterable of strings, got {type(sentences).__name__}.")
    texts = list(sentences)
    # Bytes are iterable too, and tokenizers report None with an internal error
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"translate expects strings, but sentence {i}, counted from 0, is {type(text).__name__}.")
    return texts
