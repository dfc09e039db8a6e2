"""Cut a text into sentences and what lies between them, with sentencex, and join their translations."""

import re
from collections.abc import Iterator, Sequence

import sentencex

# White space at the start, everything up to the last other character, white space at the end
_PARTS = re.compile(r"^\s+|\S(?:.*\S)?|\s+$", re.DOTALL)


class Document:
    """A text cut into sentences and white space. A line break ends a sentence.

    Args:
        text: the text.
        language: its language, an ISO 639-1 code; general rules apply to an unknown one.

    Attributes:
        pieces: the sentences and the white space around them, which joined are the text.
        sentences: the sentences alone.
    """

    def __init__(self, text: str, language: str | None):
        # sentencex alone would take a title and the sentence on the next line for one sentence
        lines = text.splitlines(keepends=True)
        # sentencex uses general rules, those of English, for languages that it does not know
        self.pieces = [piece for line in lines for piece in _cut(line, language or "en")]
        self._places = [i for i, piece in enumerate(self.pieces) if not piece.isspace()]
        self.sentences = [self.pieces[i] for i in self._places]

    def join(self, translations: Sequence[str]) -> str:
        """Return the text with a translation in place of each sentence."""
        pieces = list(self.pieces)
        for i, translation in zip(self._places, translations, strict=True):
            pieces[i] = translation
        return "".join(pieces)


def _cut(line: str, language: str) -> Iterator[str]:
    """Yield the sentences of a line and the white space around them."""
    sentences = sentencex.segment(language, line)
    # sentencex promises that nothing is lost; if it ever is, one long sentence is better
    if "".join(sentences) != line:
        sentences = [line]
    for sentence in sentences:
        yield from _PARTS.findall(sentence)
