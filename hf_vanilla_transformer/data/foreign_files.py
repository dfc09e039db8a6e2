"""Files of other programs: the formats that `import` reads, by their endings, and how their encoding is detected."""

import re
from collections.abc import Sequence

from ..errors import UserError
from ..files import import_extra

SEPARATORS = "\t,;|"
# of Windows, Unix and the Mac, with the languages that are written in them
_CODE_PAGES = {
    "iso8859_2": "bs cs hr hu pl ro sk sl sq sr",
    "cp1250": "bs cs hr hu pl ro sk sl sq sr",
    "cp1251": "ba be bg ce cv kk ky mk mn os ru sah sr tg tt udm uk uz",
    "koi8_r": "ru",
    "cp1253": "el",
    "cp1254": "az tr uz",
    "cp1255": "he yi",
    "cp1256": "ar ckb fa ps sd ug ur",
    "cp1257": "et lt lv",
    "cp1258": "vi",
    "cp874": "th",
    "cp932": "ja",
    "cp949": "ko",
    "gb18030": "zh",
    "big5": "zh",
}
_WESTERN = ["cp1252", "mac_roman", "cp850"]  # code pages of all other languages
SHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
TABLES = (".csv", ".tsv", ".tab", ".txt")
CATALOGUES = (".po", ".pot")
MEMORIES = (".tmx",)
XLIFF = (".xlf", ".xliff", ".sdlxliff", ".mqxliff")
ANNOTATIONS = (".eaf",)
JSON = (".json", ".jsonl")
FORMATS = (*SHEETS, *TABLES, *MEMORIES, *CATALOGUES, *XLIFF, *ANNOTATIONS, *JSON)


class ExchangeError(UserError):
    """A file that cannot be used; the message says why, without its name."""


class TooLargeError(ExchangeError):
    """A file that takes more memory or time than there is for it."""


def reason(error: Exception) -> str:
    """Return what a parser says of a damaged file, on one line and without long quotations from it."""
    return " ".join(str(error)[:300].split()) or type(error).__name__


def decode(content: bytes, encoding: str | None, languages: Sequence[str]) -> tuple[str, str]:
    """Return text and its encoding: the given one, that of its byte order mark, UTF-8, or the most likely one.

    Args:
        languages: those of the text; without any, it may be in every one.
    """
    for mark, name in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if content.startswith(mark):
            encoding = encoding or name
    try:
        return content.decode(encoding or "utf-8"), encoding or "utf-8"
    except LookupError:
        raise ExchangeError(f"Python knows no encoding {encoding!r}") from None
    except UnicodeDecodeError as error:
        if encoding:
            raise ExchangeError(f"not {encoding} ({error.reason} at byte {error.start}); give --encoding") from None
    # only a part, since its time grows with the text, but whole lines: a truncated character rules its encoding out
    sample = content[: content.rfind(b"\n", 0, 1 << 18) + 1] or content[: 1 << 18]
    bases = {re.split("[-_]", language.lower())[0] for language in languages}
    likely = [page for page, users in _CODE_PAGES.items() if bases & set(users.split())] or _WESTERN
    likely = likely if languages else [*_WESTERN, *_CODE_PAGES]
    detect = import_extra("charset_normalizer", "import").from_bytes
    # among all encodings, few lines of Hebrew look as good in Thai
    pages = detect(sample, cp_isolation=likely)
    match = min(pages, key=lambda page: (page.chaos, likely.index(page.encoding)), default=None)
    match = match or detect(sample).best()
    if match is None:
        raise ExchangeError("neither UTF-8 nor any encoding that can be recognised; give --encoding")
    try:
        return content.decode(match.encoding), match.encoding
    except UnicodeDecodeError:
        raise ExchangeError(f"neither UTF-8 nor {match.encoding}, as its start suggests; give --encoding") from None
