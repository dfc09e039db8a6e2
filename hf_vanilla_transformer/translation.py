"""Translating many sentences: sorted by length into batches, and given back in their order."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .batching import MaxTokensBatchSampler

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@torch.inference_mode()
def translate(
    model: Any,
    tokenizer: "PreTrainedTokenizerBase",
    sentences: Sequence[str],
    max_tokens: int = 2048,
    progress: Callable[[int], Any] | None = None,
    **generate_kwargs: Any,
) -> list[str]:
    """One translation a sentence, in the same order; a blank sentence gives an empty one.

    The company of a batch changes no translation: padding is masked, and each sentence has its own length limit.

    Args:
        max_tokens: source tokens of a batch, padding included; a longer sentence makes a batch of its own.
        progress: called after each batch with the number of sentences it held.
        generate_kwargs: go to `model.generate`; the model's saved generation config holds the defaults.
    """
    translations = [""] * len(sentences)
    filled = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    if progress is not None and len(filled) < len(sentences):
        progress(len(sentences) - len(filled))
    if not filled:
        return translations
    was_training = model.training
    model.eval()
    sources = tokenizer([sentences[i] for i in filled])["input_ids"]
    lengths = [len(source) for source in sources]
    batches = list(MaxTokensBatchSampler(lengths, lengths, max(max_tokens, *lengths), shuffle=False))
    for batch in reversed(batches):  # the longest first, so that what does not fit in memory fails at once
        inputs = tokenizer.pad({"input_ids": [sources[i] for i in batch]}, return_tensors="pt").to(model.device)
        outputs = model.generate(**inputs, **generate_kwargs)
        for i, text in zip(batch, tokenizer.batch_decode(outputs, skip_special_tokens=True), strict=True):
            translations[filled[i]] = text
        if progress is not None:
            progress(len(batch))
    model.train(was_training)
    return translations
