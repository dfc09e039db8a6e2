"""Translating many sentences: sorted by length into batches, and given back in their order."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..data.batching import batches_by_length, pad

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
    """One list of target tokens, special ones included, for each list of source tokens (with `</s>`), in their order.

    The company of a batch changes no translation: padding is masked, and each sentence has its own length limit. Other
    arguments as in `translate`.
    """
    translations: list[list[int]] = [[] for _ in sources]
    if not sources:
        return translations
    was_training = model.training
    model.eval()
    lengths = [len(source) for source in sources]
    batches = batches_by_length(lengths, lengths, max_tokens)
    for batch in reversed(batches):  # the longest first, so that what does not fit in memory fails at once
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
    **generate_kwargs: Any,
) -> list[str]:
    """One translation a sentence, in the same order; a blank sentence gives an empty one.

    Args:
        max_tokens: source tokens of a batch, padding included; a longer sentence makes a batch of its own.
        progress: called after each batch with the number of sentences it held.
        generate_kwargs: go to `model.generate`; the model's saved generation config holds the defaults.
    """
    filled = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    if progress is not None and len(filled) < len(sentences):
        progress(len(sentences) - len(filled))
    translations = [""] * len(sentences)
    if filled:
        sources = tokenizer([sentences[i] for i in filled])["input_ids"]
        outputs = translate_ids(model, sources, max_tokens, progress, **generate_kwargs)
        for i, text in zip(filled, tokenizer.batch_decode(outputs, skip_special_tokens=True), strict=True):
            translations[i] = text
    return translations
