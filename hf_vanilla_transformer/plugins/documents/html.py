"""Cut HTML into sentences, and put their translations between the same tags.

The tokenizer is Python's own: it tells where each tag is in the source, so that all of them are copied as they were
written. The parsers that build a tree write tags, entities and missing elements in their own way.
"""

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape, parser, unescape
from html.parser import HTMLParser
from io import StringIO

from ...inference.placeholders import is_placeholder
from ...inference.segments import Document, Mark, Passage, splice
from .tagged_text import MAX_DEPTH, Nesting, Tag, TaggedPassage

# Elements inside sentences, of which WebVTT has `c` and `lang`; every other tag ends a sentence
_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|c|cite|code|data|del|dfn|em|font|i|img|ins|kbd|label|lang|mark|math|q|rp|rt|ruby|s|"
    "samp|small|span|strike|strong|sub|sup|time|tt|u|var|wbr"
)
# Elements that are not translated
_KEPT = re.compile("code|kbd|math|pre|samp|script|style|textarea|tt|var")
# Elements without content
_VOID = re.compile("area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr")
# Attributes with a value: those that are translated, and others, whose values may look like one
_ATTRIBUTE = re.compile(r"""(?<![^\s/>"'=])([^\s/>"'=]+)(\s*=\s*)("[^"]*"|'[^']*'|[^\s>"']+)""")
_TRANSLATED = re.compile("alt|title", re.IGNORECASE)
_TAG_START = re.compile("<[A-Za-z/!?]")
_WHOLE_TAG = re.compile(r"""[^"'>]*(?:"[^"]*"[^"'>]*|'[^']*'[^"'>]*)*>""")
# The end of a comment to Python's parser, whose releases differ in it
_COMMENT_END: re.Pattern[str] = parser.commentclose  # type: ignore[attr-defined]
# The start of a character reference that Python refuses to read
_LONG_NUMBER = re.compile("&(?=#[0-9]{4000})")
# A line break is a space in HTML, and a soft hyphen would hide its word from the model
_PLAIN = str.maketrans("\t\n\r\f", "    ", "\xad")


def _unescape(text: str) -> str:
    """Return a text without character references, or "" if one of them has too many digits for Python."""
    try:
        return unescape(text)
    except ValueError:
        return ""


def escape_text(text: str) -> str:
    """Return text as HTML, as browsers write it."""
    return escape(text, quote=False).replace("\xa0", "&nbsp;")


class HtmlDocument(Document):
    """HTML, cut into sentences and what is not translated: tags, comments, code, and elements with translate="no".

    Args:
        text: a page or a part of one, well-formed or not.
        language, placeholders: as for `Document`.
    """

    def __init__(self, text: str, language: str | None, placeholders: str | None = None):
        self._language = language
        self._placeholders = placeholders
        self._passages: list[Passage] = []
        # The HTML with references to passages: numbers between signs that are random, so that no text contains them
        self._template: list[str] = []
        self._sign = f"\ue000{secrets.token_hex(8)}"
        self._start_block()
        tokens = iter(_Tokenizer(text))
        for token in tokens:
            place = self._text.tell()
            if token.kind == "text":
                self._raw.append(token.source)
                self._text.write(token.name.translate(_PLAIN))
            elif token.kind == "start" and token.is_kept:
                self._add(token.name, Mark(place, token.source + _rest(token, tokens)))
            elif token.kind == "start":
                self._add(token.name, Tag(place, self._with_references(token), opens=token.opens))
            elif token.kind == "end":
                self._add(token.name, Tag(place, token.source, closes=token.name))
            else:
                self._add("", Mark(place, token.source))
        self._end_block()
        self._set(self._passages)

    def _assemble(self, passages: list[str]) -> str:
        reference = re.compile(f"{self._sign}([0-9]+){self._sign}")

        def write(match: re.Match[str]) -> str:
            # A passage may contain tags, and these attributes
            return reference.sub(write, passages[int(match[1])])

        return reference.sub(write, "".join(self._template))

    def _start_block(self) -> None:
        self._raw: list[str] = []
        self._text = StringIO()
        self._marks: list[Mark] = []
        # Numbers an opening tag by its index in the marks
        self._nesting = Nesting()

    def _end_block(self) -> None:
        """Write the text since the last block, as it is if it has no sentence."""
        passage = TaggedPassage(self._text.getvalue(), self._marks, self._language, escape_text, self._placeholders)
        self._template += [self._refer(passage)] if passage.has_sentences else self._raw
        self._start_block()

    def _refer(self, passage: Passage) -> str:
        self._passages.append(passage)
        return f"{self._sign}{len(self._passages) - 1}{self._sign}"

    def _add(self, name: str, mark: Mark) -> None:
        """Add a tag or an element that is not translated, or without a name, a comment or the like."""
        if name and not _INLINE.fullmatch(name):
            self._end_block()
            self._template.append(mark.source)
            return
        self._raw.append(mark.source)
        first = None
        if isinstance(mark, Tag) and mark.opens:
            self._nesting.open(mark.opens, len(self._marks))
        elif isinstance(mark, Tag):
            first = self._nesting.close(mark.closes)
        if first is not None and self._nesting.depth < MAX_DEPTH:
            start = self._marks[first].place
            self._text.seek(start)
            inside = self._text.read()
            if not inside or is_placeholder(inside, self._placeholders):
                # An empty element, or one around a placeholder alone, is itself a placeholder
                marks = [replace(inner, place=inner.place - start) for inner in [*self._marks[first:], mark]]
                mark = Mark(start, splice(inside, marks, escape_text))
                del self._marks[first:]
                self._text.seek(start)
                self._text.truncate()
        self._marks.append(mark)

    def _with_references(self, token: "_Token") -> str:
        """Return a start tag with references in place of what is translated in it."""
        if token.is_untranslated:
            return token.source

        attributes = set(token.attributes)

        def write(match: re.Match[str]) -> str:
            name, equals, value = match.groups()
            text = _unescape(value.strip("\"'"))
            if not _TRANSLATED.fullmatch(name) or (name.lower(), text) not in attributes:
                return match[0]
            passage = Passage(text, [], self._language, escape, self._placeholders)
            quote = value[0] if value[0] in "\"'" else '"'
            return f"{name}{equals}{quote}{self._refer(passage)}{quote}" if passage.has_sentences else match[0]

        return _ATTRIBUTE.sub(write, token.source)


@dataclass
class _Token:
    """A tag, a text, or a comment and the like.

    Args:
        start: its place in the source.
        kind: "start", "end", "text" or "other".
        name: of the element, if it is a tag; the text without entities, if it is a text.
        attributes: of a start tag.
        source: as it was written.
    """

    start: int
    kind: str
    name: str = ""
    attributes: Sequence[tuple[str, str | None]] = ()
    source: str = ""

    @property
    def opens(self) -> str:
        """Return the name of the element that this starts, or "" if it has no content."""
        return "" if _VOID.fullmatch(self.name) or self.source.endswith("/>") else self.name

    @property
    def is_kept(self) -> bool:
        """Return whether this starts an element that is not translated."""
        return bool(self.opens) and bool(_KEPT.fullmatch(self.name) or self.is_untranslated)

    @property
    def is_untranslated(self) -> bool:
        return any(name == "translate" and (value or "").lower() == "no" for name, value in self.attributes)


class _Tokenizer(HTMLParser):
    """Cut HTML into `tokens`, whose sources are together the whole text."""

    def __init__(self, text: str):
        super().__init__()
        # What the parser skips before the first token
        self.tokens = [_Token(0, "other")]
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        # A tag cut off at the end, which the parser would take for text
        unfinished = _TAG_START.search(text, text.rfind(">") + 1)
        end = unfinished.start() if unfinished else len(text)
        self._source = text
        self._last_comment_end = max((match.start() for match in _COMMENT_END.finditer(text)), default=-1)
        self.feed(_LONG_NUMBER.sub("+", text[:end]))
        self.close()
        self.tokens.append(_Token(end, "other"))
        ends = [token.start for token in self.tokens[1:]]
        for token, end in zip(self.tokens, [*ends, len(text)], strict=True):
            token.source = text[token.start : end]

    def __iter__(self) -> Iterator[_Token]:
        """Yield the tokens. What the parser takes for text although a tag starts there is of the kind "other"."""
        tokens = iter(self.tokens)
        for token in tokens:
            # The parser skips "</>" behind text
            if token.kind == "text" and (_unescape(token.source) != token.name or _TAG_START.match(token.source)):
                token.kind = "other"
                end = self._end_of_tag(token)
                parts = [token.source]
                place = token.start + len(token.source)
                while place < end and (more := next(tokens, None)):
                    parts.append(more.source)
                    place += len(more.source)
                token.source = "".join(parts)
            if token.source:
                yield token

    def _end_of_tag(self, text: _Token) -> int:
        """Return where a tag inside a text ends to browsers: after the next ">" that is not in quotes."""
        start = _TAG_START.search(text.source)
        if not start:
            return text.start
        whole = _WHOLE_TAG.match(self._source, text.start + start.start())
        return whole.end() if whole else len(self._source)

    def _add(self, kind: str, name: str = "", attributes: Sequence[tuple[str, str | None]] = ()) -> None:
        line, column = self.getpos()
        self.tokens.append(_Token(self._line_starts[line - 1] + column, kind, name, attributes))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        # WebVTT writes classes behind the name: <c.yellow>, <i.loud>
        self._add("start", tag.partition(".")[0], attrs)

    handle_startendtag = handle_starttag

    def handle_endtag(self, tag: str) -> None:
        self._add("end", tag.partition(".")[0])

    def handle_data(self, data: str) -> None:
        self._add("text", data)

    def handle_comment(self, data: str) -> None:
        self._add("other")

    handle_decl = handle_pi = unknown_decl = handle_comment  # type: ignore[assignment]

    def parse_comment(self, i: int, report: bool = True) -> int:
        # Else the parser would look for the end of each unclosed comment as far as the end of the text
        return super().parse_comment(i, report) if i < self._last_comment_end else -1

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        # As HTML defines it; the parser would raise an AssertionError for some
        return self.parse_bogus_comment(i)


def _rest(start: _Token, tokens: Iterator[_Token]) -> str:
    """Return the source of the rest of an element; without an end, that of the whole text."""
    depth = 1
    source = ""
    while depth and (token := next(tokens, None)):
        source += token.source
        if token.name == start.name and token.kind in ("start", "end"):
            depth += 1 if token.kind == "start" else -1
    return source
