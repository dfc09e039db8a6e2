"""Mark words that translate each other while both sides of a phrase are written, and read the alignment from the marks.

A mark is a character of a private-use plane behind a word; words with the same mark translate each other. Marks survive
the reordering of clauses, and are removed from the finished sentence.
"""

import re
from itertools import count

from .lexicon import Text, join_words

_FIRST, _LAST = 0xF0000, 0xFFFFD
MARK = f"[{chr(_FIRST)}-{chr(_LAST)}]"
_numbers = count()
_WEATHER = {  # for each English word, the index of its German word
    **dict.fromkeys(("it was raining", "it was snowing", "it was dark"), (0, 2, 1)),
    **dict.fromkeys(("it is raining", "it is snowing"), (0, 1, 1)),
    "it is dark": (0, 2, 1),
}


def new_mark() -> str:
    return chr(_FIRST + next(_numbers) % (_LAST - _FIRST))


def unmarked(text: str) -> str:
    return re.sub(MARK, "", text)


def mark(text: str, *marks: str) -> str:
    """Append marks to each word."""
    return " ".join(word + "".join(marks) for word in text.split(" ")) if text else text


def align(text: Text) -> Text:
    """Align a text of few words, unless its words are already aligned.

    Words are aligned in their order; if there are fewer in German, the first of them has several in English.
    """
    if not (text.en and text.de) or unmarked(text.en) != text.en or unmarked(text.de) != text.de:
        return text
    en, de = text.en.split(" "), text.de.split(" ")
    extra = len(en) - len(de)
    assert extra >= 0, text
    places = _WEATHER.get(text.en, [max(0, i - extra) for i in range(len(en))])
    marks = [new_mark() for _ in de]
    return Text(
        join_words(*(word + marks[i] for word, i in zip(en, places, strict=True))),
        join_words(*(word + own for word, own in zip(de, marks, strict=True))),
    )


def read_alignment(text: Text) -> tuple[tuple[int, int], ...]:
    """Return the pairs of indices of an English and a German word that share a mark."""
    en, de = ([set(re.findall(MARK, word)) for word in side.split(" ")] for side in text)
    return tuple((i, j) for i, source in enumerate(en) for j, target in enumerate(de) if source & target)
