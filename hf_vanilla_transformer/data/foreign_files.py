"""Files of other programs: the formats that `import` reads, by their endings, and how their encoding is detected."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from unicodedata import category

from ..errors import UserError
from ..files import import_extra

SEPARATORS = "\t,;|"
# of Windows, Unix, the Mac and DOS, with the languages that are written in them; the first is the most likely one
_CODE_PAGES = (
    # Windows' page differs in letters of Polish, and elsewhere by characters that have no meaning in the other one
    ("cp1250", "pl"),
    ("iso8859_2", "bs cs hr hu pl ro sk sl sq sr"),
    ("cp1250", "bs cs hr hu ro sk sl sq sr"),
    ("cp852", "bs cs hr hu pl ro sk sl sq sr"),
    ("cp1251", "ba be bg ce cv kk ky mk mn os ru sah sr tg tt udm uk uz"),
    ("koi8_r", "ru"),
    ("koi8_u", "uk"),
    ("cp866", "be ru uk"),
    ("cp1253", "el"),
    ("cp1254", "az tr uz"),
    ("cp1255", "he yi"),
    ("cp1256", "ar ckb fa ps sd ug ur"),
    ("cp1257", "et lt lv"),
    ("cp1258", "vi"),
    ("cp874", "th"),
    ("cp932", "ja"),
    ("cp949", "ko"),
    ("gb18030", "zh"),
    ("big5", "zh"),
)
_WESTERN = ("cp1252", "mac_roman", "cp850")  # code pages of all other languages
_SAMPLE = 1 << 18  # bytes by which an encoding is recognised
_FOREIGN = re.compile(r"[^\x01-\x7f]")
SHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
TABLES = (".csv", ".tsv", ".tab", ".txt")
CATALOGUES = (".po", ".pot")
MEMORIES = (".tmx",)
XLIFF = (".xlf", ".xliff", ".sdlxliff", ".mqxliff", ".mxliff", ".txlf")
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


def decode(content: bytes, encoding: str | None, languages: Sequence[str], declared: str = "") -> tuple[str, str]:
    """Return text and its encoding: the given one, one of Unicode, or the most likely one.

    Damaged characters are U+FFFD, if the encoding is certain in spite of them.

    Args:
        languages: those of the text; without any, it may be in every one.
        declared: the encoding that the file itself names, which may be none or wrong.
    """
    # by a byte order mark or, without one, by the zeros among the first bytes
    unicode = json.detect_encoding(content)
    if unicode != "utf-8":
        encoding = encoding or unicode
    try:
        return content.decode(encoding or "utf-8"), encoding or "utf-8"
    except LookupError:
        raise ExchangeError(f"Python knows no encoding {encoding!r}") from None
    except UnicodeDecodeError as error:
        text = content.decode(encoding or "utf-8", "replace")
        # in text of another encoding, hardly a character is one of UTF-8 by chance
        if 2 * text.count("\ufffd") < len(_FOREIGN.findall(text)):
            return text, encoding or "utf-8"
        if encoding:
            raise ExchangeError(f"not {encoding} ({error.reason} at byte {error.start}); give --encoding") from None
    # any text: some encodings are none, or have errors of their own
    with suppress(UnicodeError, LookupError):
        return content.decode(declared), declared
    # whole lines, since a truncated character would count as damaged
    sample = content[: content.rfind(b"\n", 0, _SAMPLE) + 1] or content[:_SAMPLE]
    oddities = {page: _oddities(sample.decode(page, "replace")) for page in code_pages(languages)}
    best = min(oddities, key=oddities.__getitem__, default="utf-8")
    if not oddities or 2 * oddities[best] > len(_FOREIGN.findall(sample.decode(best, "replace"))):
        detect = import_extra("charset_normalizer", "import").from_bytes
        pages = [*_WESTERN, *dict(_CODE_PAGES)]
        matches = detect(sample, cp_isolation=pages)
        match = min(matches, key=lambda page: (page.chaos, pages.index(page.encoding)), default=detect(sample).best())
        if match is None:
            raise ExchangeError("neither UTF-8 nor any encoding that can be recognised; give --encoding")
        best = match.encoding
    return content.decode(best, "replace"), best


def code_pages(languages: Sequence[str]) -> list[str]:
    """Return the encodings in which text in some languages may be, besides those of Unicode, the most likely first."""
    bases = {re.split("[-_]", language.lower())[0] for language in languages}
    pages = [page for page, users in _CODE_PAGES if bases & set(users.split())]
    return list(dict.fromkeys(pages)) or list(_WESTERN if languages else ())


def _oddities(text: str) -> int:
    """Return how many characters stand where no language has them, as in text that was read in a wrong encoding."""
    count = sum(map(len, re.findall(r"[\xa1-\u024f\u02b0-\u02ff\u2010-\u2bff\ufb01\ufb02]{4,}", text)))
    for match in _FOREIGN.finditer(text):
        character = match[0]
        start, end = match.span()
        before = text[start - 1 : start]
        behind = text[end : end + 1]
        next_but_one = text[end + 1 : end + 2]
        kind = category(character)
        if character == "\ufffd" or (kind[0] == "C" and character != "\xad"):
            count += 1
        elif "\u4e00" <= character <= "\u9fff":
            # neither one of the simplified nor one of the 5,401 commonest traditional characters
            count += not (character.encode("gb2312", "ignore") or b"" < character.encode("big5", "ignore") < b"\xc9")
        elif character.isalpha():
            # inside a word that is neither a name nor in small letters or capitals, or an ordinal in no number
            count += character.islower() and behind.isupper()
            count += character.isupper() and (before.islower() or (behind.isupper() and next_but_one.islower()))
            count += kind == "Lm" or (character in "ªº" and before.isalpha())
        elif behind.isalpha():
            # hyphens, dashes, apostrophes, and the dot of Catalan
            is_inside = before.isalpha() and not ("\u2010" <= character <= "\u2019" or character == "·")
            count += is_inside or (kind[0] == "S" and character != "°") or (kind == "Po" and character not in "¿¡…•·")
        elif before.isalpha():
            count += kind in ("Sk", "Sm", "Sc")
    return count
