"""Cut a text into its sentences and what is not translated, with sentencex, and join their translations."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

import sentencex

from .alignment import Links, Mark, insert, splice

# White space at the start, everything up to the last other character, white space at the end
_PARTS = re.compile(r"^\s+|\S(?:.*\S)?|\s+$", re.DOTALL)

# What a line may start with: bullets, list numbers, rules and borders of tables, emoji
_MARKER = re.compile(
    r"\s*(?:(?:[^\w\s\"'(\[{`\xa1\xab\xbb\xbf\u2018-\u201f\u2039\u203a]+|\d+[.)]|[A-Za-z]\))(?:\s+|$))*"
)

_EMOJI = r"\u2190-\u21ff\u2600-\u27bf\U0001f000-\U0001faff"
# What stays as it is inside a sentence. Lookbehinds and limits keep the time linear in the length of a text.
PLACEHOLDER = re.compile(
    rf"""
    (?<!`)``[^\n]+?`` | `[^`\n]+`  # inline code
    | \{{\{{[^{{}}\n]*\}}\}} | \$?\{{[^\s{{}}]*\}}  # templates, and formats of Python and JavaScript
    | (?<![\w%])%(?:\(\w+\)|\d+\$)?[-+0\#]?\d*(?:\.\d+)?[sdiufgx](?!\w)  # formats of C
    | \b(?:[A-Za-z][A-Za-z0-9+.-]{{0,20}}://|www\.|mailto:)[^\s<>"`]*[^\s<>"`.,;:!?)\]}}'\xbb\u2019\u201d]  # addresses
    | (?<![\w.+-])[\w.+-]*@\w+(?:[.-]\w+)*(?:@\w+(?:[.-]\w+)*)?  # e-mail, and names in social networks
    | (?<![\w/.~\\])(?:~|\.{{1,2}})?/\w(?:[\w./@+-]*\w)? | (?<![\w/\\-])(?:[\w-]+/)+[\w-]+\.\w+  # files
    | \b[A-Za-z]:\\[^\s"<>|]*\w
    | [\u200b\u2060\ufeff] | [{_EMOJI}][\ufe0f\u200d{_EMOJI}]*
    """,
    re.VERBOSE,
)


class _Piece(NamedTuple):
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

    Attributes:
        pieces: the sentences, and what lies between them.
    """

    def __init__(self, text: str, marks: Sequence[Mark], language: str | None, escape: Callable[[str], str] = str):
        self._escape = escape
        text, marks = _take_out_placeholders(text, marks, escape)
        # sentencex uses general rules, those of English, for languages that it does not know
        parts = list(_cut(text, language or "en"))
        self.pieces = []
        # Between two pieces, a mark belongs to the first one if it follows its word, or else to the second; in order
        places = list(accumulate((mark.place - mark.follows / 2 for mark in marks), max))
        start = 0
        low = -1.0
        for i, (part, is_sentence) in enumerate(parts, 1):
            end = start + len(part)
            high = end if i < len(parts) else end + 1
            own = marks[bisect_left(places, low) : bisect_left(places, high)]
            self.pieces.append(_Piece(part, is_sentence, [replace(mark, place=mark.place - start) for mark in own]))
            start = end
            low = high

    @property
    def has_sentences(self) -> bool:
        return any(piece.is_sentence for piece in self.pieces)

    def join(self, translations: Iterator[tuple[str | None, Links | None]]) -> str:
        """Return the text with the next translations in place of its sentences; None keeps a sentence."""
        written = []
        for text, is_sentence, marks in self.pieces:
            translation, links = next(translations) if is_sentence else (None, None)
            if translation is None:
                written.append(splice(text, marks, self._escape))
            else:
                written.append(insert(translation, text, marks, links, self._escape))
        return "".join(written)


class Document:
    """A text cut into sentences and what is not translated. A line break ends a sentence.

    Args:
        text: the text.
        language: its language, an ISO 639-1 code; general rules apply to an unknown one.

    Attributes:
        sentences: the sentences, without their placeholders.
        aligned: the indices of those whose `join` needs an alignment, because something stands between their words.
    """

    def __init__(self, text: str, language: str | None):
        # sentencex alone would take a title and the sentence on the next line for one sentence
        self._set([Passage(line, [], language) for line in text.splitlines(keepends=True)])

    def _set(self, passages: list[Passage]) -> None:
        self._passages = passages
        pieces = [piece for passage in passages for piece in passage.pieces if piece.is_sentence]
        self.sentences = [" ".join(piece.text.split()) for piece in pieces]
        self.aligned = [
            i for i, (text, _, marks) in enumerate(pieces) if any(0 < mark.place < len(text) for mark in marks)
        ]

    def join(self, translations: Sequence[str | None], links: Mapping[int, Links | None] | None = None) -> str:
        """Return the text with a translation in place of each sentence, and placeholders in the translations.

        Args:
            translations: those of the sentences; None keeps a sentence.
            links: the alignment of each sentence in `aligned`; without it, words are taken to be in the same order.
        """
        return "".join(self._join(translations, links or {}))

    def _join(self, translations: Sequence[str | None], links: Mapping[int, Links | None]) -> list[str]:
        assert len(translations) == len(self.sentences)
        found = iter([(each, links.get(i)) for i, each in enumerate(translations)])
        return [passage.join(found) for passage in self._passages]


class DocumentFormat(NamedTuple):
    """How a kind of file is translated.

    Args:
        texts_of: returns the texts of a file, given its content and name, and the largest size of these in bytes.
        with_texts: returns the file with other texts in place of those.
        document: cuts each text into sentences, and joins their translations.
    """

    texts_of: Callable[..., list[str]]
    with_texts: Callable[[bytes, str, Iterable[str]], bytes]
    document: type[Document]


def _cut(line: str, language: str) -> Iterator[tuple[str, bool]]:
    """Yield the sentences of a line and what lies between them, and whether it is a sentence."""
    marker = _MARKER.match(line)
    start = marker.end() if marker else 0
    yield line[:start], False
    rest = line[start:]
    sentences = sentencex.segment(language, rest)
    # sentencex promises that nothing is lost; if it ever is, one long sentence is better
    if "".join(sentences) != rest:
        sentences = [rest]
    for sentence in sentences:
        yield from ((part, any(map(str.isalpha, part))) for part in _PARTS.findall(sentence))


def _take_out_placeholders(text: str, marks: Sequence[Mark], escape: Callable[[str], str]) -> tuple[str, list[Mark]]:
    """Return a text without its placeholders, which become marks with one of the spaces around them."""
    mark_places = [mark.place for mark in marks]
    tag_places = {mark.place for mark in marks if mark.is_tag}
    items = [(mark.place, mark.place, mark) for mark in marks]
    for match in PLACEHOLDER.finditer(text):
        start, end = match.span()
        # no mark stands inside
        if bisect_right(mark_places, start) == bisect_left(mark_places, end):
            items.append((start, end, Mark(start, escape(match[0]))))

    plain = ""
    found = []
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
        found.append(replace(mark, place=len(plain), source=source, ends_word=ends_word))
        done = max(done, end)
    return plain + text[done:], found


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
