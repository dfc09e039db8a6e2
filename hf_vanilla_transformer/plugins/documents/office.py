"""Parts of Word and PowerPoint files: their paragraphs become HTML, and the translation becomes their runs again.

A paragraph has runs, which are texts of one format each, elements around runs such as links, and formulas, bookmarks
and others between them. In HTML, each of them is an element with a number, `<m1>`, so that it goes to its words.
"""

import html
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...data.foreign_files import ExchangeError
from ...data.languages import base_code
from ...files import import_extra
from .html import follow_language

if TYPE_CHECKING:
    from lxml.etree import _Element

# The namespaces of paragraphs, runs and texts: those of the usual files and of Strict OOXML
_WORD = (
    "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}",
    "{http://purl.oclc.org/ooxml/wordprocessingml/main}",
)
_DRAWING = (
    "{http://schemas.openxmlformats.org/drawingml/2006/main}",
    "{http://purl.oclc.org/ooxml/drawingml/main}",
)
_FIXED = re.compile("[A-Za-z]*Pr|rt")  # properties, and the reading of ruby, stay where they are
_PROOFING = ("lang", "altLang", "noProof", "dirty", "err")  # properties of a run that are not its format
# what ends a sentence; fields only if they start or end in another paragraph
_BREAKS = ("tab", "ptab", "br", "cr", "fldChar")
# Word writes them for its own layout and spelling
_DROPPED = ("lastRenderedPageBreak", "proofErr", "softHyphen")
_OUTSIDE = 1 << 20  # how much more a character outside of links and others counts
_NOT_TRANSLATED = ("del", "moveFrom")  # what a tracked change has removed, or moved elsewhere
# for programs that know an extension, and for others
_ALTERNATIVES = [
    f"{{http://schemas.openxmlformats.org/markup-compatibility/2006}}{name}" for name in ("Choice", "Fallback")
]
# Languages of scripts for which Word has an attribute of its own
_EAST_ASIAN = ("ja", "ko", "zh")
_COMPLEX = ("ar", "ckb", "dv", "fa", "he", "hi", "ps", "sd", "th", "ug", "ur", "yi")


def parse(part: bytes) -> "_Element":
    """Return the root of an XML file.

    Raises:
        ExchangeError: if it declares entities, which could expand to any size.
        MemoryError: if there is too little memory for it.
    """
    etree = import_extra("lxml.etree", "documents")
    try:
        root = etree.fromstring(part, etree.XMLParser(resolve_entities=False, no_network=True))
    except etree.XMLSyntaxError as error:
        if error.code == etree.ErrorTypes.ERR_NO_MEMORY:
            raise MemoryError from None
        raise
    declared = root.getroottree().docinfo.internalDTD
    if declared is not None and list(declared.iterentities()):
        raise ExchangeError("declares XML entities, which are not read")
    return root


def to_bytes(root: "_Element") -> bytes:
    """Return an XML file with this root."""
    etree = import_extra("lxml.etree", "documents")
    return etree.tostring(root.getroottree(), xml_declaration=True, encoding="UTF-8", standalone=True)


def rewrite_paragraphs(root: "_Element", translate: Callable[[str], str]) -> None:
    """Translate the paragraphs of a part, each as HTML, also those in text boxes inside others."""
    for element in list(root.iter(*(f"{space}p" for space in _WORD + _DRAWING), *_ALTERNATIVES)):
        space = _namespace_of(element)
        paragraph = _Paragraph(element, space) if space else None
        if paragraph and paragraph.has_letters:
            paragraph.write(translate(paragraph.html))


def _namespace_of(element: "_Element") -> str | None:
    """Return the namespace of a paragraph, or of the runs in one of several alternatives, which has them like one."""
    if element.tag not in _ALTERNATIVES:
        return element.tag[:-1]
    spaces = (space for space in _WORD + _DRAWING if element.find(f"{space}r") is not None)
    return next(spaces, None)


def declare_language(root: "_Element", language: str) -> None:
    """Declare the language of all texts of a part, which spelling checkers follow."""
    base = base_code(language)
    script = "eastAsia" if base in _EAST_ASIAN else "bidi" if base in _COMPLEX else "val"
    for space in _WORD:
        for element in root.iter(f"{space}lang", f"{space}themeFontLang"):
            for name in {f"{space}val", f"{space}{script}"} & set(element.attrib):
                element.set(name, follow_language(str(element.get(name)), language))
    for element in root.iter(*(f"{space}{name}" for space in _DRAWING for name in ("rPr", "defRPr", "endParaRPr"))):
        if declared := element.get("lang"):
            element.set("lang", follow_language(declared, language))


@dataclass
class _Piece:
    """A text of a paragraph, or something between or around its texts.

    Args:
        kind: "text", "open", "close", "break" or "other"; "end" for the end of a text in HTML.
        element: what is written for it, if it is no text.
        run: the run that has it, if one has.
        format: that of a text.
        texts: its parts.
        partner: the number of the piece that opens or closes the same element or range.
        rest: the pieces that are written behind it, and whose own kind is "joined".
    """

    kind: str
    element: "_Element | None" = None
    run: "_Element | None" = None
    format: Hashable = None
    texts: list[str] = field(default_factory=list)
    partner: int | None = None
    rest: list["_Piece"] = field(default_factory=list)


class _Paragraph:
    """A paragraph of an Office file.

    Attributes:
        html: its texts, with tags around those of other formats than most of their sentence, and for all else.
    """

    def __init__(self, element: "_Element", space: str):
        self._element = element
        self._space = space
        self._pieces: list[_Piece] = []
        # With their parents, what `write` puts into a new order
        self._movable: list[tuple[_Element, _Element]] = []
        # The first run of each format
        self._runs: dict[Hashable, _Element] = {}
        self._read(element)
        self._join_fields()
        self._bases = list(self._base_formats())
        # The tags in `html`
        self._marks: dict[str, _Piece] = {}
        # Where `write` is: the elements around runs, the run or element to which it has added, and whose copy that is
        self._containers = [element]
        self._written = element
        self._source: _Element | None = None
        self.html = "".join(self._as_html())

    @property
    def has_letters(self) -> bool:
        return any(any(map(str.isalpha, text)) for piece in self._pieces for text in piece.texts)

    def _name(self, element: "_Element") -> str:
        """Return the name of an element, or "" if it is a comment or in another namespace."""
        tag = element.tag
        return tag[len(self._space) :] if isinstance(tag, str) and tag.startswith(self._space) else ""

    def _read(self, parent: "_Element", run: "_Element | None" = None) -> None:
        """Add what is in the paragraph, in an element around runs, or in a run."""
        format = None
        starts: dict[tuple[str, str | None], int] = {}
        for child in parent:
            name = self._name(child)
            if _FIXED.fullmatch(name):
                continue
            self._movable.append((parent, child))
            if name == "r":
                self._read(child, child)
            elif name in ("t", "noBreakHyphen"):
                # A field in PowerPoint has no runs
                format = format or (parent if run is None else _format_of(run))
                # Word has an element for this character of a word
                self._add_text(child.text or "" if name == "t" else "-", format, parent)
            # a line break of PowerPoint has properties
            elif name == "ruby" or (name and len(child) and run is None and name not in (*_NOT_TRANSLATED, *_BREAKS)):
                self._read_around(child, name, run)
            elif name not in _DROPPED:
                self._add("break" if name in _BREAKS else "other", child, run)
                key = (name.removesuffix("Start").removesuffix("End"), child.get(f"{self._space}id"))
                if name.endswith("Start"):
                    starts[key] = len(self._pieces) - 1
                elif name.endswith("End") and key in starts:
                    self._pair(starts.pop(key))

    def _read_around(self, element: "_Element", name: str, run: "_Element | None") -> None:
        """Add an element around runs, and what is in it; in a field of PowerPoint, this is a sentence."""
        is_field = name == "fld"
        if is_field:
            self._add("break")
        start = len(self._pieces)
        self._add("open", element, run)
        self._read(element)
        self._add("close", element)
        self._pair(start)
        if is_field:
            self._add("break")

    def _add(self, kind: str, element: "_Element | None" = None, run: "_Element | None" = None) -> None:
        self._pieces.append(_Piece(kind, element, run))

    def _add_text(self, text: str, format: Hashable, run: "_Element") -> None:
        """Add a text, to the last one if it has the same format: programs cut texts anywhere."""
        if not self._pieces or self._pieces[-1].kind != "text" or self._pieces[-1].format != format:
            self._pieces.append(_Piece("text", format=format))
        self._pieces[-1].texts.append(text)
        self._runs.setdefault(format, run)

    def _pair(self, start: int) -> None:
        """Note that the last piece ends what another one starts."""
        self._pieces[start].partner = len(self._pieces) - 1
        self._pieces[-1].partner = start

    def _join_fields(self) -> None:
        """Make ranges of the fields, such as links and page numbers, that start and end in the paragraph.

        A field is the sign that starts it, its instruction, a sign, its result, and the sign that ends it. A field in
        which a bookmark or the like starts or ends whose other end is not in it stays as it is: two ranges of which
        neither is in the other cannot both be elements.
        """
        # of each open field, the places of its signs, and the first and the last place that ranges in it reach
        opened: list[list[int]] = []
        reached: list[tuple[int, int]] = []
        for number, piece in enumerate(self._pieces):
            if reached and piece.partner is not None:
                reached[-1] = min(reached[-1][0], piece.partner), max(reached[-1][1], piece.partner)
            kind = None if piece.element is None else piece.element.get(f"{self._space}fldCharType")
            if kind == "begin":
                opened.append([number])
                reached.append((number, number))
            elif kind == "separate" and opened:
                opened[-1].append(number)
            elif kind == "end" and opened:
                signs = [*opened.pop(), number]
                first, last = reached.pop()
                if reached:
                    reached[-1] = min(reached[-1][0], first), max(reached[-1][1], last)
                if signs[0] <= first and last <= number:
                    self._join_field(signs)

    def _join_field(self, signs: list[int]) -> None:
        """Join what a field has before its result, or all of one without a result, into one piece."""
        start, last, *_, end = [*signs, signs[-1]]
        parts = [self._pieces[number] for number in (start, last, end)]
        instruction = (self._pieces[number] for number in range(start + 1, last + 1))
        if any(piece.kind not in ("break", "other") or piece.partner is not None for piece in instruction):
            # it has fields or tracked changes of its own
            return
        if len({part.run is not None and part.run.getparent() for part in parts}) > 1:
            # it starts or ends in an element around runs
            return
        parts[0].kind = "other"
        parts[0].rest = self._pieces[start + 1 : last + 1]
        for piece in parts[0].rest:
            piece.kind = "joined"
        if end != last:
            parts[-1].kind = "other"
            parts[0].partner = end
            parts[-1].partner = start

    def _base_formats(self) -> Iterator[Hashable]:
        """Yield the commonest format before, between and behind the breaks."""
        lengths: Counter[Hashable] = Counter()
        depth = 0
        for number, piece in enumerate([*self._pieces, _Piece("break")]):
            if piece.kind == "break":
                yield max(lengths, key=lengths.__getitem__, default=None)
                lengths.clear()
            elif piece.kind == "text":
                # The format of a link is not for other words
                lengths[piece.format] += sum(map(len, piece.texts)) * (1 if depth else _OUTSIDE)
            elif piece.partner is not None and self._is_around_runs(piece, self._pieces[piece.partner]):
                depth += 1 if piece.partner > number else -1

    @staticmethod
    def _is_around_runs(piece: _Piece, partner: _Piece) -> bool:
        """Return whether two pieces are those around an element or a field, not around the range of a comment."""
        return piece.kind in ("open", "close") or bool(piece.rest or partner.rest)

    def _as_html(self) -> Iterator[str]:
        """Yield the pieces as HTML."""
        bases = iter(self._bases)
        base = next(bases)
        for number, piece in enumerate(self._pieces):
            text = html.escape("".join(piece.texts), quote=False)
            if piece.kind == "joined":
                continue
            if piece.kind == "text" and (piece.format == base or text.isspace()):
                yield text
            elif piece.kind == "text":
                # The number of a note is not part of its word
                name = f"sup.{number}" if _is_superscript(self._runs[piece.format]) else f"m{number}"
                yield self._mark(f"<{name}>", piece) + text + self._mark(f"</{name}>", _Piece("end"))
            elif piece.kind == "break":
                base = next(bases)
                yield self._mark(f'<br id="{number}"/>', piece)
            elif piece.partner is None:
                yield self._mark(f"<m{number}/>", piece)
            else:
                yield self._mark(f"<m{number}>" if piece.partner > number else f"</m{piece.partner}>", piece)

    def _mark(self, tag: str, piece: _Piece) -> str:
        self._marks[tag] = piece
        return tag

    def write(self, translated: str) -> None:
        """Put a translation of `html` into the paragraph; in one format if not each of its tags is there once."""
        parts = re.split("(<[^>]*>)", translated)
        if sorted(parts[1::2]) != sorted(self._marks):
            parts = ["".join(parts[::2]), *(part for tag in self._marks for part in (tag, ""))]
        for parent, child in self._movable:
            parent.remove(child)

        anywhere = next(iter(self._runs.values()))
        bases = iter([self._runs.get(base, anywhere) for base in self._bases])
        base = run = next(bases)
        for number, part in enumerate(parts):
            piece = self._marks[part] if number % 2 else None
            if piece is None:
                self._write_text(html.unescape(part), run)
            elif piece.kind == "text":
                run = self._runs[piece.format]
            elif piece.kind == "end":
                run = base
            else:
                self._write_piece(piece)
                if piece.kind == "break":
                    base = run = next(bases)
        # PowerPoint wants it at the end
        self._element.extend(list(self._element.iterchildren(f"{self._space}endParaRPr")))

    def _write_piece(self, piece: _Piece) -> None:
        """Write something that is no text."""
        if piece.kind == "close":
            # tags of elements in many others are placed one by one
            if piece.element in self._containers:
                del self._containers[self._containers.index(piece.element) :]
        elif piece.element is not None:
            for part in (piece, *piece.rest):
                self._write_element(part.element, part.run)
        if piece.kind == "open":
            self._containers.append(piece.element)
        if piece.kind in ("open", "close"):
            self._written = self._containers[-1]
            self._source = None

    def _write_text(self, text: str, run: "_Element") -> None:
        """Write a text in the format of a run; space in that of the text before it."""
        name = f"{self._space}t"
        # `len` would count all children each time
        last = next(self._written.iterchildren(reversed=True), None)
        if last is not None and last.tag == name and (run is self._source or text.isspace()):
            last.text += text
        elif text:
            element = run.makeelement(name)
            element.text = text
            if self._space in _WORD:
                # Else Word would remove the space at its ends
                element.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")
            self._write_element(element, run)

    def _write_element(self, element: "_Element", run: "_Element | None") -> None:
        """Write an element, into a run of the same format if it was in one."""
        container = self._containers[-1]
        if run is None or run is container:
            self._written = container
        elif run is not self._source:
            self._written = run.makeelement(run.tag, run.attrib, run.nsmap)
            self._written.extend(deepcopy(properties) for properties in run.iterchildren("{*}rPr"))
            container.append(self._written)
        self._source = run
        self._written.append(element)


def _format_of(run: "_Element") -> Hashable:
    """Return the format of a run."""
    properties = run.find("{*}rPr")
    if properties is None:
        return ((), ())
    # not as XML, in which each would have all namespaces of the file
    elements = (
        tuple((part.tag, tuple(part.items()), part.text) for part in child.iter())
        for child in properties.iterchildren("{*}*")
        if not child.tag.endswith(_PROOFING)
    )
    return tuple(item for item in properties.items() if item[0] not in _PROOFING), tuple(elements)


def _is_superscript(run: "_Element") -> bool:
    """Return whether the text of a run stands above the line."""
    # An attribute in PowerPoint, in thousandths or per cent
    baselines = (properties.get("baseline", "0") for properties in run.iterchildren("{*}rPr"))
    aligns = run.iterfind("{*}rPr/{*}vertAlign")
    return any(re.match("[1-9]", value) for value in baselines) or any(
        "superscript" in align.values() for align in aligns
    )
