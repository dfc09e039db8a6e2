"""Find the pairs in the files of programs for translators: TMX, XLIFF, PO, and the annotations of ELAN.

Like the functions of `tables.py`, these yield the lines that `reader_process.py` writes.
"""

import gettext
import io
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...data.foreign_files import ExchangeError, reason
from ...files import import_extra

if TYPE_CHECKING:
    from lxml.etree import _Element
    from translate.storage.xliff_common import XliffUnit

_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
# TMX and XLIFF mark code of the original document with these; their content is not text
_NATIVE_CODE = {"bpt", "ept", "ph", "it", "ut", "x", "bx", "ex", "pc-start", "cp", "sc", "ec"}
# of XLIFF 1.2, and of Trados: the translation is a draft
_DRAFTS = {"new", "needs-translation", "needs-adaptation", "needs-l10n", "needs-review-translation"}
_DRAFTS |= {"Draft", "RejectedTranslation", "RejectedSignOff"}
Line = list[object]


def matches(tag: str | None, language: str) -> bool:
    """Return whether a language tag of a file, such as `en_US`, is a language or one of its variants."""
    wanted = language.lower().replace("_", "-")
    return f"{tag or ''}-".lower().replace("_", "-").startswith(f"{wanted}-")


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


def _plain(element: "_Element") -> str:
    """Return the text of a segment without inline codes."""
    parts = [element.text or ""]
    for child in element:
        name = child.tag.rpartition("}")[2] if isinstance(child.tag, str) else "x"  # comments
        if name not in _NATIVE_CODE:
            parts.append(_plain(child))
        elif child.get("ctype") == "lb":
            parts.append("\n")
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
        nodes = {node.get(_XML_LANG) or node.get("lang"): node for node in unit.getlanguageNodes()}
        segments: list[_Element | None] = []
        for language in languages:
            # its own tag first: a memory may hold both `pt` and `pt-BR`
            tags = sorted((tag for tag in nodes if matches(tag, language)), key=len)
            segments.append(nodes[tags[0]].find(unit.namespaced("seg")) if tags else None)
        if segments == [None, None]:
            yield ["dropped", "other languages"]
        else:
            yield from _pair(*segments)


def xliff_pairs(content: bytes, languages: tuple[str, str]) -> Iterator[Line]:
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


def catalogue_pairs(content: bytes, languages: tuple[str, str]) -> Iterator[Line]:
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
