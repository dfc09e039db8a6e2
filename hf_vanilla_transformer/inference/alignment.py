"""Align the words of translations with those of their sources, and put tags and placeholders back among them.

A word of a translation comes from the source word to which the decoder attends most in `_LAYER`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.batching import batches_by_length, pad

# A number, a word, a punctuation mark, or a character of a script without spaces
_PUNCTUATION = r"!-/:-@\[-`{-~\xa1-\xbf\u2010-\u206f\u3000-\u303f"
_WORD = re.compile(rf"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|\d+|[^\s\d{_PUNCTUATION}]+|\S")

Links = Sequence[int]  # for each word of a translation, the index of the source word that it translates
Span = tuple[int, int]  # start and end
_LAYER = -2  # of the decoder
_SHIFT = 1
_MAX_DEPTH = 50  # of elements whose alignment counts; deeper tags are placed one by one


@dataclass(frozen=True)
class Mark:
    """Something in a text that is not translated: a tag, a comment, or a placeholder with the space beside it.

    Args:
        place: the number of characters before it in the text, which does not contain it.
        source: what to write.
        opens, closes: the name of the element that it starts or ends, if it is a tag around text.
    """

    place: int
    source: str
    opens: str = ""
    closes: str = ""

    @property
    def is_tag(self) -> bool:
        return bool(self.opens or self.closes)

    @property
    def follows(self) -> bool:
        """Return whether it belongs to the word before it, not to the next one."""
        return bool(self.closes) or self.source[:1].isspace()


def words(text: str) -> list[Span]:
    """Return the place of each word of a text."""
    return [match.span() for match in _WORD.finditer(text)]


class _Tokens(NamedTuple):
    """The token ids of a text, and the place of each one in the text, empty for those that are not from there."""

    ids: list[int]
    places: list[Span]


def align(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prefix: list[int],
    sources: Sequence[str],
    translations: Sequence[str],
    max_tokens: int,
) -> list[Links]:
    """Return the alignment of each sentence with its translation.

    Args:
        model: the model, in evaluation mode.
        prefix: the token ids with which every source starts.
        max_tokens: the maximum number of tokens per batch and side, padding included.
    """
    source = [_tokenize(tokenizer, text, "text", prefix) for text in sources]
    target = [_tokenize(tokenizer, text, "text_target", []) for text in translations]
    found: list[Links] = [()] * len(source)
    implementation = model.config._attn_implementation
    # The only implementation that returns its weights
    model.set_attn_implementation("eager")
    lengths = [[len(tokens.ids) for tokens in side] for side in (source, target)]
    for batch in batches_by_length(*lengths, max_tokens):
        attention = _cross_attention(model, [source[i].ids for i in batch], [target[i].ids for i in batch])
        for weights, i in zip(attention, batch, strict=True):
            # Each pair without its padding
            weights = weights[: len(target[i].ids), : len(source[i].ids)]
            from_words = _overlaps(words(sources[i]), source[i].places)
            to_words = _overlaps(words(translations[i]), target[i].places)
            found[i] = (to_words.T @ weights @ from_words).argmax(1).tolist()
    model.set_attn_implementation(implementation)
    return found


@torch.inference_mode()
def _cross_attention(
    model: PreTrainedModel, sources: Sequence[list[int]], targets: Sequence[list[int]]
) -> torch.Tensor:
    """Return the mean attention of the heads of `_LAYER`, when each target token has been read. *Shape:* (B, T, S)."""
    start = model.config.decoder_start_token_id
    pad_token_id = model.config.pad_token_id
    assert isinstance(pad_token_id, int)  # every model has one
    outputs = model(
        input_ids=pad(sources, pad_token_id).to(model.device),
        attention_mask=pad([[1] * len(source) for source in sources], 0).to(model.device),
        decoder_input_ids=pad([[start, *target] for target in targets], pad_token_id).to(model.device),
        output_attentions=True,
    )
    return outputs.cross_attentions[_LAYER].float().mean(1)[:, _SHIFT:].cpu()


def _tokenize(tokenizer: PreTrainedTokenizerBase, text: str, side: str, prefix: list[int]) -> _Tokens:
    """Return the tokens of a text.

    Args:
        side: "text" for a source, "text_target" for a translation, as the tokenizer calls them.
        prefix: token ids with which it starts.
    """
    encoded = tokenizer(**{side: text}, return_offsets_mapping=tokenizer.is_fast, verbose=False)
    ids: list[int] = encoded["input_ids"]
    if tokenizer.is_fast:
        places = encoded["offset_mapping"]
    else:
        # SentencePiece: the tokens are the characters of the text, with "▁" for a space
        characters = [i for i, character in enumerate(text) if not character.isspace()]
        tokens = tokenizer.convert_ids_to_tokens(ids, skip_special_tokens=True)
        sizes = [len(token.replace("▁", "")) for token in tokens]
        owned = [characters[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
        places = [(own[0], own[-1] + 1) if own else (0, 0) for own in owned]
        places += [(0, 0)] * (len(ids) - len(places))
    return _Tokens([*prefix, *ids], [(0, 0)] * len(prefix) + places)


def _overlaps(words: Sequence[Span], tokens: Sequence[Span]) -> torch.Tensor:
    """Return 1.0 where a token has characters of a word, else 0.0. *Shape:* (tokens, words)."""
    word = torch.tensor(words).view(-1, 2).T
    token = torch.tensor(tokens).view(-1, 1, 2)
    return ((token[..., 0] < word[1]) & (token[..., 1] > word[0])).float()


def splice(text: str, insertions: Iterable[tuple[int, str]], escape: Callable[[str], str]) -> str:
    """Return an escaped text with insertions at places that never decrease, or else at the place of the last one."""
    written = []
    last = 0
    for place, insertion in insertions:
        place = max(place, last)
        written += [escape(text[last:place]), insertion]
        last = place
    return "".join([*written, escape(text[last:])])


def insert(
    translation: str, source: str, marks: Sequence[Mark], links: Links | None, escape: Callable[[str], str]
) -> str:
    """Return an escaped translation with the marks of its source, each once; nested elements stay nested.

    Args:
        links: the alignment; by default, words are taken to be in the same order.
    """
    source_words = words(source)
    target_words = words(translation)
    if links is None:
        links = [i * len(source_words) // len(target_words) for i in range(len(target_words))]
    # A tag inside a word moves to the border of the word
    places = [
        sum(start < mark.place if mark.follows else end <= mark.place for start, end in source_words) for mark in marks
    ]
    placement = _Placement(marks, places, _closing(marks), links, target_words)
    whole = placement.walk((0, len(marks)), (0, len(target_words)), (0, len(source_words)))
    return splice(translation, whole, escape)


def _closing(marks: Sequence[Mark]) -> dict[int, int]:
    """Return the closing mark of each opening one that has one. Of tags that cross, the inner one has none."""
    found = {}
    unclosed: list[int] = []
    for i, mark in enumerate(marks):
        if mark.opens and len(unclosed) < _MAX_DEPTH:
            unclosed.append(i)
        elif mark.closes in [marks[opening].opens for opening in unclosed]:
            while marks[opening := unclosed.pop()].opens != mark.closes:
                pass
            found[opening] = i
    return found


@dataclass(frozen=True)
class _Placement:
    """Where the marks of a sentence go in its translation.

    Args:
        places: for each mark, the number of source words before it.
        closing: for each mark that opens an element, the one that closes it.
        links: the alignment.
        words: the words of the translation.
    """

    marks: Sequence[Mark]
    places: Sequence[int]
    closing: Mapping[int, int]
    links: Links
    words: Sequence[Span]

    def walk(self, among: Span, target: Span, source: Span) -> Iterator[tuple[int, str]]:
        """Yield the marks `among` with their places, inside an element of these words of the target and the source."""
        low, high = target
        for start, end, first, last in sorted(self._elements(among, target, source), key=itemgetter(0)):
            # Neighbours that share words in the alignment are kept apart: tags must not cross
            start = max(start, low)
            low = end = max(end, start)
            is_before_word = start < end or (start < high and not self.marks[first].follows)
            yield self._border(start, is_before_word), self.marks[first].source
            if last > first:
                yield from self.walk((first + 1, last), (start, end), (self.places[first], self.places[last]))
                yield self._border(end, False), self.marks[last].source

    def _elements(self, among: Span, target: Span, source: Span) -> Iterator[tuple[int, int, int, int]]:
        """Yield each element or single mark: its words in the target, none if it is empty, its first and last mark."""
        first, stop = among
        while first < stop:
            last = self.closing.get(first, first)
            yield *self._target(first, last, target, source), first, last
            first = last + 1

    def _target(self, first: int, last: int, target: Span, source: Span) -> Span:
        start, end = self.places[first], self.places[last]
        low, high = _best_run([start <= self.links[i] < end for i in range(*target)])
        if low < high:
            return target[0] + low, target[0] + high
        if start in source:
            # At the start or end of the source, and so of the target
            place = target[source.index(start)]
        elif self.marks[first].follows:
            place = max(((self.links[i], i + 1) for i in range(*target) if self.links[i] < start), default=target)[1]
        else:
            place = min(((self.links[i], i) for i in range(*target) if self.links[i] >= start), default=target)[1]
        return place, place

    def _border(self, word: int, is_before_word: bool) -> int:
        """Return the place between two words: the start of the word behind it, or the end of the one before."""
        if is_before_word:
            return self.words[word][0]
        return self.words[word - 1][1] if word else 0


def _best_run(inside: Sequence[bool]) -> Span:
    """Return the run with the most true values less its false ones: a stray link should not widen an element."""
    best = 0
    found = (0, 0)
    start = 0
    total = 0
    for i, is_inside in enumerate(inside):
        if total <= 0:
            start = i
            total = 0
        total += 1 if is_inside else -1
        if total > best:
            best = total
            found = (start, i + 1)
    return found
