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
from pathlib import Path
from typing import NamedTuple

from ...data.foreign_files import FORMATS, SHEETS
from ...data.formats import MAX_LINE_BYTES, DataError, json_texts
from .exchange import format_of, matches

_BREAK = re.compile(r"<br\s*/?>|</?(?:p|div|li|tr|h[1-6])\b[^<>]*>", re.IGNORECASE)  # a tag that ends a line
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_REFERENCE = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z]\w*);")  # of a character, in HTML
_HEADER_ROWS = 10  # among which the header of a table is looked for, below titles and notes
SPLITS = ("train", "validation", "test")


class Pair(NamedTuple):
    """A source sentence and its translation."""

    source: str
    target: str


@dataclass
class Import:
    """How to read files with parallel text, and what was found in them.

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
        """Yield the pairs of the files, one per sentence, each once.

        Raises:
            DataError: if a file cannot be used.
        """
        languages = " and ".join(self.languages)
        seen = set()
        for file in files:
            found = 0
            for texts in self._read(file):
                for pair in self._sentences(*texts):
                    found += 1
                    if pair in seen:
                        self.dropped["duplicate"] += 1
                        continue
                    seen.add(pair)
                    yield pair
            if not found:
                self.notes.append(f"{file}: no pairs in {languages}")
        if not seen:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items())
            raise DataError(f"{' '.join(files)}: no pairs in {languages}; dropped: {reasons or 'none'}.")

    def _read(self, file: str) -> Iterator[tuple[str, str]]:
        """Yield the raw texts of a file, as its own process reads them."""
        paths = [file]
        if not Path(file).is_file():
            choices = [[f"{file}.{language}{packed}" for language in self.languages] for packed in ("", ".gz")]
            paths = next((paths for paths in choices if all(Path(path).is_file() for path in paths)), [])
            if not paths:
                raise DataError(f"{file}: neither a file nor a pair of files {' and '.join(choices[0])}.")
        elif format_of(file) not in FORMATS:
            raise DataError(f"{file}: unknown format; expected one of {' '.join(FORMATS)}, or a Moses pair's prefix.")
        tables: list[_Table] = []
        for kind, *content in _lines(paths, self):
            if kind == "note":
                self.notes.append(f"{file}: {content[0]}")
            elif kind == "error":
                raise DataError(f"{file}: {content[0]}.")
            elif kind == "markup":
                self.markup += 1
            elif kind == "table":
                tables.append(_Table(f"{file}, {content[0]}" if format_of(file) in SHEETS else file, self))
            elif kind == "dropped":
                self.read += 1
                self.dropped[content[0]] += 1
            else:
                # a row follows the start of its table
                texts = (content[0], content[1]) if kind == "pair" else tables[-1].texts(content[0])
                # None for the header of a table
                if texts is not None:
                    self.read += 1
                    yield texts
        problems = [table.problem for table in tables if table.columns is None and table.problem]
        if problems and not any(table.columns for table in tables):
            raise DataError(problems[0])
        # such as a sheet with notes
        self.notes.extend(f"left out: {problem}" for problem in problems)

    def _sentences(self, source: str, target: str) -> Iterator[Pair]:
        """Yield the pairs of two texts: one of each line if both have equally many, and one of all otherwise."""
        source = self._without_markup(source)
        target = self._without_markup(target)
        lines = [[" ".join(line.split()) for line in text.splitlines() if line.strip()] for text in (source, target)]
        if len(lines[0]) != len(lines[1]):
            lines = [[" ".join(side)] if side else [] for side in lines]
        if not lines[0] or not lines[1]:
            self.dropped["untranslated"] += 1
            return
        for pair in map(Pair, *lines):
            # because readers refuse a whole file for one such line
            if max(len(text.encode()) for text in pair) >= MAX_LINE_BYTES:
                self.dropped["too long"] += 1
            else:
                yield pair

    def _without_markup(self, text: str) -> str:
        # references first: tags may be written with them
        unescaped = _REFERENCE.sub(lambda found: html.unescape(found[0]), text)
        plain = _TAG.sub("", _BREAK.sub("\n", unescaped))
        self.markup += plain != text
        # lone surrogates, which JSON can escape, cannot be written
        return plain.encode("utf-8", "replace").decode()


class _Table:
    """The two columns of a table, which one of its first rows names.

    Attributes:
        columns: their places, once they are found.
        problem: why no row names them, if none does.
    """

    def __init__(self, name: str, job: Import):
        self.columns: list[int] | None = None
        self.problem = ""
        # of the two texts in the latest object that has both
        self._names: tuple[str, str] | None = None
        self._name = name
        self._job = job
        self._rows = 0
        self._cells = 0

    def texts(self, row: list[str] | dict[str, object]) -> tuple[str, str] | None:
        """Return the texts of a row, or None for the header and what is above it."""
        if isinstance(row, dict):
            inner = row.get("translation")
            texts = inner if isinstance(inner, dict) else row
            keys = list(texts)
            try:
                self._names = (keys[self._find(keys, 0)], keys[self._find(keys, 1)])
            except DataError:
                # programs leave empty fields out, but then other objects name them
                if self._names is None:
                    raise
            where = f"{self._name}, entry {self._job.read + 1}"
            source, target = json_texts(where, dict.fromkeys(self._names or ()) | texts, self._names or ())
            return source, target
        if self.columns is None:
            self._rows += 1
            if self._rows > _HEADER_ROWS:
                return None
            header = [cell.strip() for cell in row]
            try:
                columns = [self._find(header, number) for number in (0, 1)]
            except DataError as error:
                # of the row that looks most like a header
                if sum(map(bool, header)) > self._cells:
                    self._cells = sum(map(bool, header))
                    self.problem = str(error)
                return None
            self.columns = columns
            found = " and ".join(header[column] or str(column + 1) for column in columns)
            self._job.notes.append(f"{self._name}: columns {found}")
            if not self._job.columns or not all(column.isdecimal() for column in self._job.columns):
                return None
        source, target = (row[column] if column < len(row) else "" for column in self.columns)
        return source, target

    def _find(self, header: Sequence[str], side: int) -> int:
        """Return the place of the column of a side.

        Raises:
            DataError: if there is none, or if several could be meant.
        """
        language = self._job.languages[side]
        if self._job.columns:
            wanted = self._job.columns[side]
            found = [i for i, name in enumerate(header) if name == wanted]
            if not found and wanted.isdecimal() and 1 <= int(wanted) <= len(header):
                found = [int(wanted) - 1]
        else:
            found = [i for i, name in enumerate(header) if name.lower() == language.lower()]
            found = found or [i for i, name in enumerate(header) if matches(name, language)]
        if len(found) != 1:
            column = self._job.columns[side] if self._job.columns else language
            count = "several columns" if found else "no column"
            names = ", ".join(map(repr, header))[:300]
            raise DataError(f"{self._name}: {count} {column} among {names}; give --columns SOURCE TARGET.")
        return found[0]


def _lines(paths: Sequence[str], job: Import) -> Iterator[list]:
    """Yield what the process that reads a file writes.

    Raises:
        DataError: if the process dies.
    """
    options = {"paths": paths, "languages": job.languages, "tiers": job.columns, "encoding": job.encoding}
    command = [sys.executable, "-m", f"{__package__}.exchange", json.dumps(options)]
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
