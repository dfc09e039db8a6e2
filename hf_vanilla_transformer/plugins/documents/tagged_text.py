"""Put the tags of a sentence around the words of its translation: elements stay nested and around their words."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from ...inference.segments import Mark, Passage, Range, WordOrder

MAX_DEPTH = 50  # of elements that stay in one piece; deeper tags are placed one by one


@dataclass(frozen=True)
class Tag(Mark):
    """A tag around text.

    Args:
        opens, closes: the name of the element that it starts or ends.
    """

    opens: str = ""
    closes: str = ""

    @property
    def is_tag(self) -> bool:
        return bool(self.opens or self.closes)

    @property
    def follows(self) -> bool:
        return bool(self.closes) or super().follows


class Nesting:
    """The elements around a place in a text, by which a closing tag finds its opening one."""

    def __init__(self) -> None:
        self._open: list[tuple[str, int]] = []
        self._counts: Counter[str] = Counter()

    @property
    def depth(self) -> int:
        """Return the number of elements around the place."""
        return len(self._open)

    def open(self, name: str, number: int) -> None:
        """Enter an element, whose opening tag has a number."""
        self._open.append((name, number))
        self._counts[name] += 1

    def close(self, name: str) -> int | None:
        """Leave the innermost element of a name, and those in it; return the number of its tag, or None."""
        if not self._counts[name]:
            return None
        while True:
            other, number = self._open.pop()
            self._counts[other] -= 1
            if other == name:
                return number


class TaggedPassage(Passage):
    """A passage with tags among its marks."""

    def _move(self, marks: Sequence[Mark], order: WordOrder) -> Iterator[Mark]:
        return _Elements(marks, order).move(range(len(marks)), order.whole_source, order.whole)


class _Elements:
    """The elements of a sentence, and where they go in its translation. A mark that is no tag is an empty element.

    Args:
        marks: the marks of the sentence.
        order: its words and those of its translation.
    """

    def __init__(self, marks: Sequence[Mark], order: WordOrder):
        self._marks = marks
        self._order = order
        self._places = order.places(marks)
        # the closing mark of each opening one that has one; of tags that cross, the inner one has none
        self._closing: dict[int, int] = {}
        nesting = Nesting()
        for i, mark in enumerate(marks):
            if not isinstance(mark, Tag):
                continue
            if mark.opens:
                nesting.open(mark.opens, i)
            elif (opening := nesting.close(mark.closes)) is not None and nesting.depth < MAX_DEPTH:
                self._closing[opening] = i

    def move(self, numbers: range, around: Range, among: Range) -> Iterator[Mark]:
        """Yield marks at their places in the translation, in order.

        Args:
            numbers: which marks: all those in one element.
            around, among: the range of the source words in that element, and that of their translation.
        """
        elements = []
        first = numbers.start
        floor = among[0]
        while first < numbers.stop:
            last = self._closing.get(first, first)
            start, end = self._words_of(first, last, around, among)
            if first == last and self._marks[first].is_tag:
                # Tags whose others are in other sentences keep their order, so that these elements do not cross
                start = end = floor = max(start, floor)
            elements.append((start, end, first, last))
            first = last + 1

        low, high = among
        for start, end, first, last in sorted(elements, key=itemgetter(0)):
            # Neighbours that share words in the alignment are kept apart: tags must not cross
            start = max(start, low)
            low = end = max(end, start)
            follows = start == end and (start == high or self._marks[first].follows)
            yield self._order.move(self._marks[first], start, follows)
            if last > first:
                inside = (self._places[first], self._places[last])
                yield from self.move(range(first + 1, last), inside, (start, end))
                yield self._order.move(self._marks[last], end, follows=True)

    def _words_of(self, first: int, last: int, around: Range, among: Range) -> Range:
        """Return the translated words of the element between two marks, none at the place of a single mark."""
        start = self._places[first]
        end = self._places[last]
        return self._order.words_of(start, end, self._marks[first].follows, around, among)
