"""Align the words of translations with those of their sources, and put tags and placeholders back among them.

A word of a translation comes from the source word to which the decoder attends most when it predicts the tokens of
the word, divided by the attention which that source word gets from the whole translation. The attention is the mean of
all heads of the upper half of the layers, which finds more of the right words than any single layer. At the next step,
where the decoder reads the token, it attends to other words.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter
from unicodedata import category

import torch
from transformers import PreTrainedTokenizerBase

from ..data.batching import Seq2SeqCollator, batches_by_length
from .runtime import Runtime

# A number, a word, a punctuation mark, or a character of a script without spaces
_PUNCTUATION = r"!-/:-@\[-`{-~\xa1-\xbf\u2010-\u206f\u3000-\u303f"
_WORD = re.compile(rf"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|\d+|[^\s\d{_PUNCTUATION}]+|\S")

Links = Sequence[Sequence[int]]  # for each word of a translation, the indices of the source words that it translates
Span = tuple[int, int]  # start and end
_INPUTS = ("input_ids", "attention_mask", "decoder_input_ids")
_SMOOTHING = 0.1  # keeps source words that get little attention in total from winning
_SYMBOLS = "#%&*/@§‰"  # punctuation to Unicode, but these stand for words
MAX_DEPTH = 50  # of elements that stay in one piece; deeper tags are placed one by one


@dataclass(frozen=True)
class Mark:
    """Something in a text that is not translated: a tag, a comment, or a placeholder with the space beside it.

    Args:
        place: the number of characters before it in the text, which does not contain it.
        source: what to write.
        opens, closes: the name of the element that it starts or ends, if it is a tag around text.
        ends_word: whether it stands right behind a word.
    """

    place: int
    source: str
    opens: str = ""
    closes: str = ""
    ends_word: bool = False

    @property
    def is_tag(self) -> bool:
        return bool(self.opens or self.closes)

    @property
    def follows(self) -> bool:
        """Return whether it belongs to the word before it, not to the next one."""
        return bool(self.closes) or self.ends_word or self.source[:1].isspace()


class Nesting:
    """The elements around a place in a text, by which a closing tag finds its opening one."""

    def __init__(self) -> None:
        self._open: list[tuple[str, int]] = []
        self._counts: Counter[str] = Counter()

    @property
    def depth(self) -> int:
        """Return the number of elements around the place."""
        return len(self._open)

    def open(self, name: str, number: int) -> None:
        """Enter an element, whose opening tag has a number."""
        self._open.append((name, number))
        self._counts[name] += 1

    def close(self, name: str) -> int | None:
        """Leave the innermost element of a name, and those in it; return the number of its tag, or None."""
        if not self._counts[name]:
            return None
        while True:
            other, number = self._open.pop()
            self._counts[other] -= 1
            if other == name:
                return number


def words(text: str) -> list[Span]:
    """Return the place of each word of a text."""
    return [match.span() for match in _WORD.finditer(text)]


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
    found: list[Links | None] = [None] * len(pairs)
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
            found[i] = _link(to_words[: len(weights)].T @ weights @ from_words, *pairs[i])
    return found


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
    linked = {source_word for each in links for source_word in each}
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
) -> list[tuple[list[int], Sequence[Span]]]:
    """Return the ids of the tokens of each text, and the place of each one in the text, empty for special tokens.

    Args:
        side: "text" for sources, "text_target" for translations, as the tokenizer calls them.
    """
    encoded = tokenizer(**{side: texts}, return_offsets_mapping=tokenizer.is_fast, verbose=False)
    rows: list[list[int]] = encoded["input_ids"]
    if tokenizer.is_fast:
        return list(zip(rows, encoded["offset_mapping"], strict=True))
    return [(ids, _places(tokenizer, text, ids)) for text, ids in zip(texts, rows, strict=True)]


def _places(tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int]) -> list[Span]:
    """Return the places of the tokens of SentencePiece: the characters of the text, with "▁" for a space."""
    characters = [i for i, character in enumerate(text) if not character.isspace()]
    tokens = [token.replace("▁", "") for token in tokenizer.convert_ids_to_tokens(ids, skip_special_tokens=True)]
    own = [characters[end - len(token) : end] for token, end in zip(tokens, accumulate(map(len, tokens)), strict=True)]
    places = [(each[0], each[-1] + 1) if each else (0, 0) for each in own]
    return places + [(0, 0)] * (len(ids) - len(places))


def _overlaps(words: Sequence[Span], tokens: Sequence[Span]) -> torch.Tensor:
    """Return 1.0 where a token has characters of a word, else 0.0. *Shape:* (tokens, words)."""
    word = torch.tensor(words).view(-1, 2).T
    token = torch.tensor(tokens).view(-1, 1, 2)
    return ((token[..., 0] < word[1]) & (token[..., 1] > word[0])).float()


def splice(text: str, marks: Iterable[Mark], escape: Callable[[str], str]) -> str:
    """Return an escaped text with marks at their places; a place before that of the last mark is moved to it."""
    written = []
    last = 0
    for mark in marks:
        place = max(mark.place, last)
        written += [escape(text[last:place]), mark.source]
        last = place
    return "".join([*written, escape(text[last:])])


def insert(
    translation: str, source: str, marks: Sequence[Mark], links: Links | None, escape: Callable[[str], str]
) -> str:
    """Return an escaped translation with the marks of its source, each once; elements stay nested.

    Args:
        links: the alignment; by default, words are taken to be in the same order.
    """
    source_words = words(source)
    target_words = words(translation)
    if links is None:
        links = [[i * len(source_words) // len(target_words)] for i in range(len(target_words))]
    translations = _invert(links)
    places = _words_before(marks, source_words)
    closing = _closing(marks)

    def find(first: int, last: int, among: Span, around: Span) -> Span:
        """Return the words of the element between two marks, or none at the place of a single mark.

        Args:
            among: the words of the element around it.
            around: the places in the source where that starts and ends.
        """
        start = places[first]
        end = places[last]
        linked = {i for j in range(start, end) for i in translations[j] if among[0] <= i < among[1]}
        if linked:
            low = min(linked)
            run = _best_run([1 if i in linked else -bool(links[i]) for i in range(low, max(linked) + 1)])
            return low + run[0], low + run[1]
        if start in around:
            place = among[around.index(start)]
        else:
            follows = marks[first].follows
            neighbours = reversed(range(start)) if follows else range(start, len(source_words))
            place = _place_beside(neighbours, follows, translations, among)
        return place, place

    def walk(first: int, stop: int, among: Span, around: Span) -> Iterator[Mark]:
        """Yield the marks from `first` to before `stop`, at their places in the translation."""
        elements = []
        while first < stop:
            last = closing.get(first, first)
            elements.append((*find(first, last, among, around), first, last))
            first = last + 1
        low, high = among
        for start, end, first, last in sorted(elements, key=itemgetter(0)):
            # Neighbours that share words in the alignment are kept apart: tags must not cross
            start = max(start, low)
            low = end = max(end, start)
            follows = start == end and (start == high or marks[first].follows)
            yield replace(marks[first], place=ends[start] if follows else starts[start])
            if last > first:
                yield from walk(first + 1, last, (start, end), (places[first], places[last]))
                yield replace(marks[last], place=ends[end])

    # By the number of words before it, where a word starts and where the one before it ends
    starts = [start for start, _ in target_words]
    ends = [0, *(end for _, end in target_words)]
    return splice(translation, walk(0, len(marks), (0, len(starts)), (0, len(source_words))), escape)


def _invert(links: Links) -> defaultdict[int, list[int]]:
    """Return the words that come from each source word, none for those that are not in it."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for i, sources in enumerate(links):
        for source in sources:
            found[source].append(i)
    return found


def _place_beside(
    neighbours: Iterable[int], follows: bool, translations: defaultdict[int, list[int]], among: Span
) -> int:
    """Return the place of a mark without words: after, or before, the translation of the nearest source word."""
    if among[0] < among[1]:
        for j in neighbours:
            found = [i for i in translations[j] if among[0] <= i < among[1]]
            if found:
                return max(found) + 1 if follows else min(found)
    return among[1]


def _words_before(marks: Sequence[Mark], words: Sequence[Span]) -> list[int]:
    """Return the number of words before each mark; a mark inside a word moves to the border of the word."""
    starts = [start for start, _ in words]
    ends = [end for _, end in words]
    return [bisect_left(starts, mark.place) if mark.follows else bisect_right(ends, mark.place) for mark in marks]


def _closing(marks: Sequence[Mark]) -> dict[int, int]:
    """Return the closing mark of each opening one that has one. Of tags that cross, the inner one has none."""
    found = {}
    nesting = Nesting()
    for i, mark in enumerate(marks):
        if mark.opens:
            nesting.open(mark.opens, i)
        elif mark.closes:
            opening = nesting.close(mark.closes)
            if opening is not None and nesting.depth < MAX_DEPTH:
                found[opening] = i
    return found


def _best_run(values: Sequence[int]) -> Span:
    """Return the run with the largest sum: a stray link should not widen an element.

    Args:
        values: 1 for a word that comes from the element, -1 for one from elsewhere, 0 for one from nothing.
    """
    best = 0
    found = (0, 0)
    start = 0
    total = 0
    for i, value in enumerate(values):
        if total <= 0:
            start = i
            total = 0
        total += value
        if total > best:
            best = total
            found = (start, i + 1)
    return found
