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
from pathlib import Path
from typing import TYPE_CHECKING

from ...data.foreign_files import ExchangeError, reason
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
# no two of its parts match the same, so that its time is linear
_TAG = re.compile(r"(</?[A-Za-z][^<>]*>)")
_PROOFING = ("lang", "altLang", "noProof", "dirty", "err")  # properties of a run that are not its format
# between subtitles: a blank line, or only a line break in front of a time and its number
_CUE_BORDER = re.compile(r"(\n\s*\n|\n(?=(?:\d+[ \t]*\n)?[ \t]*\d[\d:.,]*[ \t]*-->))")
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
    try:
        if ending in _ARCHIVES:
            return _rewrite_archive(content, ending, translate, max_bytes)
        _check_size(len(content), max_bytes)
        text = content.decode("utf-8")
        return (_rewrite_subtitles(text, ending, translate) if ending in _SUBTITLES else translate(text)).encode()
    except ImportError:
        raise
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
        raise ExchangeError(f"its text is larger than {largest:,} bytes; split it")


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
    translated = translate("".join(parts))
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


def _rewrite_office(part: bytes, space: str, translate: _Translate) -> bytes:
    """Return a part of an Office file with its paragraphs translated."""
    etree = import_extra("lxml.etree", "documents")
    # without its entities, which could expand to any size
    root = etree.fromstring(part, etree.XMLParser(resolve_entities=False, no_network=True))
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
    for (paragraph, _), found in texts.items():
        _rewrite_paragraph(paragraph, found, translate)
    return etree.tostring(root.getroottree(), xml_declaration=True, encoding="UTF-8", standalone=True)


def _rewrite_paragraph(paragraph: "_Element", texts: "list[_Element]", translate: _Translate) -> None:
    """Translate texts of a paragraph as one; words keep the format and the link of those that they translate."""
    slots: list[_Element] = []
    # programs cut texts anywhere: neighbours of the same format are one
    for _, group in itertools.groupby(texts, _format_of):
        slot, *others = group
        slot.text = "".join(each.text or "" for each in (slot, *others))
        slots.append(slot)
        for each in others:
            each.text = ""

    marked = [html.escape(slot.text or "", quote=False) for slot in slots]
    if len(slots) > 1:
        marked = [f'<span id="{number}">{text}</span>' for number, text in enumerate(marked)]
    translated = translate("".join(marked))
    # what is between spans belongs to the one before
    joined = re.sub(r"</span>([^<]+)", r"\1</span>", re.sub(r"^([^<]+)(<[^>]*>)", r"\2\1", translated))
    parts = [(int(number), text) for number, text in re.findall(r'<span id="(\d+)">([^<]*)</span>', joined)]
    if len(parts) != len(slots):
        parts = [(0, re.sub(r"<[^>]*>", "", translated)), *((number, "") for number in range(1, len(slots)))]

    # runs move with their words; two runs of one link cannot, and only their texts change places
    children = list(paragraph)
    place_of = {child: place for place, child in enumerate(children)}
    places = [next(place_of[each] for each in (slot, *slot.iterancestors()) if each in place_of) for slot in slots]
    if len(set(places)) == len(places):
        moved = [children[places[number]] for number, _ in parts]
        for place, child in zip(places, moved, strict=True):
            children[place] = child
        paragraph.extend(children)
        slots = [slots[number] for number, _ in parts]
    for slot, (_, text) in zip(slots, parts, strict=True):
        slot.text = html.unescape(text)
        if slot.tag.startswith(_WORD):
            # else Word would remove the white space at its ends
            slot.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")


def _format_of(text: "_Element") -> tuple[object, ...]:
    """Return the element around the run of a text, such as a link, and the format of the run."""
    tostring = import_extra("lxml.etree", "documents").tostring
    run = text.getparent()
    assert run is not None
    attributes = []
    elements = []
    for properties in run.iterchildren("{*}rPr"):
        attributes = [item for item in properties.items() if item[0] not in _PROOFING]
        elements = [tostring(each) for each in properties.iterchildren("{*}*") if not each.tag.endswith(_PROOFING)]
    return run.getparent(), attributes, elements


PLAIN_TEXT = DocumentFormat(texts_of, with_texts, Document)
MARKUP = DocumentFormat(texts_of, with_texts, HtmlDocument)
