"""Cut a text into its sentences and what is not translated, with sentencex, and join their translations."""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import NamedTuple

import regex
import sentencex

from ..model.text_rules_vanilla_transformer import INVISIBLE, MEANINGLESS, normalise
from .abbreviations import continues
from .placeholders import KINDS, find_placeholders

# A number, a word, a punctuation mark, or a character of a script without spaces
_PUNCTUATION = r"!-/:-@\[-`{-~\xa1-\xbf\u2010-\u206f\u3000-\u303f"
_UNSPACED = r"\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[{_UNSPACED}]|\d+|[^\s\d\u200b{_PUNCTUATION}]+|[^\s\u200b]")

# Words that a sign joins, and numbers with theirs: "don't", "50%", "1,000.5"
_JOINED = re.compile(r"(?<![^\W\d_])[^\W\d_]+(?:['\u2019-][^\W\d_]+)+|(?<!\d)\d+(?:(?:[.,:]\d+)*%|(?:[.,:]\d+)+)")

Links = Sequence[Sequence[int]]  # for each word of a translation, the indices of the source words that it translates
Range = tuple[int, int]  # start and end

# White space at the start, everything up to the last other character, white space at the end
_PARTS = re.compile(rf"^[{MEANINGLESS}]*\s[\s{MEANINGLESS}]*|.*[^\s{MEANINGLESS}]|[\s{MEANINGLESS}]+$", re.DOTALL)

# Characters that sentencex sees at a time: its time grows with their square, such as for unclosed quotes
_WINDOW = 2048

# What a line may start with: bullets, list numbers, boxes to tick, rules and borders of tables, emoji
_MARKER = re.compile(
    r"\s*(?:(?:[^\w\s\"'(\[{`\xa1\xab\xbb\xbf\u2018-\u201f\u2039\u203a]+|\d+[.)]|[A-Za-z]\)|\[[ xX]\])(?:\s+|$))*"
)

# A line break as `str.splitlines` knows it, as HTML writes it, or as catalogues do, but not in a path of Windows; or a
# placeholder with line breaks
_LINE_BREAK = regex.compile(
    r"\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]|<br\s?/?>|\\n(?<!\\\\n|\b[A-Za-z]:\S{0,99}\\n)(?![a-z])"
    rf"|(?P<placeholder>{KINDS['ICU choice']})"
)

# sentencex does not know the full stops of Khmer; the first alternative is its "etc."
_KHMER_SENTENCE = regex.compile(r"(?:\u17d4\u179b\u17d4|[^\u17d4\u17d5]++)*+[\u17d4\u17d5]*[\s\u200b\p{Pe}\p{Pf}\"']*")


def is_unspaced(character: str) -> bool:
    """Return whether a character is of a script that has no spaces between words."""
    return re.match(f"[{_UNSPACED}]", character) is not None


def words(text: str) -> list[Range]:
    """Return the place of each word of a text."""
    return [match.span() for match in _WORD.finditer(text)]


@dataclass(frozen=True)
class Mark:
    """Something in a text that is not translated, such as a placeholder with the space beside it.

    Args:
        place: the number of characters before it in the text, which does not contain it.
        source: what to write.
        ends_word: whether it stands right behind a word.
    """

    place: int
    source: str
    ends_word: bool = False

    @property
    def is_tag(self) -> bool:
        """Return whether it is around text, so that it neither takes a space from it nor becomes one with others."""
        return False

    @property
    def follows(self) -> bool:
        """Return whether it belongs to the word before it, not to the next one."""
        return self.ends_word or self.source[:1].isspace()


def splice(text: str, marks: Iterable[Mark], escape: Callable[[str], str]) -> str:
    """Return an escaped text with marks at their places; a place before that of the last mark is moved to it."""
    written = []
    last = 0
    for mark in marks:
        place = max(mark.place, last)
        written += [escape(text[last:place]), mark.source]
        last = place
    return "".join([*written, escape(text[last:])])


class WordOrder:
    """The words of a sentence and of its translation, and where the marks of the sentence go among the latter.

    A place among words is the number of words before it.

    Args:
        source, translation: the sentence and its translation.
        links: their alignment; without it, words are taken to be in the same order.

    Attributes:
        whole_source, whole: the ranges of all words of either.
        links: the source words of each word of the translation.
        translations: the words of the translation that come from each source word, none for those that are not in it.
    """

    def __init__(self, source: str, translation: str, links: Links | None):
        self._source_words = words(source)
        self._words = words(translation)
        self._joined = [match.span() for match in _JOINED.finditer(translation)]
        self.whole_source = (0, len(self._source_words))
        self.whole = (0, len(self._words))
        if links is None:
            links = [[i * len(self._source_words) // len(self._words)] for i in range(len(self._words))]
        self.links = links
        self.translations: defaultdict[int, list[int]] = defaultdict(list)
        for i, sources in enumerate(links):
            for source_word in sources:
                self.translations[source_word].append(i)

    def places(self, marks: Sequence[Mark]) -> list[int]:
        """Return the place of each mark among the source words; one inside a word moves to the border of the word."""
        starts = [start for start, _ in self._source_words]
        ends = [end for _, end in self._source_words]
        return [bisect_left(starts, mark.place) if mark.follows else bisect_right(ends, mark.place) for mark in marks]

    def translated_place(self, place: int, follows: bool, around: Range, among: Range) -> int:
        """Return the place of a mark in the translation: beside the translation of its nearest source word.

        Args:
            place: its place among the source words.
            follows: whether it stands after the word, as `Mark.follows`.
            around, among: the range of source words that it must stay in, and that of their translation.
        """
        if place in around:
            return among[around.index(place)]
        neighbours = reversed(range(place)) if follows else range(place, len(self._source_words))
        if among[0] < among[1]:
            for source_word in neighbours:
                inside = [i for i in self.translations[source_word] if among[0] <= i < among[1]]
                if inside:
                    return max(inside) + 1 if follows else min(inside)
        return among[1]

    def words_of(self, start: int, end: int, follows: bool, around: Range, among: Range) -> Range:
        """Return the words of the translation that come from a range of source words, without those from elsewhere.

        If none does, the range is empty, at the place of a mark.

        Args:
            start, end: the range of source words.
            follows, around, among: as for `translated_place`.
        """
        translated = {i for j in range(start, end) for i in self.translations[j] if among[0] <= i < among[1]}
        if not translated:
            place = self.translated_place(start, follows, around, among)
            return place, place
        low = min(translated)
        # a word from elsewhere counts against the range, one from nothing does not
        run = _best_run([1 if i in translated else -bool(self.links[i]) for i in range(low, max(translated) + 1)])
        return low + run[0], low + run[1]

    def move(self, mark: Mark, place: int, follows: bool) -> Mark:
        """Return a mark at a place in the translation: behind the word before it if it follows, or before the next.

        Only a tag may stand inside what a sign joins.
        """
        behind_last = self._words[place - 1][1] if place else 0
        offset = behind_last if follows else self._words[place][0]
        last = bisect_left(self._joined, (offset,)) - 1
        if last >= 0 and not mark.is_tag and offset < self._joined[last][1]:
            offset = self._joined[last][1 if follows else 0]
        return replace(mark, place=offset)

    def move_all(self, marks: Sequence[Mark]) -> Iterator[Mark]:
        """Yield all marks at their places in the translation, in order."""
        moved = [
            (self.translated_place(place, mark.follows, self.whole_source, self.whole), mark)
            for place, mark in zip(self.places(marks), marks, strict=True)
        ]
        for place, mark in sorted(moved, key=itemgetter(0)):
            yield self.move(mark, place, mark.follows or place == self.whole[1])


def _best_run(values: Sequence[int]) -> Range:
    """Return the run with the largest sum: a stray link should not widen an element.

    Args:
        values: 1 for a word that comes from the element, -1 for one from elsewhere, 0 for one from nothing.
    """
    best = 0
    best_run = (0, 0)
    start = 0
    total = 0
    for i, value in enumerate(values):
        if total <= 0:
            start = i
            total = 0
        total += value
        if total > best:
            best = total
            best_run = (start, i + 1)
    return best_run


class _Segment(NamedTuple):
    """A sentence or what lies between two, with the marks in it, counted from its start."""

    text: str
    is_sentence: bool
    marks: list[Mark]


class Passage:
    """A line, or another stretch of text with its own sentences.

    Placeholders such as addresses and inline code are not part of its sentences. What has no letter is no sentence.

    Args:
        text: the text.
        marks: what else is in it, such as tags.
        language: its language, as for `Document`.
        escape: applied to all text in the result.
        placeholders: as for `Document`.

    Attributes:
        segments: the sentences, and what lies between them.
    """

    def __init__(
        self,
        text: str,
        marks: Sequence[Mark],
        language: str | None,
        escape: Callable[[str], str] = str,
        placeholders: str | None = None,
    ):
        self._escape = escape
        text, marks = _take_out_placeholders(text, marks, escape, placeholders)
        # sentencex uses general rules, those of English, for languages that it does not know
        parts = list(_cut(text, language or "en"))
        self.segments = []
        # Between two segments, a mark belongs to the first one if it follows its word, or else to the second; in order
        places = list(accumulate((mark.place - mark.follows / 2 for mark in marks), max))
        start = 0
        low = -1.0
        for i, (part, is_sentence) in enumerate(parts, 1):
            end = start + len(part)
            high = end if i < len(parts) else end + 1
            own = marks[bisect_left(places, low) : bisect_left(places, high)]
            self.segments.append(
                _Segment(part, is_sentence, [replace(mark, place=mark.place - start) for mark in own])
            )
            start = end
            low = high

    @property
    def has_sentences(self) -> bool:
        return any(segment.is_sentence for segment in self.segments)

    def join(self, translations: Iterator[tuple[str | None, Links | None]]) -> str:
        """Return the text with the next translations in place of its sentences; None keeps a sentence."""
        written = []
        for text, is_sentence, marks in self.segments:
            translation, links = next(translations) if is_sentence else (None, None)
            if translation is None:
                written.append(splice(text, marks, self._escape))
            else:
                text, marks = _without_invisible(text, marks)
                moved = self._move(marks, WordOrder(text, translation, links))
                written.append(splice(translation, moved, self._escape))
        return "".join(written)

    def _move(self, marks: Sequence[Mark], order: WordOrder) -> Iterator[Mark]:
        """Yield the marks of a sentence at their places in its translation; subclasses know other kinds of marks."""
        return order.move_all(marks)


class Document:
    """A text cut into sentences and what is not translated. A line break ends a sentence.

    Args:
        text: the text.
        language: its language, an ISO 639-1 code; general rules apply to an unknown one.
        target: that of its translation, for texts that declare theirs.
        placeholders: a regular expression for more placeholders, as for `placeholder_pattern`.

    Attributes:
        sentences: the sentences, without their placeholders.
        aligned: the indices of those whose `join` needs an alignment, because something stands between their words.
    """

    def __init__(self, text: str, language: str | None, target: str | None = None, placeholders: str | None = None):
        # sentencex alone would take a title and the sentence on the next line for one sentence
        breaks = (match.end() for match in _LINE_BREAK.finditer(text) if not match["placeholder"])
        places = [0, *breaks, len(text)]
        lines = [text[start:end] for start, end in pairwise(places)]
        self._set([Passage(line, [], language, placeholders=placeholders) for line in lines])

    def _set(self, passages: list[Passage]) -> None:
        self._passages = passages
        segments = [segment for passage in passages for segment in passage.segments if segment.is_sentence]
        self.sentences = [normalise(segment.text) for segment in segments]
        self.aligned = [
            i for i, (text, _, marks) in enumerate(segments) if any(0 < mark.place < len(text) for mark in marks)
        ]

    def join(self, translations: Sequence[str | None], links: Mapping[int, Links | None] | None = None) -> str:
        """Return the text with a translation in place of each sentence, and placeholders in the translations.

        Args:
            translations: those of the sentences; None keeps a sentence.
            links: the alignment of each sentence in `aligned`; without it, words are taken to be in the same order.
        """
        assert len(translations) == len(self.sentences)
        links = links or {}
        remaining = iter([(translation, links.get(i)) for i, translation in enumerate(translations)])
        return self._assemble([passage.join(remaining) for passage in self._passages])

    def _assemble(self, passages: list[str]) -> str:
        """Return the text, given that of its passages."""
        return "".join(passages)

    def pairs(self, hypotheses: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
        """Return what to align before `join_hypotheses`: each hypothesis that needs it, behind its sentence."""
        return [(self.sentences[i], hypothesis) for i in self.aligned for hypothesis in hypotheses[i]]

    def join_hypotheses(
        self, hypotheses: Sequence[Sequence[str]], links: Iterator[Links | None], count: int
    ) -> list[str]:
        """Return `count` translations of the text, the best first, each joined from hypotheses of equal rank.

        The best text of all is that of the best sentences. Searching for the next best combinations would be another
        search.

        Args:
            hypotheses: those of each sentence, best first, of which the last one stands in for lower ranks; without
                any, a sentence stays as it is.
            links: the next ones are the alignments of `pairs`.
        """
        aligned = {i: [next(links) for _ in hypotheses[i]] for i in self.aligned}
        texts = []
        for rank in range(count):
            chosen = [ranked[min(rank, len(ranked) - 1)] if ranked else None for ranked in hypotheses]
            chosen_links = {i: ranked[min(rank, len(ranked) - 1)] for i, ranked in aligned.items() if ranked}
            texts.append(self.join(chosen, chosen_links))
        return texts


class DocumentFormat(NamedTuple):
    """Take the texts out of one kind of file, and put their translations in.

    Args:
        texts_of: returns the texts of a file, given its content and name, and the largest size of these in bytes.
        with_texts: returns the file with other texts in place of those, and their language, if it is given, declared.
        document: cuts each text into sentences, and joins their translations.
    """

    texts_of: Callable[..., list[str]]
    with_texts: Callable[..., bytes]
    document: type[Document]


def _without_invisible(text: str, marks: Sequence[Mark]) -> tuple[str, list[Mark]]:
    """Return a text as the model reads it, but for its white space, and its marks at their places in it."""
    removed = [match.start() for match in INVISIBLE.finditer(text)]
    moved = [replace(mark, place=mark.place - bisect_left(removed, mark.place)) for mark in marks]
    return INVISIBLE.sub("", text), moved


def _cut(line: str, language: str) -> Iterator[tuple[str, bool]]:
    """Yield the sentences of a line and what lies between them, and whether it is a sentence."""
    marker = _MARKER.match(line)
    start = marker.end() if marker else 0
    yield line[:start], False
    rest = line[start:]
    # sentencex knows no "pt_BR"
    for sentence in _whole_sentences(rest, re.split("[-_]", language)[0]):
        for part in _KHMER_SENTENCE.findall(sentence):
            yield from ((piece, any(map(str.isalpha, piece))) for piece in _PARTS.findall(part))


def _whole_sentences(text: str, language: str) -> Iterator[str]:
    """Yield the sentences of a text, also those that sentencex ends behind an abbreviation."""
    parts: list[str] = []
    for part in _sentences(text, language):
        if parts and not continues(parts[0], parts[-1], part, language):
            yield "".join(parts)
            parts = []
        parts.append(part)
    yield "".join(parts)


def _window_end(text: str, start: int) -> int:
    """Return where the window of a text that starts at a place ends: outside of quotes, if they are not too long."""
    end = min(start + _WINDOW, len(text))
    if end < len(text):
        # without one of its straight quotes, sentencex would take all that is between two others for quoted
        for quote in "'\"":
            if text.count(quote, start, end) % 2:
                end = text.rindex(quote, start, end)
    return end if end > start + _WINDOW // 2 else min(start + _WINDOW, len(text))


def _sentences(text: str, language: str) -> Iterator[str]:
    """Yield the sentences of a text, of which sentencex sees a window at a time.

    Of each window, the sentences that end in its first half are kept, since what follows it could change the others.
    """
    start = 0
    # of a sentence longer than a window
    beginning = ""
    while start < len(text):
        window = text[start : _window_end(text, start)]
        is_last = start + len(window) == len(text)
        sentences = sentencex.segment(language, window)
        # sentencex promises that nothing is lost; if it ever is, one long sentence is better
        if "".join(sentences) != window:
            sentences = [window]
        ends = list(accumulate(map(len, sentences)))
        count = len(ends) if is_last else max(1, bisect_right(ends, _WINDOW // 2))
        start += ends[count - 1]
        if len(sentences) == 1 and not is_last:
            beginning += window
            continue
        yield beginning + sentences[0]
        yield from sentences[1:count]
        beginning = ""


def _take_out_placeholders(
    text: str, marks: Sequence[Mark], escape: Callable[[str], str], own: str | None
) -> tuple[str, list[Mark]]:
    """Return a text without its placeholders, which become marks with one of the spaces around them."""
    mark_places = [mark.place for mark in marks]
    tag_places = {mark.place for mark in marks if mark.is_tag}
    items = [(mark.place, mark.place, mark) for mark in marks]
    for match in find_placeholders(text, own):
        start, end = match.span()
        # no mark stands inside
        if bisect_right(mark_places, start) == bisect_left(mark_places, end):
            items.append((start, end, Mark(start, escape(match[0]))))

    plain = ""
    placed = []
    # the end of what is in `plain`
    done = 0
    for start, end, mark in _join_neighbours(items):
        source = mark.source
        ends_word = False
        if not mark.is_tag:
            before = text[max(start - 1, 0) : start]
            behind = text[end : end + 1]
            if text[done:start][-1:].isspace() and start not in tag_places and not behind.isalnum():
                start -= 1
                source = text[start] + source
            elif behind.isspace() and end not in tag_places and not before.strip():
                source += behind
                end += 1
            elif before.isalnum() or not behind.strip():
                # as in "item{s}" and "#{number}"
                ends_word = bool(before.strip()) and not behind.isalnum()
        plain += text[done:start]
        placed.append(replace(mark, place=len(plain), source=source, ends_word=ends_word))
        done = max(done, end)
    return plain + text[done:], placed


def _join_neighbours(items: Iterable[tuple[int, int, Mark]]) -> list[tuple[int, int, Mark]]:
    """Return marks with the start and the end of their text, in order; those without text between them become one."""
    joined: list[tuple[int, int, Mark]] = []
    sources: list[list[str]] = []
    for start, end, mark in sorted(items, key=itemgetter(0)):
        if joined and joined[-1][1] == start and not (joined[-1][2].is_tag or mark.is_tag):
            joined[-1] = (joined[-1][0], end, joined[-1][2])
            sources[-1].append(mark.source)
        else:
            joined.append((start, end, mark))
            sources.append([mark.source])
    return [
        (start, end, replace(mark, source="".join(parts)))
        for (start, end, mark), parts in zip(joined, sources, strict=True)
    ]
