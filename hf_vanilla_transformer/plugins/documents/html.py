"""Cut HTML into sentences, and put their translations between the same tags.

The tokenizer is Python's own: it tells where each tag is in the source, so that all of them are copied as they were
written. The parsers that build a tree write tags, entities and missing elements in their own way.
"""

import re
import secrets
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape, parser, unescape
from html.parser import HTMLParser
from io import StringIO

from ...data.languages import base_code, full_tag
from ...inference.placeholders import is_placeholder
from ...inference.segments import Document, Mark, Passage, splice
from .tagged_text import MAX_DEPTH, Nesting, Tag, TaggedPassage

# Elements that end a sentence. All others are inside it, as browsers show unknown ones; SVG has `text`, WebVTT `v`
_BLOCK = re.compile(
    "address|article|aside|blockquote|body|br|caption|center|col|colgroup|dd|desc|details|dialog|dir|div|dl|dt|"
    "fieldset|figcaption|figure|footer|foreignobject|form|frame|frameset|h[1-6]|head|header|hgroup|hr|html|legend|li|"
    "listing|main|marquee|menu|nav|noframes|ol|optgroup|option|p|plaintext|pre|search|section|summary|table|tbody|td|"
    "text|tfoot|th|thead|title|tr|tspan|ul|v|xmp"
)
# Elements inside a sentence with texts of their own
_ISLAND = re.compile("audio|canvas|datalist|map|noscript|object|select|svg|template|video")
# Elements that are not translated, such as the reading of ruby
_KEPT = re.compile(
    "code|iframe|kbd|listing|math|noembed|noframes|plaintext|pre|rp|rt|rtc|samp|script|style|textarea|tt|var|xmp"
)
# A control that follows another one, maybe after a space, or a custom element directly, is not in the same sentence
_CONTROL = re.compile("button|input|label|select|textarea|[^-]+-.*")
# Elements without content
_VOID = re.compile("area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr")
_MAX_LEVEL = 20  # of elements with texts of their own inside others
# Elements whose end tag may be missing, and the start tags that end them (HTML 13.1.2.4)
_STARTS = {
    "p": f"(?!(?:br|desc|foreignobject|option|optgroup|tspan|text|title|v)$)(?:{_BLOCK.pattern})",
    "li": "li",
    **dict.fromkeys(("dt", "dd"), "dt|dd"),
    "option": "option|optgroup|hr",
    "optgroup": "optgroup|hr",
    **dict.fromkeys(("caption", "colgroup"), "caption|colgroup|thead|tbody|tfoot|tr"),
    **dict.fromkeys(("thead", "tbody", "tfoot"), "thead|tbody|tfoot"),
    "tr": "tr|thead|tbody|tfoot",
    **dict.fromkeys(("td", "th"), "td|th|tr|thead|tbody|tfoot"),
    **dict.fromkeys(("rp", "rt"), f"rb|rp|rt|rtc|ruby|{_BLOCK.pattern}"),
    "rtc": f"ruby|{_BLOCK.pattern}",
}
_ENDED_BY = {name: re.compile(pattern) for name, pattern in _STARTS.items()}
# Elements around them, with whose end they end
_AROUND = re.compile(f"(?!p$|br$)(?:{_BLOCK.pattern}|button|datalist|object|rb|rp|rt|rtc|ruby|select|template)")
# In a link and in a superscript
_HASHTAG = re.compile(r"[#\uff03]\w+")
_NOTE = re.compile(r"[\W\d_]+|\[\w{1,3}\]")
# Attributes with a value: those that are translated, and others, whose values may look like one
_ATTRIBUTE = re.compile(r"""(?<![^\s/>"'=])([^\s/>"'=]+)(\s*=\s*)("[^"]*"|'[^']*'|[^\s>"']+)""")
_TRANSLATED = ("alt", "title")
_LANGUAGE = ("lang", "xml:lang")
_TAG_START = re.compile("<[A-Za-z/!?]")
_WHOLE_TAG = re.compile(r"""[^"'>]*(?:"[^"]*"[^"'>]*|'[^']*'[^"'>]*)*>""")
# The end of a comment to Python's parser, whose releases differ in it
_COMMENT_END: re.Pattern[str] = parser.commentclose  # type: ignore[attr-defined]
# A block of PHP, which may have no end, or of ERB, JSP and the like. Browsers would end it at the first ">"
_TEMPLATE = re.compile(r"<\?(?:php\b|=).*?(?:\?>|\Z)|<%(?:(?!<%).)*?%>", re.DOTALL | re.IGNORECASE)
# The start of a character reference that Python refuses to read
_LONG_NUMBER = re.compile("&(?=#[0-9]{4000})")
# A line break is a space in HTML
_PLAIN = str.maketrans("\t\n\r\f", "    ")


def _unescape(text: str) -> str:
    """Return a text without character references, or "" if one of them has too many digits for Python."""
    try:
        return unescape(text)
    except ValueError:
        return ""


def escape_text(text: str) -> str:
    """Return text as HTML, as browsers write it."""
    return escape(text, quote=False).replace("\xa0", "&nbsp;")


def follow_language(declared: str, target: str | None) -> str:
    """Return what a document declares as its language after its translation: the target, or as before in a country."""
    if target is None or base_code(declared) == base_code(target):
        return declared
    return full_tag(target) or base_code(target) or target


class HtmlDocument(Document):
    """HTML, cut into sentences and what is not translated: tags, comments, code, and elements with translate="no".

    Args:
        text: a page or a part of one, well-formed or not.
        language, target, placeholders: as for `Document`; the attribute lang follows the translation.
    """

    def __init__(self, text: str, language: str | None, target: str | None = None, placeholders: str | None = None):
        self._language = language
        self._target = target
        self._placeholders = placeholders
        self._passages: list[Passage] = []
        # References to passages are numbers between signs that are random, so that no text contains them
        self._sign = f"\ue000{secrets.token_hex(8)}"
        self._tokens = deque(_Tokenizer(text))
        self._level = 0
        self._template: list[str] = []
        self._block = _Block()
        self._whole = self._read()
        self._set(self._passages)

    def _assemble(self, passages: list[str]) -> str:
        reference = re.compile(f"{self._sign}([0-9]+){self._sign}")

        def write(match: re.Match[str]) -> str:
            # A passage may contain tags, and these attributes
            return reference.sub(write, passages[int(match[1])])

        return reference.sub(write, self._whole)

    def _read(self, start: "_Token | None" = None) -> str:
        """Return the rest of an element, or of the whole text, with references to its passages."""
        outer = self._template, self._block
        self._template = []
        self._block = _Block()
        self._level += 1
        inside = _Inside(start.name) if start else None
        end = ""
        while self._tokens and not (inside and inside.ends_before(self._tokens[0])):
            token = self._tokens.popleft()
            # What is kept is taken with its end
            if inside and not token.is_kept and inside.ends_with(token):
                end = token.source
                break
            self._take(token)
        self._end_block()
        template = "".join([*self._template, end])
        self._level -= 1
        self._template, self._block = outer
        return template

    def _take(self, token: "_Token") -> None:
        """Add a token, and the rest of its element if that is not translated or has texts of its own."""
        is_control = token.kind in ("start", "end") and bool(_CONTROL.fullmatch(token.name))
        if is_control and token.kind == "start" and self._block.last_control:
            self._end_block()
        block = self._block
        place = block.text.tell()
        is_whole = True
        if token.kind == "text":
            block.raw.append(token.source)
            block.text.write(token.name.translate(_PLAIN))
        elif token.is_kept:
            self._add(token.name, Mark(place, token.source + self._keep(token)))
        elif self._level == 1 and _ISLAND.fullmatch(token.opens):
            self._add(token.name, Mark(place, self._with_references(token) + self._read(token)))
        elif token.kind == "start":
            is_whole = not token.opens
            self._add(token.name, Tag(place, self._with_references(token), opens=token.opens))
        elif token.kind == "end":
            self._add(token.name, Tag(place, token.source, closes=token.name))
        else:
            self._add("", Mark(place, token.source))
        if is_control:
            self._block.last_control = token.name if is_whole else ""
        elif token.kind == "text" and (token.name.strip() or "-" in self._block.last_control):
            self._block.last_control = ""

    def _keep(self, start: "_Token") -> str:
        """Return the rest of an element as it is, but for elements in it with translate="yes"; or the whole text."""
        inside = _Inside(start.name)
        source = []
        while self._tokens and not inside.ends_before(self._tokens[0]):
            token = self._tokens.popleft()
            if token.opens and token.translates and self._level < _MAX_LEVEL:
                source.append(self._with_references(token) + self._read(token))
                continue
            source.append(token.source)
            if inside.ends_with(token):
                break
        return "".join(source)

    def _end_block(self) -> None:
        """Write the text since the last block, as it is if it has no sentence."""
        block = self._block
        passage = TaggedPassage(block.text.getvalue(), block.marks, self._language, escape_text, self._placeholders)
        self._template += [self._refer(passage)] if passage.has_sentences else block.raw
        self._block = _Block()

    def _refer(self, passage: Passage) -> str:
        self._passages.append(passage)
        return f"{self._sign}{len(self._passages) - 1}{self._sign}"

    def _add(self, name: str, mark: Mark) -> None:
        """Add a tag or an element that is not translated, or without a name, a comment or the like."""
        if _BLOCK.fullmatch(name):
            self._end_block()
            self._template.append(mark.source)
            return
        block = self._block
        block.raw.append(mark.source)
        first = None
        if isinstance(mark, Tag) and mark.opens:
            block.nesting.open(mark.opens, len(block.marks))
        elif isinstance(mark, Tag):
            first = block.nesting.close(mark.closes)
        if first is not None and block.nesting.depth < MAX_DEPTH:
            start = block.marks[first].place
            block.text.seek(start)
            inside = block.text.read()
            if not inside or self._is_placeholder(name, inside, block.marks[first:]):
                # It is a placeholder together with its tags
                marks = [replace(inner, place=inner.place - start) for inner in [*block.marks[first:], mark]]
                mark = Mark(start, splice(inside, marks, escape_text))
                del block.marks[first:]
                block.text.seek(start)
                block.text.truncate()
        block.marks.append(mark)

    def _is_placeholder(self, name: str, inside: str, marks: Sequence[Mark]) -> bool:
        """Return whether an element stays as it is: around an address, a hashtag, or the number of a note."""
        if is_placeholder(inside, self._placeholders) or (name == "a" and _HASHTAG.fullmatch(inside)):
            return True
        if name != "sup" or (self._tokens and self._tokens[0].kind == "text" and self._tokens[0].name[:1].isalnum()):
            # As in "10<sup>3</sup>m": behind the next word it would mean something else
            return False
        is_link = any(isinstance(mark, Tag) and mark.opens == "a" for mark in marks)
        return is_link or bool(_NOTE.fullmatch(inside))

    def _with_references(self, token: "_Token") -> str:
        """Return a start tag with references in place of what is translated in it, and the language of these."""
        if not token.attributes or token.translates is False:
            return token.source

        attributes = set(token.attributes)

        def write(match: re.Match[str]) -> str:
            name, equals, value = match.groups()
            text = _unescape(value.strip("\"'"))
            if (name.lower(), text) not in attributes:
                return match[0]
            quote = value[0] if value[0] in "\"'" else '"'
            if self._declares_language(token, name.lower(), text):
                return f"{name}{equals}{quote}{follow_language(text, self._target)}{quote}"
            if name.lower() not in _TRANSLATED:
                return match[0]
            passage = Passage(text, [], self._language, escape, self._placeholders)
            return f"{name}{equals}{quote}{self._refer(passage)}{quote}" if passage.has_sentences else match[0]

        return _ATTRIBUTE.sub(write, token.source)

    def _declares_language(self, token: "_Token", name: str, value: str) -> bool:
        """Return whether an attribute names the language of the page, or of a part in the same language."""
        if self._target is None or name not in (*_LANGUAGE, "content"):
            return False
        if name == "content":
            return ("http-equiv", "content-language") in [
                (key, (value or "").lower()) for key, value in token.attributes
            ]
        is_source = self._language is not None and base_code(value) == base_code(self._language)
        return token.name == "html" or is_source


class _Block:
    """The text since the last element that ends a sentence.

    Attributes:
        raw: its source.
        text: its text without tags.
        marks: what else is in it.
        nesting: the elements that are open, by the index of their tag in the marks.
        last_control: the name of the last form control or custom element, if it has ended and no text has followed.
    """

    def __init__(self) -> None:
        self.raw: list[str] = []
        self.text = StringIO()
        self.marks: list[Mark] = []
        self.nesting = Nesting()
        self.last_control = ""


@dataclass
class _Token:
    """A tag, a text, or a comment and the like.

    Args:
        start: its place in the source.
        kind: "start", "end", "text" or "other".
        name: of the element, if it is a tag; the text without entities, if it is a text.
        attributes: of a start tag.
        source: as it was written.
        ends_itself: whether it is a start tag like `<a/>`; in `<a href=x/>`, the slash is part of the value.
    """

    start: int
    kind: str
    name: str = ""
    attributes: Sequence[tuple[str, str | None]] = ()
    source: str = ""
    ends_itself: bool = False

    @property
    def opens(self) -> str:
        """Return the name of the element that this starts, or "" if it has no content."""
        return "" if self.kind != "start" or _VOID.fullmatch(self.name) or self.ends_itself else self.name

    @property
    def is_kept(self) -> bool:
        """Return whether this starts an element that is not translated."""
        if not self.opens:
            return False
        translates = None if self.name in ("script", "style") else self.translates
        return bool(_KEPT.fullmatch(self.name)) if translates is None else not translates

    @property
    def translates(self) -> bool | None:
        """Return whether its attributes say that the element is translated; None if they do not say it."""
        for name, value in self.attributes:
            if name == "translate" and (value or "").lower() in ("", "yes", "no"):
                return (value or "").lower() != "no"
        is_marked = any(name == "class" and "notranslate" in (value or "").split() for name, value in self.attributes)
        return False if is_marked else None


class _Inside:
    """A place inside an element, and the elements that are open there as far as they decide where that one ends."""

    def __init__(self, name: str):
        self._name = name
        # From the outermost
        self._open = [name]
        self._counts = Counter(self._open)

    def ends_before(self, token: _Token) -> bool:
        """Return whether the element ends before a token without an end tag, as HTML lets it."""
        if token.kind == "start":
            while self._open and (starts := _ENDED_BY.get(self._open[-1])) and starts.fullmatch(token.name):
                self._leave(self._open[-1])
        elif token.kind == "end" and not self._counts[token.name] and _AROUND.fullmatch(token.name):
            return self._name in _ENDED_BY
        return not self._open

    def ends_with(self, token: _Token) -> bool:
        """Return whether a token, which is in the element, is its end tag."""
        if token.opens and (token.name in (self._name, "p") or _AROUND.fullmatch(token.name)):
            self._open.append(token.name)
            self._counts[token.name] += 1
        elif token.kind == "end" and self._counts[token.name]:
            self._leave(token.name)
        return not self._open

    def _leave(self, name: str) -> None:
        """Leave the innermost open element of a name, and those in it."""
        other = ""
        while other != name:
            other = self._open.pop()
            self._counts[other] -= 1


def _as_instruction(template: re.Match[str]) -> str:
    """Return a processing instruction of HTML in place of a template, of the same length and lines."""
    return "<?" + re.sub(r"[^\r\n]", "x", template[0][2:-1]) + ">"


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
        # Whether the end of a CDATA section may follow
        self._ends_sections = True
        self._last_comment_end = max((match.start() for match in _COMMENT_END.finditer(text)), default=-1)
        self.feed(_TEMPLATE.sub(_as_instruction, _LONG_NUMBER.sub("+", text[:end])))
        self.close()
        self.tokens.append(_Token(end, "other"))
        ends = [token.start for token in self.tokens[1:]]
        for token, end in zip(self.tokens, [*ends, len(text)], strict=True):
            token.source = text[token.start : end]
            if token.kind == "text" and _TEMPLATE.search(token.source):
                # A template where there are no tags, as in a script
                token.name = _unescape(token.source)

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

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.tokens[-1].ends_itself = True

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
        if self._ends_sections and self.rawdata.startswith("<![CDATA[", i):
            # As XHTML defines it: a book whose section ends elsewhere could not be opened
            end = self.rawdata.find("]]>", i)
            self._ends_sections = end >= 0
            if end >= 0:
                self.unknown_decl(self.rawdata[i + 3 : end])
                return end + 3
        # As HTML defines it; the parser would raise an AssertionError for some
        return self.parse_bogus_comment(i)
