"""Import parallel text as people have it: pairs from files of any format, without duplicates, cut into three parts."""

import html
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, starmap
from pathlib import Path
from typing import NamedTuple

from ...data.foreign_files import FORMATS
from ...data.formats import MAX_LINE_BYTES, DataError
from ...model.text_rules_vanilla_transformer import normalise
from .reader_process import format_of
from .translation_files import BREAK

_TAG = re.compile(r"<(/?)([A-Za-z][\w:.-]*)(?![\w:.-])([^<>]*)>")
_ATTRIBUTE = re.compile(r"\s+[\w:.-]+\s*=")
# Elements of HTML that are markup even without attributes and their other tag; others may be as in "List<String>"
_FORMATS = re.compile(
    "a|b|big|center|em|font|hr|i|img|ol|s|small|span|strike|strong|su[bp]|t[dht]|u|ul|wbr", re.IGNORECASE
)
_DAMAGED = re.compile(r"[\ufffd\ud800-\udfff]")
_REFERENCE = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z]\w*);")  # of a character, in HTML
SPLITS = ("train", "validation", "test")


class Pair(NamedTuple):
    """A source sentence and its translation."""

    source: str
    target: str


@dataclass
class Import:
    """Settings for reading files with parallel text, and counts of what was read.

    Args:
        languages: source and target language.
        columns: names or numbers, from 1, of the columns or tiers of the two; by default those of the languages.
        encoding: of plain text; by default it is recognised.

    Attributes:
        notes: what the user should know about each file, such as its encoding.
        read, dropped: number of entries, and of those left out by reason.
        markup: number of texts that were kept without their tags.
    """

    languages: tuple[str, str]
    columns: tuple[str, ...] = ()
    encoding: str | None = None
    notes: list[str] = field(default_factory=list, init=False)
    read: int = field(default=0, init=False)
    dropped: Counter[str] = field(default_factory=Counter, init=False)
    markup: int = field(default=0, init=False)

    def pairs(self, files: Sequence[str]) -> Iterator[Pair]:
        """Yield the pairs of the files, one per sentence, each once; of several files, those that can be read.

        Raises:
            DataError: if a file is missing or of an unknown format, or if there are no pairs.
        """
        languages = " and ".join(self.languages)
        paths_of = {file: self._paths(file) for file in files}
        problems: list[DataError] = []
        seen = set()
        for file, paths in paths_of.items():
            count = 0
            try:
                for pair in chain.from_iterable(starmap(self._sentences, self._read(file, paths))):
                    count += 1
                    if pair in seen:
                        self.dropped["duplicate"] += 1
                        continue
                    seen.add(pair)
                    yield pair
            except DataError as error:
                # nothing is left if it is the only one
                if len(paths_of) == 1:
                    raise
                problems.append(error)
                self.dropped["unreadable file"] += 1
                self.notes.append(f"{error} {count:,} pairs of it were read.")
                continue
            if not count:
                self.notes.append(f"{file}: no pairs in {languages}")
        if problems and not seen:
            raise problems[0]
        if not seen:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
            raise DataError(f"{' '.join(files)}: no pairs in {languages}; dropped: {reasons or 'none'}.")

    def _paths(self, file: str) -> list[str]:
        """Return the paths of a file, or of the two of a Moses pair."""
        paths = [file]
        if not Path(file).is_file():
            choices = [[f"{file}.{language}{packed}" for language in self.languages] for packed in ("", ".gz")]
            paths = next((paths for paths in choices if all(Path(path).is_file() for path in paths)), [])
            if not paths:
                raise DataError(f"{file}: neither a file nor a pair of files {' and '.join(choices[0])}.")
        elif format_of(file) not in FORMATS:
            raise DataError(f"{file}: unknown format; expected one of {' '.join(FORMATS)}, or a Moses pair's prefix.")
        return paths

    def _read(self, file: str, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the raw texts of a file, as its own process reads them."""
        for kind, *content in _lines(paths, self):
            if kind == "note":
                self.notes.append(f"{file}: {content[0]}")
            elif kind == "error":
                raise DataError(f"{file}: {content[0]}.")
            elif kind == "markup":
                self.markup += 1
            else:
                self.read += 1
                if kind == "dropped":
                    self.dropped[content[0]] += 1
                else:
                    yield content[0], content[1]

    def _sentences(self, source: str, target: str) -> Iterator[Pair]:
        """Yield the pairs of two texts: one of each line if both have equally many, and one of all otherwise."""
        source = self._without_markup(source)
        target = self._without_markup(target)
        lines = [list(filter(None, map(normalise, text.splitlines()))) for text in (source, target)]
        if len(lines[0]) != len(lines[1]):
            lines = [[" ".join(side)] if side else [] for side in lines]
        if not lines[0] or not lines[1]:
            self.dropped["untranslated"] += 1
            return
        for pair in map(Pair, *lines):
            if any(map(_DAMAGED.search, pair)):
                self.dropped["damaged character"] += 1
            # because readers refuse a whole file for one such line
            elif max(len(text.encode()) for text in pair) >= MAX_LINE_BYTES:
                self.dropped["too long"] += 1
            else:
                yield pair

    def _without_markup(self, text: str) -> str:
        # references first: tags may be written with them
        unescaped = _REFERENCE.sub(lambda reference: html.unescape(reference[0]), text)
        plain = _without_tags(BREAK.sub("\n", unescaped))
        self.markup += plain != text
        return plain


def _without_tags(text: str) -> str:
    """Return a text without tags; one of an element without content that stands between two words becomes a space."""
    names: list[set[str]] = [set(), set()]
    for closes, name, _ in _TAG.findall(text):
        names[bool(closes)].add(name)

    def replacement(tag: re.Match[str]) -> str:
        _, name, rest = tag.groups()
        is_known = _FORMATS.fullmatch(name) or name in names[0] & names[1]
        if not (_ATTRIBUTE.match(rest) or rest.strip() == "/" or (is_known and ("=" in rest or not rest.strip()))):
            return tag[0]
        is_alone = rest.endswith("/") or name.lower() in ("hr", "img")
        between_words = text[max(tag.start() - 1, 0)].isalnum() and text[tag.end() : tag.end() + 1].isalnum()
        return " " if is_alone and between_words else ""

    return _TAG.sub(replacement, text)


def _lines(paths: Sequence[str], job: Import) -> Iterator[list]:
    """Yield what the process that reads a file writes.

    Raises:
        DataError: if the process dies.
    """
    options = {"paths": paths, "languages": job.languages, "columns": job.columns, "encoding": job.encoding}
    command = [sys.executable, "-m", f"{__package__}.reader_process", json.dumps(options)]
    # Without the current folder on its path, where a file such as csv.py would be imported (from Python 3.11 on), and
    # with that of this package first, which may have been found only there
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": path}
    # what a parser that crashes writes to stderr says nothing to the user
    reader = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8", env=environment
    )
    assert reader.stdout is not None
    with reader:
        try:
            for line in reader.stdout:
                if line.endswith("\n"):
                    yield json.loads(line)
        except BaseException:
            # the caller may need no more lines
            reader.kill()
            raise
    if reader.returncode:
        raise DataError(f"{paths[0]}: cannot be read: it is damaged, or too large to read at once.")


def split(pairs: Sequence[Pair], sizes: tuple[int, int], seed: int) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Return the pairs for training, validation and test, the last two drawn at random.

    Pairs that share a sentence stay together, so that no sentence of either side is in two parts. A part is smaller
    than asked if the text has not enough pairs that can be told apart.

    Args:
        sizes: number of pairs for validation and for the test.
    """
    groups = _groups(pairs)
    random.Random(seed).shuffle(groups)
    parts: tuple[list[Pair], list[Pair], list[Pair]] = ([], [], [])
    for group in groups:
        # a group of the size of a test text would fill it with variants of one sentence
        room = [size - len(part) for size, part in zip(sizes, parts[1:], strict=True)]
        fits = [i for i in (1, 0) if len(group) <= room[i] and len(group) <= max(1, sizes[i] // 10)]
        part = parts[fits[0] + 1] if fits else parts[0]
        part.extend(pairs[number] for number in group)
    return parts


def _groups(pairs: Sequence[Pair]) -> list[list[int]]:
    """Return the numbers of pairs that share a sentence with another one, directly or through others, in groups."""
    parent = list(range(len(pairs)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]  # halves the way for the next look-up
            number = parent[number]
        return number

    for side in (0, 1):
        first: dict[str, int] = {}
        for number, pair in enumerate(pairs):
            parent[root(number)] = root(first.setdefault(pair[side], number))
    groups: dict[int, list[int]] = {}
    for number in range(len(pairs)):
        groups.setdefault(root(number), []).append(number)
    return list(groups.values())
