"""Take the texts out of documents and put their translations in: plain text, web pages, subtitles, Office, e-books.

Everything else in a file stays as it is, byte by byte in the text formats. Office files and e-books are archives of
XML, of which only the parts with text are parsed.
"""

import html
import io
import itertools
import re
import textwrap
import zipfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ...data.foreign_files import ExchangeError, TooLargeError, reason
from ...files import import_extra
from ...inference.segments import Document, DocumentFormat
from .html import HtmlDocument

if TYPE_CHECKING:
    from lxml.etree import _Element

PLAIN = ".txt"  # each line is a paragraph; the texts of all other formats are HTML
_PAGES = (".html", ".htm")
_SUBTITLES = (".srt", ".vtt")
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
# their parts with text
_ARCHIVES = {
    ".docx": r"word/(document\d*|header\d*|footer\d*|footnotes|endnotes)\.xml",
    ".pptx": r"ppt/(slides|notesSlides)/[^/]+\.xml",
    ".epub": r".+\.(?i:x?html?)",
}
# the namespace of their paragraphs `p`, runs with their properties `rPr`, and texts `t`
_OFFICE = {".docx": _WORD, ".pptx": "{http://schemas.openxmlformats.org/drawingml/2006/main}"}
ENDINGS = (PLAIN, *_PAGES, *_SUBTITLES, *_ARCHIVES)
MAX_BYTES = 1 << 26  # of an unpacked file
MAX_MEMBERS = 10_000  # of an archive; each takes time, even if it is empty
# no two of its parts match the same, so that its time is linear
_TAG = re.compile(r"(</?[A-Za-z][^<>]*>)")
_PROOFING = ("lang", "altLang", "noProof", "dirty", "err")  # properties of a run that are not its format
# between subtitles: a blank line, or only a line break in front of a time and its number
_CUE_BORDER = re.compile(r"(\n\s*\n|\n(?=(?:\d+[ \t]*\n)?[ \t]*\d[\d:.,]*[ \t]*-->))")
# what no XML may contain: a model can generate any character
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE_WIDTH = 42  # characters per line of a subtitle
_Translate = Callable[[str], str]


def ending_of(name: str) -> str:
    """Return the ending of a file's name that tells its format, in lower case."""
    return Path(name).suffix.lower()


def texts_of(content: bytes, name: str, max_bytes: int = MAX_BYTES) -> list[str]:
    """Return the texts of a document, in order: plain text if its name ends in `PLAIN`, otherwise HTML.

    Args:
        max_bytes: the largest size of the parts with text, on which the time depends.

    Raises:
        ExchangeError: if it is damaged, of another format, or too large; unlike others, the message has its name.
    """
    texts: list[str] = []

    def collect(text: str) -> str:
        texts.append(text)
        return text

    _rewrite(content, name, collect, max_bytes)
    return texts


def with_texts(content: bytes, name: str, texts: Iterable[str]) -> bytes:
    """Return a document with other texts in place of those that `texts_of` returns."""
    remaining = iter(texts)
    return _rewrite(content, name, lambda _: next(remaining), MAX_BYTES)


def _rewrite(content: bytes, name: str, translate: _Translate, max_bytes: int) -> bytes:
    ending = ending_of(name)

    def translate_cleanly(text: str) -> str:
        return _NOT_XML.sub("", translate(text))

    try:
        if ending in _ARCHIVES:
            return _rewrite_archive(content, ending, translate_cleanly, max_bytes)
        _check_size(len(content), max_bytes)
        text = content.decode("utf-8")
        if ending in _SUBTITLES:
            return _rewrite_subtitles(text, ending, translate_cleanly).encode()
        return translate(text).encode()
    except ImportError:
        raise
    except MemoryError:
        raise TooLargeError(f"{name}: too large to be read in the memory that there is for it; split it.") from None
    except TooLargeError as error:
        raise TooLargeError(f"{name}: {error}.") from None
    except ExchangeError as error:
        problem = str(error)
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 ({error.reason} at byte {error.start}); convert it to UTF-8"
    except Exception as error:
        # a damaged file makes each parser raise errors of its own, of any class
        problem = f"damaged, encrypted or not {ending} ({reason(error)})"
    raise ExchangeError(f"{name}: {problem}.")


def _check_size(size: int, largest: int) -> None:
    if size > largest:
        raise TooLargeError(f"its text is larger than {largest:,} bytes; split it")


def _rewrite_subtitles(text: str, ending: str, translate: _Translate) -> str:
    """Return subtitles of which only the lines below a time are translated."""
    newline = "\r\n" if "\r\n" in text else "\n"
    blocks = _CUE_BORDER.split(text.replace("\r\n", "\n"))
    for i, block in enumerate(blocks):
        number, arrow, rest = block.partition("-->")
        times, end, cue = rest.partition("\n")
        spoken = cue.rstrip("\n")
        if arrow and spoken:
            # a dash starts the words of another speaker
            speakers = re.split(r"\n(?=[ \t]*[-\u2013\u2014])", spoken)
            translated = "\n".join(_rewrite_speech(each, ending, translate) for each in speakers)
            blocks[i] = f"{number}{arrow}{times}{end}{translated}{cue[len(spoken) :]}"
    return "".join(blocks).replace("\n", newline)


def _rewrite_speech(speech: str, ending: str, translate: _Translate) -> str:
    """Return the translation of what one speaker says in a subtitle, in one line or several."""
    # without `<00:01.000>`, the time of the next word, which would stand before another one
    parts = _TAG.split(re.sub(r"<\d[^<>]*>", "", " ".join(speech.replace("\0", "").split())))
    # unlike tags, "Tom & Jerry <3" is not HTML
    parts[::2] = [html.escape(html.unescape(part), quote=False) for part in parts[::2]]
    # in one line: the next one could start another subtitle
    translated = " ".join(translate("".join(parts)).splitlines())
    if ending == ".srt":
        translated = html.unescape(translated)
    if "\n" not in speech:
        return translated
    # tags take no room, and no line ends inside one
    tags = iter(_TAG.findall(translated))
    lines = textwrap.fill(_TAG.sub("\0", translated), _LINE_WIDTH, break_long_words=False, break_on_hyphens=False)
    return re.sub("\0", lambda _: next(tags), lines)


def _rewrite_archive(content: bytes, ending: str, translate: _Translate, max_bytes: int) -> bytes:
    """Return an archive of which only the parts with text are changed."""
    output = io.BytesIO()
    size = 0
    text_size = 0
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(output, "w") as rewritten:
        _check_members(archive.namelist())
        for member in archive.infolist():
            # Not more, because a small archive can hold any amount
            with archive.open(member) as file:
                data = file.read(MAX_BYTES + 1)
            size += len(data)
            _check_size(size, MAX_BYTES)
            if re.fullmatch(_ARCHIVES[ending], member.filename):
                text_size += len(data)
                _check_size(text_size, max_bytes)
                if ending in _OFFICE:
                    data = _rewrite_office(data, _OFFICE[ending], translate)
                else:
                    # XML knows no entity of HTML
                    data = translate(data.decode("utf-8")).replace("&nbsp;", "&#160;").encode()
            rewritten.writestr(member, data)
    return output.getvalue()


def _check_members(names: list[str]) -> None:
    if len(names) > MAX_MEMBERS:
        raise TooLargeError(f"has more than {MAX_MEMBERS:,} parts; save it again in the program that wrote it")
    # programs differ in which of the two they read, and Python would log the name
    if len(set(names)) < len(names):
        raise ExchangeError("has several parts of the same name; save it again in the program that wrote it")


def _rewrite_office(part: bytes, space: str, translate: _Translate) -> bytes:
    """Return a part of an Office file with its paragraphs translated."""
    etree = import_extra("lxml.etree", "documents")
    # without its entities, which could expand to any size
    try:
        root = etree.fromstring(part, etree.XMLParser(resolve_entities=False, no_network=True))
    except etree.XMLSyntaxError as error:
        if error.code == etree.ErrorTypes.ERR_NO_MEMORY:
            raise MemoryError from None
        raise
    if root.getroottree().docinfo.doctype:
        raise ExchangeError("declares XML entities, which are not read")
    # Word has an element for this character of a word
    for each in root.iter(f"{space}noBreakHyphen"):
        each.tag = f"{space}t"
        each.text = "-"

    # by paragraph, as a text box has paragraphs inside another one, and up to a tab, line break or border of a field
    texts: dict[tuple[_Element, int], list[_Element]] = {}
    breaks = 0
    fields = ("fld", "fldSimple")
    parents = [f"{space}{name}" for name in ("p", *fields)]
    for each in root.iter(*(f"{space}{name}" for name in ("t", "tab", "br", "cr", "fldChar", *fields))):
        if each.tag != f"{space}t":
            breaks += 1
        elif each.text and (paragraph := next(each.iterancestors(*parents), None)) is not None:
            texts.setdefault((paragraph, breaks), []).append(each)
    paragraphs = {element: _Paragraph(element) for element in dict.fromkeys(element for element, _ in texts)}
    format_of = cache(_format_of)
    for (element, _), parts in texts.items():
        paragraphs[element].rewrite(_join_equal(parts, format_of), translate)
    for paragraph in paragraphs.values():
        paragraph.order_runs()
    return etree.tostring(root.getroottree(), xml_declaration=True, encoding="UTF-8", standalone=True)


def _join_equal(texts: "list[_Element]", format_of: "Callable[[_Element], object]") -> "list[_Element]":
    """Return the first of neighbouring texts of the same format, with the words of all: programs cut them anywhere.

    Args:
        format_of: `_format_of`, which remembers runs, as one may have any number of texts.
    """
    slots: list[_Element] = []
    for _, group in itertools.groupby(texts, lambda text: format_of(text.getparent())):
        slot, *others = group
        slot.text = "".join(text.text or "" for text in (slot, *others))
        slots.append(slot)
        for text in others:
            text.text = ""
    return slots


class _Paragraph:
    """A paragraph of an Office file, or a field in it, of which the texts between two breaks are translated as one.

    Its children are listed once, and put into their new order once, since it may have any number of breaks.
    """

    def __init__(self, element: "_Element"):
        self._element = element
        self._children = list(element)
        self._places = {child: place for place, child in enumerate(self._children)}

    def rewrite(self, slots: "list[_Element]", translate: _Translate) -> None:
        """Translate neighbouring texts; words keep the format and the link of those that they translate."""
        marked = [html.escape(slot.text or "", quote=False) for slot in slots]
        if len(slots) > 1:
            marked = [f'<span id="{number}">{text}</span>' for number, text in enumerate(marked)]
        translated = translate("".join(marked))
        # what is between spans belongs to the one before
        joined = re.sub(r"</span>([^<]+)", r"\1</span>", re.sub(r"^([^<]+)(<[^>]*>)", r"\2\1", translated))
        parts = [(int(number), text) for number, text in re.findall(r'<span id="(\d+)">([^<]*)</span>', joined)]
        if len(parts) != len(slots):
            parts = [(0, re.sub(r"<[^>]*>", "", translated)), *((number, "") for number in range(1, len(slots)))]

        slots = self._move([number for number, _ in parts], slots)
        for slot, (_, text) in zip(slots, parts, strict=True):
            slot.text = html.unescape(text)
            if slot.tag.startswith(_WORD):
                # else Word would remove the white space at its ends
                slot.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")

    def _move(self, numbers: list[int], slots: "list[_Element]") -> "list[_Element]":
        """Move runs with their words, and return the texts in their new order, given by their numbers.

        Two runs of one link cannot move, so that only their words change places.
        """
        places = [self._place_of(slot) for slot in slots]
        if len(set(places)) < len(places):
            return slots
        moved = [self._children[places[number]] for number in numbers]
        for place, child in zip(places, moved, strict=True):
            self._children[place] = child
            self._places[child] = place
        return [slots[number] for number in numbers]

    def _place_of(self, slot: "_Element") -> int:
        """Return the place of the child that is a text or has it inside."""
        around = itertools.chain([slot], slot.iterancestors())
        return next(self._places[element] for element in around if element in self._places)

    def order_runs(self) -> None:
        """Put the children into their new order."""
        self._element.extend(self._children)


def _format_of(run: "_Element") -> tuple[object, ...]:
    """Return the element around a run, such as a link, and the format of the run."""
    attributes = []
    elements = []
    for properties in run.iterchildren("{*}rPr"):
        attributes = [item for item in properties.items() if item[0] not in _PROOFING]
        # not as XML, in which each would have all namespaces of the file
        elements = [
            [(part.tag, part.items(), part.text) for part in child.iter()]
            for child in properties.iterchildren("{*}*")
            if not child.tag.endswith(_PROOFING)
        ]
    return run.getparent(), attributes, elements


PLAIN_TEXT = DocumentFormat(texts_of, with_texts, Document)
MARKUP = DocumentFormat(texts_of, with_texts, HtmlDocument)
