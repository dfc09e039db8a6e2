"""Take the texts out of documents and put their translations in: plain text, web pages, subtitles, Office, e-books.

Everything else in a file stays as it is, byte by byte in the text formats. Office files and e-books are archives of
XML, of which only the parts with text are parsed.
"""

import codecs
import html
import io
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ...data.foreign_files import ExchangeError, TooLargeError, reason
from ...inference.segments import Document, DocumentFormat
from .html import HtmlDocument, follow_language
from .office import declare_language, parse, rewrite_paragraphs, to_bytes
from .subtitles import WEB, rewrite_subtitles

if TYPE_CHECKING:
    from lxml.etree import _Element

PLAIN = ".txt"  # each line is a paragraph; the texts of all other formats are HTML
_PAGES = (".html", ".htm")
_SUBTITLES = (".srt", WEB)
_BOOK = ".epub"
_PICTURES = r"(diagrams/(data|drawing)|charts/chart(Ex)?)\d*"  # SmartArt, which has its texts twice, and charts
# their parts with text
_ARCHIVES = {
    ".docx": rf"word/(document\d*|header\d*|footer\d*|footnotes|endnotes|{_PICTURES})\.xml",
    ".pptx": rf"ppt/((slides|notesSlides)/[^/]+|{_PICTURES})\.xml",
    _BOOK: r".+\.(?i:x?html?)",
}
_DECLARING = re.compile(r"word/(styles|settings)\.xml|docProps/core\.xml")  # others that name the language
# Of e-books: the table of contents of EPUB 2, and the titles in it and in the metadata
_CONTENTS = re.compile(r".+\.(ncx|opf)", re.IGNORECASE)
_TITLES = (
    "{http://purl.org/dc/elements/1.1/}title",
    *(f"{{http://www.daisy.org/z3986/2005/ncx/}}{name}/{{*}}text" for name in ("docTitle", "navLabel")),
)
_BOOK_PAGES = ("application/xhtml+xml", "text/html", "text/x-oeb1-document")
ENDINGS = (PLAIN, *_PAGES, *_SUBTITLES, *_ARCHIVES)
MAX_BYTES = 1 << 26  # of an unpacked file
MAX_MEMBERS = 10_000  # of an archive; each takes time, even if it is empty
# what no XML may contain: a model can generate any character
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# the encoding that a page declares near its start, if it is another one
_ENCODING = re.compile(
    r"""(<\?xml\b[^<>]*?\bencoding\s*=\s*["']|<meta\b[^<>]*?\bcharset\s*=\s*["']?)(?!utf-8\b)([\w.:-]+)""", re.I
)
_DECLARATION_BYTES = 4096
# what browsers take these encodings for
_BROWSERS = {"ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "gb2312": "gb18030", "gbk": "gb18030"}
_BROWSERS |= {"shift_jis": "cp932", "euc_kr": "cp949"}
# names that Python does not know
_BROWSERS |= {"x-sjis": "cp932", "x-gbk": "gb18030", "x-euc-jp": "euc_jp", "windows-874": "cp874"}
_BROWSERS |= {"iso-8859-8-i": "iso8859-8", "x-mac-roman": "mac_roman", "x-mac-cyrillic": "mac_cyrillic"}
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


def with_texts(content: bytes, name: str, texts: Iterable[str], language: str | None = None) -> bytes:
    """Return a document with other texts in place of those that `texts_of` returns.

    Args:
        language: that of the texts, for documents that declare it outside of them.
    """
    remaining = iter(texts)
    return _rewrite(content, name, lambda _: next(remaining), MAX_BYTES, language)


def _rewrite(content: bytes, name: str, translate: _Translate, max_bytes: int, language: str | None = None) -> bytes:
    ending = ending_of(name)

    def translate_cleanly(text: str) -> str:
        return _NOT_XML.sub("", translate(text))

    try:
        if ending in _ARCHIVES:
            return _rewrite_archive(content, ending, translate_cleanly, max_bytes, language)
        _check_size(len(content), max_bytes)
        if ending in _SUBTITLES:
            return rewrite_subtitles(_decode(content, False), ending, translate_cleanly, language).encode()
        return translate(_decode(content, ending != PLAIN)).encode()
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


def _decode(content: bytes, is_page: bool) -> str:
    """Return a text in UTF-8, in UTF-16, or in the encoding of a page, which declares UTF-8 now.

    Raises:
        UnicodeDecodeError: if it is in none of them.
    """
    if b"\0" in content[:2]:
        # without the mark, the zeros would look like UTF-8
        content = (codecs.BOM_UTF16_BE if content.startswith(b"\0") else codecs.BOM_UTF16_LE) + content
    declaration = _ENCODING.search(content[:_DECLARATION_BYTES].decode("latin-1")) if is_page else None
    declared = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
    if declaration and declared == "utf-8":
        named = declaration[2].lower()
        with suppress(LookupError):
            declared = codecs.lookup(_BROWSERS.get(named, named)).name
    declared = _BROWSERS.get(declared, declared)
    try:
        # one with escape sequences, such as ISO-2022-JP, looks like UTF-8
        text = content.decode("utf-8" if b"\x1b" not in content else declared)
    except UnicodeDecodeError:
        text = content.decode(declared)
    if is_page:
        text = _ENCODING.sub(r"\1utf-8", text[:_DECLARATION_BYTES]) + text[_DECLARATION_BYTES:]
    return text


def _rewrite_archive(
    content: bytes, ending: str, translate: _Translate, max_bytes: int, language: str | None
) -> bytes:
    """Return an archive of which only the parts with text are changed."""
    output = io.BytesIO()
    size = 0
    text_size = 0
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(output, "w") as rewritten:
        _check_members(archive.namelist())
        pages = _pages_of(archive) if ending == _BOOK else set()
        for member in archive.infolist():
            data = _read(archive, member.filename)
            size += len(data)
            _check_size(size, MAX_BYTES)
            if member.filename in pages or re.fullmatch(_ARCHIVES[ending], member.filename):
                text_size += len(data)
                _check_size(text_size, max_bytes)
                data = _rewrite_part(data, ending, translate, language)
            elif ending == _BOOK and _CONTENTS.fullmatch(member.filename):
                text_size += len(data)
                _check_size(text_size, max_bytes)
                data = _rewrite_titles(data, translate, language)
            elif language and _DECLARING.fullmatch(member.filename):
                data = _with_language(data, language)
            rewritten.writestr(member, data)
    return output.getvalue()


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a member, but not more than may be used, because a small archive can hold any amount."""
    with archive.open(name) as file:
        return file.read(MAX_BYTES + 1)


def _rewrite_part(part: bytes, ending: str, translate: _Translate, language: str | None) -> bytes:
    """Return a part of an archive with its texts translated."""
    if ending == _BOOK:
        # XML knows no entity of HTML
        return translate(_decode(part, True)).replace("&nbsp;", "&#160;").encode()
    root = parse(part)
    rewrite_paragraphs(root, translate)
    if language:
        declare_language(root, language)
    return to_bytes(root)


def _rewrite_titles(part: bytes, translate: _Translate, language: str | None) -> bytes:
    """Return the table of contents or the metadata of a book with its titles translated.

    One that is damaged stays as it is: programs show such a book without it.
    """
    try:
        root = parse(part)
    except (SyntaxError, ExchangeError):
        # the first is lxml's
        return part
    for title in [title for path in _TITLES for title in root.iterfind(f".//{path}")]:
        if any(map(str.isalpha, title.text or "")):
            title.text = html.unescape(translate(html.escape(title.text, quote=False)))
    if language:
        _declare(root, language)
    return to_bytes(root)


def _with_language(part: bytes, language: str) -> bytes:
    """Return the styles or the metadata of a document in another language."""
    root = parse(part)
    _declare(root, language)
    return to_bytes(root)


def _declare(root: "_Element", language: str) -> None:
    """Let a part of a document name its new language."""
    declare_language(root, language)
    declared = next(root.iter("{http://purl.org/dc/elements/1.1/}language"), None)
    if declared is not None:
        declared.text = follow_language(declared.text or "", language)


def _pages_of(book: zipfile.ZipFile) -> set[str]:
    """Return the names of the pages in the manifest of a book, whatever their endings; none if it has no manifest."""
    names = set(book.namelist())
    if "META-INF/container.xml" not in names:
        return set()
    root = parse(_read(book, "META-INF/container.xml"))
    package = next((file.get("full-path") for file in root.iter("{*}rootfile")), None)
    if package not in names:
        return set()
    items = parse(_read(book, package)).iter("{*}item")
    paths = [unquote(item.get("href", "")) for item in items if item.get("media-type") in _BOOK_PAGES]
    return {posixpath.normpath(posixpath.join(posixpath.dirname(package), path)) for path in paths}


def _check_members(names: list[str]) -> None:
    if len(names) > MAX_MEMBERS:
        raise TooLargeError(f"has more than {MAX_MEMBERS:,} parts; save it again in the program that wrote it")
    # programs differ in which of the two they read, and Python would log the name
    if len(set(names)) < len(names):
        raise ExchangeError("has several parts of the same name; save it again in the program that wrote it")


PLAIN_TEXT = DocumentFormat(texts_of, with_texts, Document)
MARKUP = DocumentFormat(texts_of, with_texts, HtmlDocument)
