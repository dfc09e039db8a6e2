"""Cut a text into sentences and what lies between them, with sentencex."""

from collections.abc import Iterator
from typing import NamedTuple

import sentencex


class Segment(NamedTuple):
    """A part of a text: a sentence, or white space."""

    text: str
    is_sentence: bool


def segments(text: str, language: str) -> list[Segment]:
    """Return the sentences of a text and the white space around them; joined, they are the text.

    A line break ends a sentence.

    Args:
        language: the language of the text, an ISO 639-1 code; for unknown ones, general rules apply.
    """
    return [
        Segment(part, not part.isspace()) for line in text.splitlines(keepends=True) for part in _cut(line, language)
    ]


def _cut(line: str, language: str) -> Iterator[str]:
    """Yield the sentences of a line and the white space around them."""
    sentences = sentencex.segment(language, line)
    if "".join(sentences) != line:  # sentencex promises this; losing text would be worse than one long sentence
        sentences = [line]
    for sentence in sentences:
        start, end = len(sentence) - len(sentence.lstrip()), len(sentence.rstrip())
        parts = (sentence,) if end <= start else (sentence[:start], sentence[start:end], sentence[end:])
        yield from filter(None, parts)
