"""The built-in English-German corpus: 31,500 sentence pairs, read from `phrases.json.bz2`.

A grammar wrote both sides of each pair at once, so every English sentence has exactly one translation, and a model
can be trained and scored offline, within minutes, against exact references. An eighth of all adjective-noun and
verb-object combinations was held out of the training split, to distinguish a translator that composes words from one
that memorises sentences.

The file also has the combinations of each sentence, as English lemmas, and its word alignment. Nothing generates it
any more. The grammar and its lexicon were written for this package and are in the history of its repository, in the
last commit that has `hf_vanilla_transformer/data/grammar.py`.
"""

import bz2
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).with_name("phrases.json.bz2")
_SIZES = {"train": 30_000, "validation": 500, "test": 1_000}  # in the order of the file


class Phrase(NamedTuple):
    """An English sentence with its unique German translation."""

    en: str
    de: str
    unseen: bool  # whether it has a combination of words that does not occur in the training split


@cache
def _read() -> list[Phrase]:
    """Return all phrases, in the order of the splits."""
    columns = json.loads(bz2.decompress(FILE.read_bytes()))
    return list(map(Phrase, columns["en"], columns["de"], map(bool, columns["unseen"])))


def splits() -> dict[str, list[Phrase]]:
    """Return the disjoint splits "train", "validation" and "test", of 30,000, 500 and 1,000 sentences.

    Two out of five sentences of the last two contain a combination that "train" does not.
    """
    phrases = iter(_read())
    return {name: [next(phrases) for _ in range(size)] for name, size in _SIZES.items()}
