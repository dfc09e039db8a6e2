"""Rows of measurements in a JSON file, which further runs complete."""

import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measuring import log, synchronize

from hf_vanilla_transformer.files import write_whole

FAILED = "failed"


@dataclass
class Setup:
    """What the stages measure, and where."""

    text: Path
    output: Path
    small: bool
    device: torch.device

    @property
    def models(self) -> tuple[str, ...]:
        return ("tiny",) if self.small else ("base", "big")


class OutOfTimeError(Exception):
    """The time limit was reached before all rows were measured."""


class MissingError(Exception):
    """Something that a row requires is missing; the message names it."""


def describe(error: Exception) -> str:
    """Return the type and the first line of an error."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:120]}"


class Results:
    """The rows of all tables. A row that exists is not measured again.

    Args:
        path: JSON file, {table: {row: {column: value}}}.
        seconds: time limit; no row starts after it.
        retry: measure rows again that have failed.
    """

    def __init__(self, path: Path, seconds: float, retry: bool = False):
        self.path, self.deadline = path, time.monotonic() + seconds
        self.retry = retry
        self.tables: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text()) if path.is_file() else {}

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def limit(self, seconds: float) -> None:
        """Let no row start after so many seconds from now."""
        self.deadline = min(self.deadline, time.monotonic() + seconds)

    def measure(
        self, table: str, row: str, function: Callable[[], dict[str, Any]], seconds: float = 30
    ) -> dict[str, Any]:
        """Return the values of a row, which `function` measures unless they are known.

        An exception becomes the value of the column "failed". So does the end of the process: a row counts as failed
        until it is finished. After an error that leaves CUDA unusable, the process ends.

        Args:
            seconds: time that the row may need.

        Raises:
            OutOfTimeError: if the row is not known and less time is left than it may need.
        """
        rows = self.tables.setdefault(table, {})
        if row in rows and not (self.retry and FAILED in rows[row]):
            return rows[row]
        if self.seconds_left() < seconds:
            raise OutOfTimeError
        log(f"{table}: {row} ...")
        self._save(table, row, {FAILED: "the process ended"})
        try:
            values = function()
        except OutOfTimeError:
            del rows[row]
            self._write()
            raise
        except MissingError as error:
            values = {FAILED: str(error)}
        except Exception as error:  # running out of memory, for example; the other rows are still of interest
            log(traceback.format_exc())
            values = {FAILED: describe(error)}
        log(f"{table}: {row}: {values}")
        self._save(table, row, values)
        try:
            synchronize()
        except RuntimeError as error:
            log(f"CUDA cannot be used any more in this process: {describe(error)}")
            os._exit(1)
        return values

    def _save(self, table: str, row: str, values: dict[str, Any]) -> None:
        self.tables.setdefault(table, {})[row] = values
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps(self.tables, indent=2) + "\n")

    def markdown(self) -> str:
        """Return all tables as Markdown."""
        return "\n\n".join(f"### {name}\n\n{_markdown(rows)}" for name, rows in self.tables.items() if rows)


def _markdown(rows: dict[str, dict[str, Any]]) -> str:
    """Return a table with the union of the rows' columns."""
    columns = list(dict.fromkeys(column for values in rows.values() for column in values))
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row, values in rows.items():
        lines.append(f"| {row} | {' | '.join(_cell(values.get(column)) for column in columns)} |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    """Return a number with four significant digits, or text as it is."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")
