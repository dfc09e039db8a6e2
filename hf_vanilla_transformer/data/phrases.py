"""The built-in English-German corpus: 31,500 sentence pairs with their word alignments, read from `phrases.json.bz2`.

A grammar wrote both sides of each pair at once, so every English sentence has exactly one translation, and a model
can be trained and scored offline, within minutes, against exact references. An eighth of all adjective-noun and
verb-object combinations was held out of the training split, to distinguish a translator that composes words from one
that memorises sentences.

Nothing generates the file any more. The grammar and its lexicon were written for this package and are in the history
of its repository, in the last commit that has `hf_vanilla_transformer/data/grammar.py`.
"""

import bz2
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

_FILE = Path(__file__).with_name("phrases.json.bz2")
_SIZES = {"train": 30_000, "validation": 500, "test": 1_000}  # in the order of the file


class Phrase(NamedTuple):
    """An English sentence with its unique German translation."""

    en: str
    de: str
    combinations: frozenset[tuple[str, str]]  # its adjective-noun and verb-object pairs, as English lemmas
    unseen: bool  # whether one of the combinations does not occur in the training split
    alignment: tuple[tuple[int, int], ...]
    """Indices of an English and a German word that translate each other, in `str.split()` of each sentence.

    Every English word is aligned, and every German one but an article without a counterpart: "the king's dog",
    "der Hund des Königs".
    """


# Many sentences have the same combinations or the same alignment: cached, these are parsed and stored once.


@cache
def _parse_combinations(text: str) -> frozenset[tuple[str, str]]:
    """Parse "red+ball, see+ball"."""
    pairs = (pair.split("+") for pair in text.split(", ") if pair)
    return frozenset((partner, noun) for partner, noun in pairs)


@cache
def _parse_alignment(text: str) -> tuple[tuple[int, int], ...]:
    """Parse "0-0 1-2"."""
    pairs = (pair.split("-") for pair in text.split())
    return tuple((int(english), int(german)) for english, german in pairs)


@cache
def _read() -> list[Phrase]:
    """Return all phrases, in the order of the splits."""
    columns = json.loads(bz2.decompress(_FILE.read_bytes()))
    rows = zip(*(columns[field] for field in Phrase._fields), strict=True)

    return [
        Phrase(english, german, _parse_combinations(combinations), bool(unseen), _parse_alignment(alignment))
        for english, german, combinations, unseen, alignment in rows
    ]


def splits() -> dict[str, list[Phrase]]:
    """Return the disjoint splits "train", "validation" and "test", of 30,000, 500 and 1,000 sentences.

    Two out of five sentences of the last two contain a combination that "train" does not.
    """
    phrases = iter(_read())
    return {name: [next(phrases) for _ in range(size)] for name, size in _SIZES.items()}
