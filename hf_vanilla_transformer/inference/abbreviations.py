"""Say where a sentence goes on although sentencex ends it: behind abbreviations, initials and ordinal numbers."""

from functools import cache
from pathlib import Path

import regex

from ..files import read_yaml

_WORD = regex.compile(r"[\p{L}\p{M}\p{N}§.:]+(?=\.$)")
# "t.ex", "z.B", "o.a"; but these are as common at the end of a sentence
_DOTTED = regex.compile(
    r"(?!(?:[ap]\.m|[ad]\.c|e\.[ad]|m\.(?:fl|m)|o\.s\.v|u\.s\.w|[nv]\.chr|т\.[дп])$)(?:\p{L}{1,3}\.)+\p{L}{1,3}"
)
# "the .NET tool"
_FULL_STOP_OF_NAME = regex.compile(r"(?<!\S)\.$")
# Scripts without capital letters have initials too, and abbreviate to one letter
_LETTER_WITHOUT_CASE = regex.compile(r"\p{Lo}\p{M}*")
_INITIAL = regex.compile(r"\p{Lu}\.")
_NUMBER = regex.compile(r"\d|[IVXLC]+\b")
# "der 5. Band": in other languages, the next word starts with a small letter
_GERMAN_ORDINAL = regex.compile(
    r"\b(?i:d(?:er|ie|as|e[mns])|[ai]m|zu[mr]|vom|beim|seit|ab|und|(?:[msd]?ein|ihr|jed)\w{0,2})\s\d{1,3}\.$"
)


@cache
def _lists() -> tuple[dict[str, set[str]], set[str]]:
    """Return the abbreviations in front of names, by language, and those in front of numbers."""
    lists = read_yaml(Path(__file__).with_name("abbreviations.yaml"))
    return {language: set(words.split()) for language, words in lists["names"].items()}, set(lists["numbers"].split())


def continues(first: str, last: str, following: str, language: str) -> bool:
    """Return whether what follows belongs to a sentence.

    Args:
        first, last: the first and the last of the parts in which sentencex has returned the sentence so far.
        following: the next part.
        language: its ISO 639-1 code.
    """
    if _FULL_STOP_OF_NAME.search(last[-2:]) and following[:1].isalnum():
        return True
    # no abbreviation is longer
    end = last.rstrip()[-40:]
    match = _WORD.search(end)
    if not match:
        return False
    # unless the text has no capital letters
    if following[:1].islower() and not next(filter(str.isalpha, first), "").islower():
        return True
    word = match[0]
    abbreviation = word.lower()
    names, numbered = _lists()
    if abbreviation in names.get(language, ()) or (word[0].islower() and _DOTTED.fullmatch(abbreviation)):
        return True
    if abbreviation in numbered and _NUMBER.match(following):
        return True
    # in Thai, a space ends a sentence
    if language == "th" or _LETTER_WITHOUT_CASE.fullmatch(word):
        return True
    # sentencex knows initials in English; the second case is as in "a. C."
    if len(word) == 1 and ((word.isupper() and language != "en") or _INITIAL.match(following)):
        return True
    return language == "de" and bool(_GERMAN_ORDINAL.search(end))
