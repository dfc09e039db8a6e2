"""Read files in which people exchange translations, in a process of its own: `python -m ...exchange FILE ...`.

Spreadsheets, translation memories, catalogues and annotations come from anywhere. Whatever a damaged or hostile file
does to its parser happens in this process, whose memory and time are limited; `importing.py` starts it. Each line of
its output is a JSON list: what it is, and its content.

    ["note", "encoding: cp1252"]       for the user
    ["table", "Sheet1"]                a table starts
    ["row", ["dog", "mbwa"]]           cells of the table, or an object with named texts
    ["pair", "dog", "mbwa"]            a pair in the two languages
    ["markup"]                         inline tags were removed from a text of the next pair
    ["dropped", "fuzzy"]               why an entry of the file is left out
    ["error", "line 3: not JSON"]      the last line, if the file cannot be used
"""

import csv
import gettext
import gzip
import io
import json
import re
import signal
import sys
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...data.foreign_files import (
    ANNOTATIONS,
    CATALOGUES,
    JSON,
    MEMORIES,
    SEPARATORS,
    SHEETS,
    TABLES,
    ExchangeError,
    decode,
    reason,
)
from ...files import import_extra

if TYPE_CHECKING:
    from lxml.etree import _Element
    from translate.storage.xliff_common import XliffUnit

MAX_BYTES = 1 << 29  # of an unpacked file; larger text is plain text, which `train` reads directly
_BASE_MEMORY = 200 << 20
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
# TMX and XLIFF mark code of the original document with these; their content is not text
_NATIVE_CODE = {"bpt", "ept", "ph", "it", "ut", "x", "bx", "ex", "pc-start", "cp", "sc", "ec"}
# of XLIFF 1.2, and of Trados: the translation is a draft
_DRAFTS = {"new", "needs-translation", "needs-adaptation", "needs-l10n", "needs-review-translation"}
_DRAFTS |= {"Draft", "RejectedTranslation", "RejectedSignOff"}
Line = list[object]


def matches(tag: str | None, language: str) -> bool:
    """Return whether a language tag of a file, such as `en_US`, is a language or one of its variants."""
    found = (tag or "").lower().replace("_", "-")
    wanted = language.lower().replace("_", "-")
    return found == wanted or found.startswith(f"{wanted}-")


def format_of(path: str) -> str:
    """Return the ending of a file's name that tells its format, in lower case and without .gz."""
    return Path(path.lower().removesuffix(".gz")).suffix


def _unpack(path: str) -> bytes:
    """Return the content of a file, uncompressed or compressed as .gz.

    Raises:
        ExchangeError: if it is larger than `MAX_BYTES`, or damaged.
    """
    try:
        with gzip.open(path) if path.lower().endswith(".gz") else open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ExchangeError(f"truncated or not a .gz file ({reason(error)}); download it again") from None
    if len(content) > MAX_BYTES:
        raise ExchangeError(f"larger than {MAX_BYTES >> 20} MiB; split it")
    return content


def _unpacked_size(content: bytes) -> int:
    """Return the unpacked size of a spreadsheet in bytes; one that is no archive (.xls) is not packed.

    Raises:
        ExchangeError: if it is larger than `MAX_BYTES`, or damaged.
    """
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return len(content)
    size = 0
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist():
                # the size that an archive states may be wrong: read to the end
                member.file_size = 1 << 62
                with archive.open(member) as file:
                    while size <= MAX_BYTES and (block := file.read(1 << 20)):
                        size += len(block)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error, OSError) as error:
        raise ExchangeError(f"damaged or encrypted ({reason(error)})") from None
    if size > MAX_BYTES:
        raise ExchangeError(f"larger than {MAX_BYTES >> 20} MiB when unpacked; split it")
    return size


def _check_xml(content: bytes) -> None:
    """Check that XML is well formed and declares no entities, which could expand to any size, before it is parsed.

    Raises:
        ExchangeError: otherwise.
    """
    sax = import_extra("defusedxml.sax", "import")
    from xml.sax import SAXException
    from xml.sax.handler import ContentHandler

    try:
        # a DOCTYPE may name the format's DTD, which is never loaded
        sax.parseString(content, ContentHandler(), forbid_external=False)
    except import_extra("defusedxml", "import").DefusedXmlException:
        raise ExchangeError("declares XML entities, which are not read") from None
    except (SAXException, ValueError, LookupError) as error:
        raise ExchangeError(f"damaged XML ({reason(error)})") from None


def _sheet_rows(content: bytes) -> Iterator[Line]:
    """Yield the sheets of a spreadsheet and their rows."""
    workbook = import_extra("python_calamine", "import").load_workbook(io.BytesIO(content))
    for name in workbook.sheet_names:
        yield ["table", name]
        for row in workbook.get_sheet_by_name(name).to_python(skip_empty_area=True):
            yield ["row", [_cell(value) for value in row]]


def _cell(value: object) -> str:
    """Return the text of a cell; whole numbers have no decimal point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _table_rows(text: str) -> Iterator[Line]:
    """Yield the rows of a table, read in the way that cuts most rows into equally many cells."""
    csv.field_size_limit(MAX_BYTES)

    def cut(dialect: dict[str, Any]) -> Iterator[list[str]]:
        return csv.reader(io.StringIO(text, newline=""), **dialect)

    def regularity(dialect: dict[str, Any]) -> tuple[int, int]:
        try:
            lengths = Counter(len(row) for row in cut(dialect) if len(row) > 1)
        except csv.Error:
            return (0, 0)
        # one mistake in a table does not make the quotation marks around all of its cells text
        is_quoted = 2 * text.count(f'"{dialect["delimiter"]}"') > sum(lengths.values())
        if "quoting" in dialect and is_quoted:
            return (0, 0)
        return max(((count, length) for length, count in lengths.items()), default=(0, 0))

    # Quotation marks that are not those of a table belong to the text; one that is never closed would swallow rows.
    ways: tuple[dict[str, Any], ...] = ({"strict": True}, {"quoting": csv.QUOTE_NONE}, {})
    dialects = [{"delimiter": each, **way} for way in ways for each in SEPARATORS if each in text]
    best = max(dialects, key=regularity, default=None)
    if best is None or regularity(best) == (0, 0):
        raise ExchangeError("a single column: source and target must be separated by tabs, commas or semicolons")
    quotes = "; quotation marks are text" if "quoting" in best else ""
    yield ["note", f"separator: {best['delimiter']!r}{quotes}"]
    yield ["table", ""]
    for row in cut(best):
        if row:
            yield ["row", row]


def _json_rows(text: str, lines: bool) -> Iterator[Line]:
    """Yield the objects of JSON lines, of a list, or of the only list in an object."""
    yield ["table", ""]
    # many programs write JSON lines to a file called .json
    lines = lines or re.match(r"\s*\{.*\}\s*\n\s*\{", text) is not None
    # only a newline ends a line: JSON may hold other line breaks, such as U+2028
    for number, content in enumerate(text.split("\n") if lines else [text], start=1):
        if lines and not content.strip():
            continue
        where = f"line {number}: " if lines else ""
        try:
            rows = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ExchangeError(f"{where}not valid JSON ({reason(error)})") from None
        if lines:
            rows = [rows]
        elif isinstance(rows, dict):
            rows = next((value for value in rows.values() if isinstance(value, list)), None)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ExchangeError(f"{where}no list of objects with a text for each language")
        for row in rows:
            yield ["row", row]


def _plain(element: "_Element") -> tuple[str, bool]:
    """Return the text of a segment without inline codes, and whether it had any."""
    parts = [element.text or ""]
    coded = False
    for child in element:
        name = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else "x"  # comments
        if name not in _NATIVE_CODE:
            parts.append(_plain(child)[0])
        elif child.get("ctype") == "lb":
            parts.append("\n")
        coded = True
        parts.append(child.tail or "")
    return "".join(parts), coded


def _pair(source: "_Element | None", target: "_Element | None") -> Iterator[Line]:
    """Yield the pair of two segments, or that one is missing."""
    if source is None or target is None:
        yield ["dropped", "untranslated"]
        return
    texts = []
    for segment in (source, target):
        text, coded = _plain(segment)
        texts.append(text)
        if coded:
            yield ["markup"]
    yield ["pair", *texts]


def _memory_pairs(content: bytes, languages: tuple[str, str]) -> Iterator[Line]:
    """Yield the pairs of a translation memory (TMX)."""
    store = import_extra("translate.storage.tmx", "import").tmxfile(io.BytesIO(content))
    for unit in store.units:
        segments: list[_Element | None] = []
        found = {node.get(_XML_LANG) or node.get("lang"): node for node in unit.getlanguageNodes()}
        for language in languages:
            # its own tag first: a memory may hold both `pt` and `pt-BR`
            tags = sorted((tag for tag in found if matches(tag, language)), key=len)
            segments.append(found[tags[0]].find(unit.namespaced("seg")) if tags else None)
        if not any(segment is not None for segment in segments):
            yield ["dropped", "other languages"]
            continue
        yield from _pair(*segments)


def _xliff_pairs(content: bytes, languages: tuple[str, str]) -> Iterator[Line]:
    """Yield the pairs of an XLIFF file, version 1.2 or 2."""
    version = 2 if b"urn:oasis:names:tc:xliff:document:2" in content[:4096] else 1
    if version == 2:
        store = import_extra("translate.storage.xliff2", "import").Xliff2File(io.BytesIO(content))
    else:
        store = import_extra("translate.storage.xliff", "import").Xliff1File(io.BytesIO(content))
    for unit in store.units:
        # an element around it, the file in version 1.2 and the whole document in version 2, names the languages
        names = ("@srcLang", "@trgLang") if version == 2 else ("@source-language", "@target-language")
        tags = [next(iter(unit.xmlelement.xpath(f"ancestor::*/{name}")), None) for name in names]
        for source, target, is_draft in _segments(unit, version):
            if is_draft:
                yield ["dropped", "fuzzy"]
            elif _are(tags, languages):
                yield from _pair(source, target)
            elif _are(tags, languages[::-1]):
                yield from _pair(target, source)
            else:
                yield ["dropped", "other languages"]


def _are(tags: Sequence[str | None], languages: Sequence[str]) -> bool:
    """Return whether language tags are those of some languages; a missing one may be any."""
    return all(tag is None or matches(tag, language) for tag, language in zip(tags, languages, strict=True))


def _segments(unit: "XliffUnit", version: int) -> Iterator[tuple["_Element | None", "_Element | None", bool]]:
    """Yield source, target and whether the translation is a draft, for each segment of an XLIFF unit."""
    source = unit.get_source_dom()
    target = unit.getlanguageNode(lang=None, index=1)
    if version == 2:
        yield source, target, unit.isfuzzy()
        return
    # not isfuzzy(), for which everything is a draft that is not marked as approved, as it is in few files
    is_draft = target is not None and (
        target.get("state") in _DRAFTS or target.get("state-qualifier") == "fuzzy-match"
    )
    # Trados writes a paragraph per unit, with its sentences and their states
    sentences, translations = (
        {mark.get("mid"): mark for mark in unit.xmlelement.iterfind(path) if mark.get("mtype") == "seg"}
        for path in (f".//{{*}}{name}//{{*}}mrk" for name in ("seg-source", "target"))
    )
    states = {segment.get("id"): segment.get("conf") for segment in unit.xmlelement.iterfind(".//{*}seg-defs/{*}seg")}
    for number, sentence in sentences.items():
        yield sentence, translations.get(number), is_draft or states.get(number) in _DRAFTS
    if not sentences:
        yield source, target, is_draft


def _catalogue_pairs(content: bytes, languages: tuple[str, str]) -> Iterator[Line]:
    """Yield the pairs of a catalogue of messages (PO), whose messages are in the source language."""
    store = import_extra("translate.storage.pypo", "import").pofile(io.BytesIO(content))
    tag = store.gettargetlanguage()
    # only the base language counts, since catalogues name variants in many ways: zh_CN, zh-Hans, sr@latin
    base = re.split("[-_@]", tag.lower())[0] if tag else None
    wanted = [re.split("[-_@]", language.lower())[0] for language in languages]
    if base and base not in wanted:
        raise ExchangeError(f"a catalogue in {tag}, not in {languages[0]} or {languages[1]}")
    into_source = base == wanted[0] != wanted[1]
    try:
        form = gettext.c2py(store.getheaderplural()[1] or "n != 1")
    except ValueError:
        # as in English, if the rule of the catalogue is none
        form = gettext.c2py("n != 1")
    for unit in store.units:
        if unit.isheader() or unit.isobsolete():
            continue
        if unit.isfuzzy():
            yield ["dropped", "fuzzy"]
            continue
        sources = [str(text) for text in getattr(unit.source, "strings", [unit.source])]
        targets = [str(text) for text in getattr(unit.target, "strings", [unit.target])]
        # singular with the form of 1, plural with that of 5; other forms have no message of their own
        pairs = [(sources[0], targets[form(1) % len(targets)]), (sources[-1], targets[form(5) % len(targets)])]
        for source, target in dict.fromkeys(pairs):
            if not target.strip():
                yield ["dropped", "untranslated"]
            else:
                yield ["pair", target, source] if into_source else ["pair", source, target]


def _annotation_pairs(content: bytes, languages: Sequence[str]) -> Iterator[Line]:
    """Yield the pairs of an ELAN file: annotations of two tiers of one speaker with the same start and end.

    A tier is that of a language if its name, up to "@", or its language is that of the language.
    """
    # pympi reads only files, and the given one may be compressed
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "unpacked.eaf")
        file.write_bytes(content)
        elan = import_extra("pympi", "import").Eaf(file, suppress_version_warning=True)
    # a part of an annotation may begin and end between two times, at a place that has none
    time = 0.0
    for slot, value in elan.timeslots.items():
        time = time + 1e-6 if value is None else value
        elan.timeslots[slot] = time
    found: list[dict[tuple[float, float, str], str]] = []
    for language in languages:
        texts: dict[tuple[float, float, str], str] = {}
        for tier in elan.get_tier_names():
            name, _, speaker = tier.partition("@")
            tag = elan.tiers[tier][2].get("LANG_REF")
            if language in (tier, name) or matches(name, language) or matches(tag, language):
                for start, end, text, *_ in elan.get_annotation_data_for_tier(tier):
                    key = (start, end, speaker)
                    texts[key] = f"{texts[key]} {text}" if key in texts else text
        if not texts:
            tiers = ", ".join(sorted(elan.get_tier_names())) or "none"
            raise ExchangeError(f"no tier {language} among its tiers ({tiers}); give --columns")
        found.append(texts)
    source, target = found
    for key in sorted(source.keys() | target.keys()):
        if key in source and key in target:
            yield ["pair", source[key], target[key]]
        else:
            yield ["dropped", "untranslated"]


def _aligned_lines(texts: Sequence[str]) -> Iterator[Line]:
    """Yield the lines of two texts, aligned."""
    source, target = (text.removesuffix("\n").split("\n") for text in texts)
    if len(source) != len(target):
        raise ExchangeError(f"the two files have {len(source):,} and {len(target):,} lines")
    for pair in zip(source, target, strict=True):
        yield ["pair", *pair]


def read(
    paths: Sequence[str], languages: tuple[str, str], tiers: Sequence[str], encoding: str | None
) -> Iterator[Line]:
    """Yield the lines of output for a file, or for two that are aligned line by line.

    Args:
        tiers: the names of two tiers of an ELAN file, if they are not those of the languages.

    Raises:
        ExchangeError: if it cannot be used.
    """
    contents = [_unpack(path) for path in paths]
    kind = format_of(paths[0])
    is_plain = len(paths) == 2 or kind in (*TABLES, *JSON)
    _limit_memory(_unpacked_size(contents[0]) if kind in SHEETS else sum(map(len, contents)))

    if is_plain:
        texts = []
        for path, content in zip(paths, contents, strict=True):
            text, found = decode(content, encoding, languages)
            texts.append(text.removeprefix("\ufeff"))
            if found != "utf-8":
                which = f" of {Path(path).name}" if len(paths) == 2 else ""
                yield ["note", f"encoding{which}: {found}"]
        if len(paths) == 2:
            yield from _aligned_lines(texts)
        elif kind in TABLES:
            yield from _table_rows(texts[0])
        else:
            yield from _json_rows(texts[0], kind == ".jsonl")
    elif kind in SHEETS:
        yield from _sheet_rows(contents[0])
    elif kind in CATALOGUES:
        yield from _catalogue_pairs(contents[0], languages)
    else:
        _check_xml(contents[0])
        if kind in ANNOTATIONS:
            yield from _annotation_pairs(contents[0], tiers or languages)
        elif kind in MEMORIES:
            yield from _memory_pairs(contents[0], languages)
        else:
            yield from _xliff_pairs(contents[0], languages)


def _limit_memory(size: int) -> None:
    """Limit the memory of this process to ten times the unpacked size of the file, and its time as well."""
    try:
        import resource
    except ImportError:  # on Windows
        return
    seconds = 20 + (size >> 17)
    for limit, value in ((resource.RLIMIT_DATA, _BASE_MEMORY + 10 * size), (resource.RLIMIT_CPU, seconds)):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
    # a parser that runs out of memory may wait for a lock indefinitely, and use no time of the processor
    signal.alarm(2 * seconds)


def lines(
    paths: Sequence[str], languages: tuple[str, str], tiers: Sequence[str], encoding: str | None
) -> Iterator[Line]:
    """Yield the lines of output as `read` does, and an error as the last one."""
    try:
        yield from read(paths, languages, tiers, encoding)
        return
    except (ExchangeError, ImportError) as error:
        problem = str(error)
    except MemoryError:
        problem = "needs too much memory: it is damaged or must be split"
    except Exception as error:
        # a damaged file makes each parser raise errors of its own, of any class
        problem = f"damaged or not {format_of(paths[0])} ({reason(error)})"
    yield ["error", problem]


def main() -> None:
    """Write the lines of the file that the arguments name."""
    for line in lines(**json.loads(sys.argv[1])):
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
