"""Translate many sentences: batch them by length and return the translations in the original order."""

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..data.batching import batches_by_length, pad
from ..data.tags import prefix_ids
from .precision import resolve_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@torch.inference_mode()
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
    translations: list[list[int]] = [[] for _ in sources]
    if not sources:
        return translations
    was_training = model.training
    model.eval()
    lengths = [len(source) for source in sources]
    batches = batches_by_length(lengths, lengths, max_tokens)
    for batch in reversed(batches):  # longest first, so that running out of memory fails immediately
        inputs = {
            "input_ids": pad([sources[i] for i in batch], model.config.pad_token_id).to(model.device),
            "attention_mask": pad([[1] * lengths[i] for i in batch], 0).to(model.device),
        }
        outputs = model.generate(**inputs, **generate_kwargs).tolist()
        for i, output in zip(batch, outputs, strict=True):
            translations[i] = output
        if progress is not None:
            progress(len(batch))
    model.train(was_training)
    return translations


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
    not_blank = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    if progress is not None and len(not_blank) < len(sentences):
        progress(len(sentences) - len(not_blank))
    translations = [""] * len(sentences)
    if not_blank:
        sources = [[*prefix, *ids] for ids in tokenizer([sentences[i] for i in not_blank])["input_ids"]]
        outputs = translate_ids(model, sources, max_tokens, progress, **generate_kwargs)
        for i, text in zip(not_blank, tokenizer.batch_decode(outputs, skip_special_tokens=True), strict=True):
            translations[i] = text
    return translations
