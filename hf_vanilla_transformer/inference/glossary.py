"""Glossaries: terms with the translations that a user asks for, and how these get into translations.

The model translates a sentence as always. Then the words that come from a term, by the alignment, give way to the
asked translation. So the rest of the sentence stays as the model wrote it, in every search and for any term.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from unicodedata import normalize

import regex

from ..data.foreign_files import reason
from ..data.formats import read_lines
from ..data.languages import base_code
from ..errors import UserError
from ..files import import_extra
from ..model.text_rules_vanilla_transformer import normalise
from .placeholders import find_placeholders
from .segments import Links, Mark, Range, WordOrder, is_unspaced, words

Direction = tuple[str, str]
_Words = tuple[str, ...]
_Concept = Mapping[str, Sequence[str]]  # the terms for one thing by language, the preferred one first
_OTHER_WORD = regex.compile(r"(?<=\w)(?:\+\+|#(?!\w))")  # behind a term: "C++" and "C#" have other names than "C"
_STATUS = {"administrativeStatus", "normativeAuthorization"}  # how TBX says that a term is deprecated
_MAX_ENDING = 2  # letters that a grammatical case may add to a term, as German -es and -en


class Term(NamedTuple):
    """A term in a sentence: the range of its words, and the asked translation."""

    start: int
    end: int
    translation: str


class Glossary(dict[str, str]):
    """The terms of one direction, and their asked translations.

    A term in lower case is found in any case, another one as it is written or in capitals. Of terms that overlap in a
    sentence, the longest counts.
    """

    @classmethod
    def of(cls, terms: Mapping[str, str]) -> "Glossary":
        """Return terms as a glossary, which they may be already."""
        return terms if isinstance(terms, cls) else cls(terms)

    @cached_property
    def _by_words(self) -> dict[_Words, dict[_Words, str]]:
        """Return the asked translations by the words of the terms, in lower case and then as they are written."""
        index: dict[_Words, dict[_Words, str]] = {}
        for term, translation in self.items():
            # as sentences are, before terms are looked for in them
            written = _words(normalise(term))
            index.setdefault(_lower(written), {}).setdefault(written, " ".join(translation.split()))
        return index

    @cached_property
    def _longest(self) -> int:
        """Return the number of words of the longest term."""
        return max(map(len, self._by_words), default=0)

    def find(self, sentence: str) -> list[Term]:
        """Return the terms in a sentence, in order; not those in its placeholders."""
        places = words(sentence)
        written = _spellings(sentence, places)
        candidates = [
            Term(start, end, translation)
            for start in range(len(written))
            for end in range(start + 1, min(start + self._longest, len(written)) + 1)
            if (translation := self._translation(written[start:end]))
            and not _OTHER_WORD.match(sentence, places[end - 1][1])
        ]
        if not candidates:
            return []
        # the words that belong to something already
        taken: set[int] = set()
        starts = [start for start, _ in places]
        for match in find_placeholders(sentence):
            taken.update(range(bisect_left(starts, match.start()), bisect_left(starts, match.end())))
        terms = []
        for term in sorted(candidates, key=lambda term: term.start - term.end):
            own = range(term.start, term.end)
            if taken.isdisjoint(own):
                taken.update(own)
                terms.append(term)
        return sorted(terms)

    def _translation(self, written: _Words) -> str | None:
        """Return the asked translation of the words of a sentence, None if they are no term."""
        variants = self._by_words.get(_lower(written))
        if variants is None:
            return None
        if written in variants:
            return variants[written]
        if (text := "".join(written)).isupper() and len(text) > 1:
            return next(iter(variants.values())).upper()
        return variants.get(_lower(written))


def insert_terms(sentence: str, translation: str, terms: Sequence[Term], links: Links) -> str:
    """Return a translation with the asked translation of each term in place of the words that come from the term.

    What the model has translated as asked is kept, with the ending of its case if it has one; if no word comes from a
    term, its translation stands behind that of the word before it.

    Args:
        terms: those of the sentence, in order.
        links: the alignment of the sentence with its translation.
    """
    asked = [term.translation for term in terms]
    replacements = []
    for term in terms:
        if len(_places(term.translation, translation)) < asked.count(term.translation):
            order = WordOrder(sentence, translation, _own_links(term, links))
            run = order.words_of(term.start, term.end, term.start > 0, order.whole_source, order.whole)
            replacements.append((*run, term.translation))
    places = words(translation)
    all_words = WordOrder(sentence, translation, links)
    written = []
    done = 0
    low = 0
    for start, end, text in sorted(replacements):
        # terms that share words in the alignment stay apart
        start = max(start, low)
        low = end = max(end, start)
        if end > start:
            first = places[start][0]
            last = places[end - 1][1]
            text = _adapt(text, translation[:first], translation[first:last])
        elif start:
            first = last = all_words.move(Mark(0, text), start, follows=True).place
            text = text if is_unspaced(translation[first - 1]) else f" {text}"
        else:
            first = last = 0
            text = text if is_unspaced(translation[:1]) else f"{text} "
        written += [translation[done:first], text]
        done = max(done, last)
    return _join_apart([*written, translation[done:]]).rstrip()


def _own_links(term: Term, links: Links) -> Links:
    """Return an alignment in which a word comes from a term and from elsewhere only if no word comes from it alone.

    The decoder looks at a noun before it chooses the article, but also at the article.
    """
    inside = set(range(term.start, term.end))
    if not any(sources and inside.issuperset(sources) for sources in links):
        return links
    return [
        sources if inside.issuperset(sources) else [word for word in sources if word not in inside]
        for sources in links
    ]


def link_terms(translation: str, terms: Sequence[Term], links: Links) -> Links:
    """Return an alignment in which the words of inserted terms come from these, so that no tag gets between them."""
    linked = list(links)
    remaining = {term.translation: iter(_places(term.translation, translation)) for term in terms}
    for term in terms:
        for place in next(remaining[term.translation], ()):
            linked[place] = range(term.start, term.end)
    return linked


def _places(text: str, translation: str) -> list[range]:
    """Return the places of a text among the words of a translation, where it may start with a capital."""
    own = _words(text)
    written = _words(translation)
    spellings = (own, _words(text[:1].upper() + text[1:]))
    places = (range(start, start + len(own)) for start in range(len(written)))
    return [place for place in places if written[place.start : place.stop] in spellings]


def _adapt(text: str, before: str, replaced: str) -> str:
    """Return an asked translation as it stands in a sentence, in place of some words.

    Args:
        before: what stands before these words.
        replaced: the words.
    """
    is_first = not any(map(str.isalpha, before))
    # not "iPhone"
    if is_first and replaced[0].isupper() and text.split()[0].islower():
        text = text[0].upper() + text[1:]
    ending = replaced.removeprefix(text)
    has_ending = ending != replaced and ending.isalpha() and len(ending) <= _MAX_ENDING
    return replaced if has_ending else text


def _join_apart(parts: Iterable[str]) -> str:
    """Join the parts of a text, with a space where two of them would become one word."""
    text = ""
    for part in parts:
        is_one_word = words(text[-1:] + part[:1]) == [(0, 2)]
        text += f" {part}" if is_one_word else part
    return text


def _words(text: str) -> _Words:
    """Return the words of a text, in one spelling of accents and apostrophes."""
    return _spellings(text, words(text))


def _spellings(text: str, places: Sequence[Range]) -> _Words:
    """Return the words at some places of a text, as `_words`."""
    return tuple(normalize("NFC", text[start:end]).replace("\u2019", "'") for start, end in places)


def _lower(written: _Words) -> _Words:
    return tuple(map(str.lower, written))


def read_glossary(path: str, directions: Sequence[Direction]) -> dict[Direction, Glossary]:
    """Return the glossary of each direction from a file; of several translations of a term, the first counts.

    Args:
        path: TBX, if its name ends so, or lines of terms in the columns of several languages, separated by tabs. The
            first line names the languages; without it, the columns are source and target of the only direction.

    Raises:
        OSError: if the file cannot be read.
        UserError: if it is damaged, or has no terms of these directions.
    """
    read = _read_tbx if path.lower().endswith(".tbx") else _read_table
    glossaries = {direction: Glossary() for direction in directions}
    for concept in read(path, directions):
        for (source_lang, target_lang), glossary in glossaries.items():
            translations = concept.get(_code(target_lang), ())
            for term in concept.get(_code(source_lang), ()) if translations else ():
                glossary.setdefault(term, translations[0])
    if not any(glossaries.values()):
        raise UserError(f"{path} has no terms from {', '.join(map(' to '.join, directions))}.")
    return glossaries


def _code(language: str) -> str:
    """Return the code of a language without its region, such as en for en-GB."""
    return base_code(language) or language


def _read_table(path: str, directions: Sequence[Direction]) -> Iterator[_Concept]:
    """Yield the concepts of a file with tabs."""
    languages: Sequence[str] = ()
    known = {_code(language) for direction in directions for language in direction}
    for number, line in enumerate(read_lines(path), 1):
        cells = [_cell(text) for text in line.split("\t")]
        # spreadsheets have empty columns behind the others
        while cells and not cells[-1]:
            cells.pop()
        if not cells:
            continue
        if not languages:
            codes = set(map(base_code, cells))
            languages = cells if None not in codes and codes & known else directions[0]
            if languages is cells:
                continue
            if len(directions) > 1:
                raise UserError(f"{path}, line {number}: name the languages of the columns here, such as en<TAB>de.")
        if len(cells) > len(languages) or sum(map(bool, cells)) < 2:
            expected = f"a term in each column, separated by tabs ({', '.join(languages)})"
            raise UserError(f"{path}, line {number}: expected {expected}, got {line[:80]!r}.")
        yield {_code(language): [cell] for language, cell in zip(languages, cells, strict=False) if cell}


def _cell(text: str) -> str:
    """Return the term in a cell, which spreadsheets write in quotes if it has a comma or quotes."""
    text = " ".join(text.split())
    is_quoted = len(text) > 2 and text[0] == text[-1] == '"'
    return text[1:-1].replace('""', '"').strip() if is_quoted else text


def _read_tbx(path: str, directions: Sequence[Direction]) -> Iterator[_Concept]:
    """Yield the concepts of a TBX file, version 2 or 3, without deprecated terms."""
    etree = import_extra("lxml.etree", "documents")
    try:
        root = etree.parse(path, etree.XMLParser(resolve_entities=False, no_network=True)).getroot()
    except etree.XMLSyntaxError as error:
        raise UserError(f"{path} is not TBX: damaged XML ({reason(error)}).") from None
    for concept in root.iter("{*}termEntry", "{*}conceptEntry"):
        terms: dict[str, list[str]] = {}
        for section in concept.iter("{*}langSet", "{*}langSec"):
            own = terms.setdefault(_code(section.get("{http://www.w3.org/XML/1998/namespace}lang", "")), [])
            for term in section.iter("{*}term"):
                if not _is_deprecated(term.getparent()):
                    own.append(" ".join("".join(term.itertext("*")).split()))
        yield terms


def _is_deprecated(entry: Any) -> bool:
    """Return whether a term is deprecated by the status in its entry, an element with that type or name."""
    notes = (note for note in entry.iter("{*}*") if _STATUS & {note.get("type"), note.tag.rpartition("}")[2]})
    return any("deprecated" in (note.text or "") for note in notes)
