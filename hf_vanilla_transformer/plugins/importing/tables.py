"""Find the pairs in tables: spreadsheets, text with separators, and lists of JSON objects.

Like the functions of `translation_files.py`, these yield the lines that `reader_process.py` writes.
"""

import csv
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...data.foreign_files import SEPARATORS, ExchangeError, reason
from ...files import import_extra
from .translation_files import Line, base_language, matches

_HEADER_ROWS = 10  # among which the header of a table is looked for, below titles and notes
_MAX_CELL_BYTES = 1 << 29
# How quotation marks are read: those that are not of the table belong to the text; one never closed would swallow rows
_QUOTINGS: tuple[dict[str, Any], ...] = (
    {"strict": True},
    # as MySQL and other databases write tables
    {"strict": True, "doublequote": False, "escapechar": "\\"},
    {"quoting": csv.QUOTE_NONE},
    {},
)


@dataclass(frozen=True)
class Side:
    """Find the column of the sources or of the targets by its name, by its number from 1, or else by its language."""

    language: str
    column: str | None = None

    def find(self, names: Sequence[str]) -> int:
        """Return the place of the column among all by their names.

        Raises:
            ExchangeError: if there is none, or if several could be meant.
        """
        if self.column is None:
            places = [i for i, name in enumerate(names) if name.lower() == self.language.lower()]
            places = places or [i for i, name in enumerate(names) if matches(_without_note(name), self.language)]
        else:
            places = [i for i, name in enumerate(names) if name == self.column]
            if not places and self.column.isdecimal() and 1 <= int(self.column) <= len(names):
                places = [int(self.column) - 1]
        if len(places) != 1:
            count = "several columns" if places else "no column"
            known = ", ".join(map(repr, names))[:300]
            raise ExchangeError(f"{count} {self.column or self.language} among {known}; give --columns SOURCE TARGET")
        return places[0]


def sheet_pairs(content: bytes, sides: Sequence[Side]) -> Iterator[Line]:
    """Yield the pairs in the sheets of a spreadsheet, without sheets that have no such columns, such as notes."""
    workbook = import_extra("python_calamine", "import").load_workbook(io.BytesIO(content))
    problems = []
    is_found = False
    for name in workbook.sheet_names:
        rows = workbook.get_sheet_by_name(name).to_python(skip_empty_area=True)
        if not rows:
            continue
        try:
            yield from _row_pairs(([_cell(value) for value in row] for row in rows), sides, f"{name}: ")
            is_found = True
        except ExchangeError as error:
            problems.append(f"{name}: {error}")
    if problems and not is_found:
        raise ExchangeError(problems[0])
    for problem in problems:
        yield ["note", f"left out: {problem}"]


def _cell(value: object) -> str:
    """Return the text of a cell; whole numbers have no decimal point."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def table_pairs(text: str, sides: Sequence[Side]) -> Iterator[Line]:
    """Yield the pairs in a table, read in the way that cuts most rows into equally many cells."""
    csv.field_size_limit(_MAX_CELL_BYTES)
    separators = [separator for separator in SEPARATORS if separator in text]
    dialects = [{"delimiter": separator, **quoting} for quoting in _QUOTINGS for separator in separators]
    regularities = [_regularity(text, dialect) for dialect in dialects]
    most = max(regularities, default=(0, 0))
    if not most[0]:
        raise ExchangeError("a single column: source and target must be separated by tabs, commas or semicolons")
    best = dialects[regularities.index(most)]
    quotes = "; quotation marks are text" if "quoting" in best else ""
    yield ["note", f"separator: {best['delimiter']!r}{quotes}"]
    rows = (row for row in _cut(text, best) if row)
    first_rows = list(itertools.islice(rows, _HEADER_ROWS))
    try:
        _find_header(first_rows, sides)
    except ExchangeError:
        # a row of words could name other columns
        is_text = any(" " in cell.strip() for cell in first_rows[0])
        if most[1] != 2 or not is_text or _names_languages(first_rows[0], sides):
            raise
        sides = [replace(side, column=str(number)) for number, side in enumerate(sides, start=1)]
        yield ["note", "no row names columns; the first one is taken for the source, the second for the target"]
    yield from _row_pairs(itertools.chain(first_rows, rows), sides)


def _without_note(name: str) -> str:
    """Return the name of a column without what stands in brackets behind it, as in `en (US)`."""
    return name.partition("(")[0].strip()


def _names_languages(row: Sequence[str], sides: Sequence[Side]) -> bool:
    """Return whether cells of a row name both languages, in English or in one of them, as in "German text"."""
    babel = import_extra("babel", "import")
    codes = [base_language(side.language) for side in sides]
    tables = [babel.Locale(code).languages for code in ("en", *codes) if babel.localedata.exists(code)]
    places: list[set[int]] = []
    for code in codes:
        names = [table[code].lower() for table in tables if code in table]
        places.append({place for place, cell in enumerate(row) if any(name in cell.lower() for name in names)})
    return all(places) and len(set.union(*places)) > 1


def _cut(text: str, dialect: dict[str, Any]) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), **dialect)


def _regularity(text: str, dialect: dict[str, Any]) -> tuple[float, int]:
    """Return how many rows have the commonest number of cells above 1, and that number; in prose, half as many."""
    lengths: Counter[int] = Counter()
    spaced = 0
    try:
        for row in _cut(text, dialect):
            if len(row) > 1:
                lengths[len(row)] += 1
                spaced += row[1].startswith(" ")
    except csv.Error:
        return (0, 0)
    # one mistake in a table does not make the quotation marks around all of its cells text
    is_quoted = 2 * text.count(f'"{dialect["delimiter"]}"') > lengths.total()
    if not lengths or ("quoting" in dialect and is_quoted):
        return (0, 0)
    length, count = max(lengths.items(), key=lambda item: (item[1], item[0]))
    # commas of sentences have spaces behind them
    return (count / 2 if 2 * spaced > lengths.total() else count, length)


def _row_pairs(rows: Iterable[list[str]], sides: Sequence[Side], sheet: str = "") -> Iterator[Line]:
    """Yield the pairs in the rows of a table below the one that names its columns.

    Raises:
        ExchangeError: if there is no such row.
    """
    remaining = iter(rows)
    header, places = _find_header(itertools.islice(remaining, _HEADER_ROWS), sides)
    names = " and ".join(header[place] or str(place + 1) for place in places)
    yield ["note", f"{sheet}columns {names}"]
    if all(side.column and side.column.isdecimal() for side in sides):
        # numbers are for tables without a header, whose first row is a pair
        remaining = itertools.chain([header], remaining)
    for row in remaining:
        yield ["pair", *(row[place] if place < len(row) else "" for place in places)]


def _find_header(rows: Iterable[list[str]], sides: Sequence[Side]) -> tuple[list[str], list[int]]:
    """Return the first row in which the columns of both sides are found, and their places."""
    problems: dict[int, ExchangeError] = {}
    for row in rows:
        header = [cell.strip() for cell in row]
        try:
            return header, [side.find(header) for side in sides]
        except ExchangeError as error:
            problems.setdefault(sum(map(bool, header)), error)
    # of the row with the most cells, which looks most like a header
    raise problems[max(problems)]


def json_pairs(text: str, is_lines: bool, sides: Sequence[Side]) -> Iterator[Line]:
    """Yield the pairs in the objects of JSON lines, of a list, or of the only list in an object.

    What is no object with two texts is dropped, and the first such place is noted.

    Raises:
        ExchangeError: if nothing else is there.
    """
    entries: Iterable[Any] | None
    # many programs write JSON lines to a file called .json
    if is_lines or re.match(r"\s*\{.*\}\s*\n\s*\{", text):
        # only a newline ends a line: JSON may hold other line breaks, such as U+2028
        numbered = enumerate(text.split("\n"), start=1)
        # one at a time, as each damaged one has an error
        entries = (_load_line(line, f"line {number}: ") for number, line in numbered if line.strip())
    else:
        loaded = _load_json(text, "")
        lists = loaded.values() if isinstance(loaded, dict) else [loaded]
        entries = next((value for value in lists if isinstance(value, list)), None)
    if entries is None:
        raise ExchangeError("no list of objects with a text for each language")

    names: list[str] = []
    problem = ""
    dropped = count = 0
    for number, entry in enumerate(entries, start=1):
        try:
            names, pair = _texts_of(entry, sides, names)
        except ExchangeError as error:
            where = "" if isinstance(entry, ExchangeError) else f"entry {number}: "
            problem = problem or f"{where}{error}"
            dropped += 1
            continue
        count += 1
        yield ["pair", *pair]
    if dropped and not count:
        raise ExchangeError(problem)
    if dropped:
        yield ["note", f"{dropped:,} of {dropped + count:,} entries dropped; the first one: {problem}"]
    yield from itertools.repeat(["dropped", "damaged entry"], dropped)


def _texts_of(entry: object, sides: Sequence[Side], known: list[str]) -> tuple[list[str], list[str]]:
    """Return the keys of both languages in an object, and the texts there.

    Args:
        entry: the object, or the error in its place.
        known: the keys in an earlier object, which names those of empty fields that a program has left out.

    Raises:
        ExchangeError: if it is none.
    """
    if isinstance(entry, ExchangeError):
        raise entry
    if not isinstance(entry, dict):
        raise ExchangeError("not an object with a text for each language")
    texts = entry["translation"] if isinstance(entry.get("translation"), dict) else entry
    keys = list(texts)
    try:
        names = [keys[side.find(keys)] for side in sides]
    except ExchangeError:
        if not known:
            raise
        names = known
    pair = ["" if texts.get(name) is None else texts[name] for name in names]
    for name, text in zip(names, pair, strict=True):
        if not isinstance(text, str):
            raise ExchangeError(f"the value of {name[:100]!r} is not a text")
    return names, pair


def _load_line(line: str, where: str) -> object:
    """Return the object in a line, or the error if there is none."""
    try:
        return _load_json(line, where)
    except ExchangeError as error:
        return error


def _load_json(content: str, where: str) -> Any:
    try:
        # not strict, which would refuse a tab in a text
        return json.loads(content, strict=False)
    except (ValueError, RecursionError) as error:
        raise ExchangeError(f"{where}not valid JSON ({reason(error)})") from None
