"""Align the words of translations with those of their sources.

A word of a translation comes from the source word to which the decoder attends most when it predicts the tokens of
the word, divided by the attention which that source word gets from the whole translation. The attention is the mean of
all heads of the upper half of the layers, which finds more of the right words than any single layer. At the next step,
where the decoder reads the token, it attends to other words.
"""

from collections.abc import Sequence
from itertools import accumulate, chain
from unicodedata import category

import torch
from transformers import PreTrainedTokenizerBase

from ..data.batching import Seq2SeqCollator, batches_by_length
from .runtime import Runtime
from .segments import Links, Range, words

_INPUTS = ("input_ids", "attention_mask", "decoder_input_ids")
_SMOOTHING = 0.1  # keeps source words that get little attention in total from winning
_SYMBOLS = "#%&*/@§‰"  # punctuation to Unicode, but these stand for words


def align(
    model: Runtime,
    tokenizer: PreTrainedTokenizerBase,
    prefix: list[int],
    pairs: Sequence[tuple[str, str]],
    limit: int,
    max_tokens: int,
) -> list[Links | None]:
    """Return the alignment of each pair of a sentence and its translation, None if the runtime has no attention.

    Args:
        model: the model, in evaluation mode.
        prefix: the token ids with which every source starts.
        limit: the number of tokens after which a translation is cut off.
        max_tokens: the maximum number of tokens per batch and side, padding included.
    """
    # MarianMT, for example, can translate, but has no such method
    if not hasattr(model, "attention"):
        return [None] * len(pairs)
    source_tokens = _tokenize(tokenizer, [text for text, _ in pairs], "text")
    target_tokens = _tokenize(tokenizer, [text for _, text in pairs], "text_target")
    source_ids = [[*prefix, *ids] for ids, _ in source_tokens]
    target_ids = [ids[:limit] for ids, _ in target_tokens]
    padding = model.config.pad_token_id
    start = model.config.decoder_start_token_id
    # every model has both
    assert padding is not None
    assert start is not None
    collate = Seq2SeqCollator(padding, start)
    alignments: list[Links | None] = [None] * len(pairs)
    for batch in batches_by_length(list(map(len, source_ids)), list(map(len, target_ids)), max_tokens):
        inputs = collate([{"input_ids": source_ids[i], "labels": target_ids[i]} for i in batch])
        attention = model.attention({name: inputs[name] for name in _INPUTS})
        if attention is None:
            break
        for weights, i in zip(_mean_of_upper_layers(attention), batch, strict=True):
            from_words = _overlaps(words(pairs[i][0]), source_tokens[i][1])
            to_words = _overlaps(words(pairs[i][1]), target_tokens[i][1])
            # Without padding and prefix, at the steps that predict the tokens
            weights = weights[:, len(prefix) :][: len(to_words), : len(from_words)]
            alignments[i] = _link(to_words[: len(weights)].T @ weights @ from_words, *pairs[i])
    return alignments


def _link(attention: torch.Tensor, source: str, translation: str) -> Links:
    """Return the links of the words of a sentence and its translation.

    Args:
        attention: of each word of the translation, to each of the source. *Shape:* (words, source words).
    """
    if not attention.numel():
        return [[] for _ in attention]
    is_word = _are_words(translation)
    from_word = _are_words(source)
    # Words come from words
    scores = attention / (attention.sum(0) + _SMOOTHING) * (is_word[:, None] == from_word)
    best, sources = scores.max(1)
    best_of_source, targets = scores.max(0)
    links: list[list[int]] = []
    for i, source_word in enumerate(sources.tolist()):
        # Punctuation that only the translation needs, such as commas of German, comes from nothing; and words beyond
        # the limit have no attention
        is_linked = best[i] > 0 and (is_word[i] or targets[source_word] == i)
        links.append([source_word] if is_linked else [])
    # Of several words that become one, such as "does lend" and "leiht", only one has been linked so far
    linked = set(chain.from_iterable(links))
    for source_word, target in enumerate(targets.tolist()):
        if from_word[source_word] and source_word not in linked and best_of_source[source_word] > 0:
            links[target].append(source_word)
    return links


def _are_words(text: str) -> torch.Tensor:
    """Return which words of a text are not punctuation. *Shape:* (words,)."""
    starts = [text[start] for start, _ in words(text)]
    return torch.tensor([category(start)[0] != "P" or start in _SYMBOLS for start in starts])


def _mean_of_upper_layers(attention: torch.Tensor) -> torch.Tensor:
    """Return the mean over heads of the upper half of layers. *Shape:* (layers, B, heads, T, S) to (B, T, S)."""
    return torch.stack([layer.mean(1) for layer in attention[len(attention) // 2 :]]).mean(0)


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], side: str
) -> list[tuple[list[int], Sequence[Range]]]:
    """Return the ids of the tokens of each text, and the place of each one in the text, empty for special tokens.

    Args:
        side: "text" for sources, "text_target" for translations, as the tokenizer calls them.
    """
    encoded = tokenizer(**{side: texts}, return_offsets_mapping=tokenizer.is_fast, verbose=False)
    rows: list[list[int]] = encoded["input_ids"]
    if tokenizer.is_fast:
        return list(zip(rows, encoded["offset_mapping"], strict=True))
    return [(ids, _places(tokenizer, text, ids)) for text, ids in zip(texts, rows, strict=True)]


def _places(tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int]) -> list[Range]:
    """Return the places of the tokens of SentencePiece: the characters of the text, with "▁" for a space."""
    characters = [i for i, character in enumerate(text) if not character.isspace()]
    tokens = [token.replace("▁", "") for token in tokenizer.convert_ids_to_tokens(ids, skip_special_tokens=True)]
    own = [characters[end - len(token) : end] for token, end in zip(tokens, accumulate(map(len, tokens)), strict=True)]
    places = [(characters[0], characters[-1] + 1) if characters else (0, 0) for characters in own]
    return places + [(0, 0)] * (len(ids) - len(places))


def _overlaps(words: Sequence[Range], tokens: Sequence[Range]) -> torch.Tensor:
    """Return 1.0 where a token has characters of a word, else 0.0. *Shape:* (tokens, words)."""
    word = torch.tensor(words).view(-1, 2).T
    token = torch.tensor(tokens).view(-1, 1, 2)
    return ((token[..., 0] < word[1]) & (token[..., 1] > word[0])).float()
