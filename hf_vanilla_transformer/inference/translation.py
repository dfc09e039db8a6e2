"""Translate many sentences: batch them by length and return the translations in the original order."""

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..data.batching import batches_by_length, pad
from ..data.tags import prefix_ids
from .precision import resolve_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Hypothesis(NamedTuple):
    """A translation and its score: the log-probability in nats divided by the length penalty."""

    text: str
    score: float


def translate_ids(
    model: Any,
    sources: Sequence[Sequence[int]],
    max_tokens: int = 2048,
    progress: Callable[[int], Any] | None = None,
    **generate_kwargs: Any,
) -> list[list[int]]:
    """Return the generated token ids, special tokens included, of each source, in the order of `sources`.

    Translations do not depend on how sentences are batched: padding is masked, and each sentence has its own length
    limit.

    Args:
        sources: the token ids of each sentence, ending with `</s>`.

    The other arguments are those of `translate`.
    """
    return _in_batches(
        model, sources, max_tokens, progress, lambda inputs: model.generate(**inputs, **generate_kwargs).tolist()
    )


def translate_ids_nbest(
    model: Any,
    sources: Sequence[Sequence[int]],
    nbest: int = 1,
    max_tokens: int = 2048,
    progress: Callable[[int], Any] | None = None,
    **generate_kwargs: Any,
) -> list[list[tuple[list[int], float]]]:
    """Return the token ids and the score of the `nbest` best hypotheses of each source, best first.

    The arguments are those of `translate_ids` and `translate_nbest`.
    """

    def run(inputs: dict[str, torch.Tensor]) -> list[list[tuple[list[int], float]]]:
        output = model.generate(**inputs, **generate_kwargs, num_return_sequences=nbest, output_sequence_scores=True)
        pairs = list(zip(output.sequences.tolist(), output.sequences_scores.tolist(), strict=True))
        return [pairs[start : start + nbest] for start in range(0, len(pairs), nbest)]

    return _in_batches(model, sources, max_tokens, progress, run)


@torch.inference_mode()
def _in_batches(
    model: Any,
    sources: Sequence[Sequence[int]],
    max_tokens: int,
    progress: Callable[[int], Any] | None,
    run: Callable[[dict[str, torch.Tensor]], Sequence[Any]],
) -> list[Any]:
    """Return what `run` returns for each source of a batch, in the order of `sources`."""
    results: list[Any] = [None] * len(sources)
    if not sources:
        return results
    was_training = model.training
    model.eval()
    lengths = [len(source) for source in sources]
    batches = batches_by_length(lengths, lengths, max_tokens)
    for batch in reversed(batches):  # longest first, so that running out of memory fails immediately
        inputs = {
            "input_ids": pad([sources[i] for i in batch], model.config.pad_token_id).to(model.device),
            "attention_mask": pad([[1] * lengths[i] for i in batch], 0).to(model.device),
        }
        for i, result in zip(batch, run(inputs), strict=True):
            results[i] = result
        if progress is not None:
            progress(len(batch))
    model.train(was_training)
    return results


def translate(
    model: Any,
    tokenizer: "PreTrainedTokenizerBase",
    sentences: Sequence[str],
    max_tokens: int = 2048,
    progress: Callable[[int], Any] | None = None,
    *,
    dtype: str | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    tag: str | None = None,
    **generate_kwargs: Any,
) -> list[str]:
    """Return one translation per sentence, in the same order; a blank sentence is translated to an empty string.

    Args:
        model: the model, an `Ensemble`, or an export loaded with `CTranslate2Model` or `OnnxModel`.
        tokenizer: the tokenizer saved with the model.
        sentences: the source sentences.
        max_tokens: the maximum number of source tokens per batch, padding included; a longer sentence forms a batch
            of its own.
        progress: called after each batch with the number of sentences in it.
        dtype: number format of a copy of the model that translates, one of `precision.DTYPES`; by default the model
            itself translates. For models and ensembles in torch.
        source_lang, target_lang: the direction, for a model that has several.
        tag: a tag with which some of the training sources started, such as "<bt>".
        generate_kwargs: passed to `model.generate`; defaults come from the generation config of the model.

    Raises:
        ValueError: for an unknown dtype, or a language or tag that the model does not have.
    """
    if dtype is not None:
        model = copy.deepcopy(model).to(resolve_dtype(dtype, model.device))
    prefix = prefix_ids(model.config, tokenizer, source_lang, target_lang, tag)
    places, sources = _source_ids(tokenizer, sentences, prefix, progress)
    translations = [""] * len(sentences)
    if sources:
        outputs = translate_ids(model, sources, max_tokens, progress, **generate_kwargs)
        for i, text in zip(places, tokenizer.batch_decode(outputs, skip_special_tokens=True), strict=True):
            translations[i] = text
    return translations


def _source_ids(
    tokenizer: "PreTrainedTokenizerBase",
    sentences: Sequence[str],
    prefix: Sequence[int],
    progress: Callable[[int], Any] | None,
) -> tuple[list[int], list[list[int]]]:
    """Return the indices and the token ids of the sentences that are not blank."""
    places = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    if progress is not None and len(places) < len(sentences):
        progress(len(sentences) - len(places))
    texts = [sentences[i] for i in places]
    return places, [[*prefix, *ids] for ids in tokenizer(texts)["input_ids"]] if texts else []


def translate_nbest(
    model: Any,
    tokenizer: "PreTrainedTokenizerBase",
    sentences: Sequence[str],
    nbest: int = 1,
    max_tokens: int = 2048,
    progress: Callable[[int], Any] | None = None,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    tag: str | None = None,
    **generate_kwargs: Any,
) -> list[list[Hypothesis]]:
    """Return the `nbest` best hypotheses of each sentence, best first; of a blank sentence, empty ones of score 0.

    Args:
        nbest: number of hypotheses, at most the beam size unless tokens are sampled.

    The other arguments are those of `translate`, except `dtype`.

    Raises:
        ValueError: as `translate`, and if `nbest` exceeds the beam size.
    """
    prefix = prefix_ids(model.config, tokenizer, source_lang, target_lang, tag)
    places, sources = _source_ids(tokenizer, sentences, prefix, progress)
    hypotheses = [[Hypothesis("", 0.0)] * nbest for _ in sentences]
    outputs = translate_ids_nbest(model, sources, nbest, max_tokens, progress, **generate_kwargs)
    for i, found in zip(places, outputs, strict=True):
        texts = tokenizer.batch_decode([ids for ids, _ in found], skip_special_tokens=True)
        hypotheses[i] = [Hypothesis(text, score) for text, (_, score) in zip(texts, found, strict=True)]
    return hypotheses
