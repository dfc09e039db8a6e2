"""Find the pairs in the files of programs for translators: TMX, XLIFF, PO, and the annotations of ELAN.

Like the functions of `tables.py`, these yield the lines that `reader_process.py` writes.
"""

import gettext
import html
import io
import itertools
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...data.foreign_files import ExchangeError, decode, reason
from ...data.languages import short_name
from ...files import import_extra

if TYPE_CHECKING:
    from lxml.etree import _Element
    from translate.storage.xliff_common import XliffUnit

_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
# TMX and XLIFF mark code of the original document with these; their content is not text
_NATIVE_CODE = {"bpt", "ept", "ph", "it", "ut", "x", "bx", "ex", "pc-start", "cp", "sc", "ec"}
# A tag that ends a line; of the original format, too
BREAK = re.compile(r"<(?:[\w-]+:)?(?:br|lb|line-?break)\b[^<>]*>|</?(?:p|div|li|tr|h[1-6])\b[^<>]*>", re.IGNORECASE)
_BREAK_CODE = re.compile(rf"{BREAK.pattern}|\b(?:lb|x-br|line[-_]?break)\b|\n", re.IGNORECASE)
# A noncharacter that stands for something between two words
_THING = "\ufdd0"
# of XLIFF 1.2, and of Trados: the translation is a draft
_DRAFTS = {"new", "needs-translation", "needs-adaptation", "needs-l10n", "needs-review-translation"}
_DRAFTS |= {"Draft", "RejectedTranslation", "RejectedSignOff"}
_CONFIRMED = "{http://www.memsource.com/mxlf/2.0}confirmed"  # of Phrase
_MAX_TRANSLATIONS = 1000  # of one text
_HEAD_BYTES = 1 << 13  # in which a file names its encoding
# The header of a catalogue, which is the translation of an empty message, up to the encoding in it
_PO_TEXT = r'"(?:[^"\\\n]|\\.)*'
_CHARSET = re.compile(rf'^(msgid\s+""\s+msgstr\s(?:\s*{_PO_TEXT}")*?\s*{_PO_TEXT}?charset=)([\w.-]+)', re.MULTILINE)
Line = list[object]


def matches(tag: str | None, language: str) -> bool:
    """Return whether a language tag of a file, such as `en_US` or `eng`, is a language or one of its variants."""
    return f"{_standard(tag or '')}-".startswith(f"{_standard(language)}-")


def _standard(tag: str) -> str:
    """Return a language tag with hyphens and, if there is one, the code of two letters."""
    base, *rest = re.split("[-_@]", tag.lower())
    return "-".join([short_name(base) if len(base) == 3 else base, *rest])


def base_language(tag: str) -> str:
    """Return the code of a language without its region and script."""
    return _standard(tag).partition("-")[0]


def check_xml(content: bytes) -> None:
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


def _declared(content: bytes) -> str:
    """Return the encoding that XML names at its start, or ""."""
    match = re.search(rb"encoding=[\"']?([\w.-]+)", content[:_HEAD_BYTES])
    return match[1].decode() if match else ""


def well_formed(content: bytes, languages: Sequence[str]) -> tuple[bytes, list[Line]]:
    """Return XML that `check_xml` accepts, with U+FFFD for characters that it may not contain, and notes for the user.

    Raises:
        ExchangeError: if more is wrong with it than single characters.
    """
    try:
        check_xml(content)
        return content, []
    except ExchangeError as error:
        notes: list[Line] = [["note", f"repaired {error}"]]
    text, _ = decode(content, None, languages, _declared(content))
    text = re.sub(r"^\s*<\?xml[^>]*\?>", "", text)
    text = re.sub(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
    text = re.sub(r"&#(?:x0*(?:1?[0-8bcef]|19|1[ad])|0*(?:[0-8]|1[124-9]|2\d|3[01]));", "\ufffd", text, flags=re.I)
    # entities of HTML are unknown to XML
    entity = r"&(?!(?:amp|lt|gt|quot|apos|#\w+);)(?:\w+;)?"
    text = re.sub(entity, lambda match: html.escape(html.unescape(match[0]), quote=False), text)
    content = re.sub("<(?![A-Za-z_/!?])", "&lt;", text).encode()
    check_xml(content)
    return content, notes


def _plain(element: "_Element") -> str:
    """Return the text of a segment without inline codes."""
    return re.sub(rf"(?<=\w){_THING}+(?=\w)", " ", _with_things(element)).replace(_THING, "")


def _with_things(element: "_Element") -> str:
    """Return the text of a segment without inline codes, but `_THING` for those that are neither tags nor breaks."""
    parts = [element.text or ""]
    for child in element:
        name = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else "x"  # comments
        if name not in _NATIVE_CODE:
            parts.append(_with_things(child))
        else:
            content = "".join(map(str, child.itertext())) if isinstance(child.tag, str) else ""
            code = child.get("equiv") or child.get("equiv-text") or content
            if _BREAK_CODE.search(" ".join([code, *child.attrib.values()])):
                parts.append("\n")
            elif (name in ("ph", "ut") or (name == "x" and code)) and not re.match("</?[A-Za-z][^<>]*(?<!/)>", code):
                parts.append(_THING)
        parts.append(child.tail or "")
    return "".join(parts)


def _pair(source: "_Element | None", target: "_Element | None") -> Iterator[Line]:
    """Yield the pair of two segments, or that one is missing."""
    if source is None or target is None:
        yield ["dropped", "untranslated"]
        return
    for segment in (source, target):
        if len(segment):
            yield ["markup"]
    yield ["pair", _plain(source), _plain(target)]


def memory_pairs(content: bytes, languages: tuple[str, str]) -> Iterator[Line]:
    """Yield the pairs of a translation memory (TMX)."""
    store = import_extra("translate.storage.tmx", "import").tmxfile(io.BytesIO(content))
    for unit in store.units:
        nodes: defaultdict[str, list[_Element | None]] = defaultdict(list)
        for node in unit.getlanguageNodes():
            nodes[node.get(_XML_LANG) or node.get("lang") or ""].append(node.find(unit.namespaced("seg")))
        sides: list[list[_Element | None]] = []
        for language in languages:
            # its own tag first: a memory may hold both `pt` and `pt-BR`
            tags = [tag for tag in nodes if matches(tag, language)]
            own = [tag for tag in tags if _standard(tag) == _standard(language)]
            sides.append([segment for tag in own or tags for segment in nodes[tag]])
        if not any(sides):
            yield ["dropped", "other languages"]
            continue
        # each translation makes a pair, but those of a hostile file would be millions
        combinations = itertools.product(*(side or [None] for side in sides))
        for source, target in itertools.islice(combinations, _MAX_TRANSLATIONS):
            yield from _pair(source, target)


def xliff_pairs(content: bytes, languages: tuple[str, str]) -> Iterator[Line]:
    """Yield the pairs of an XLIFF file, version 1.2 or 2."""
    etree = import_extra("lxml.etree", "import")
    _, root = next(etree.iterparse(io.BytesIO(content), events=("start",)))
    version = 2 if root.get("version", "").startswith("2") else 1
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
        target.get("state") in _DRAFTS
        or target.get("state-qualifier") == "fuzzy-match"
        or unit.xmlelement.get(_CONFIRMED) == "0"
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


def catalogue_pairs(content: bytes, encoding: str | None, languages: tuple[str, str]) -> Iterator[Line]:
    """Yield the pairs of a catalogue of messages (PO), whose messages are in the source language.

    Args:
        encoding: that of a catalogue whose header names none.
    """
    header = _CHARSET.search(content[:_HEAD_BYTES].decode("latin-1"))
    declared = header[2] if header else ""
    text, used = decode(content, None if declared else encoding, languages, declared)
    if not used.startswith("utf-8"):
        yield ["note", f"encoding: {used}"]
    in_utf8 = _CHARSET.sub(r"\1UTF-8", text, count=1).encode()
    store = import_extra("translate.storage.pypo", "import").pofile(io.BytesIO(in_utf8))
    tag = store.gettargetlanguage()
    # only the base language counts, since catalogues name variants in many ways: zh_CN, zh-Hans, sr@latin
    base = base_language(tag) if tag else None
    wanted = [base_language(language) for language in languages]
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


def annotation_pairs(content: bytes, languages: Sequence[str]) -> Iterator[Line]:
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
    sides: list[dict[tuple[float, float, str], str]] = []
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
        sides.append(texts)
    source, target = sides
    for key in sorted(source.keys() | target.keys()):
        if key in source and key in target:
            yield ["pair", source[key], target[key]]
        else:
            yield ["dropped", "untranslated"]
