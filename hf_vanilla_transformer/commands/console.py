"""Console output of the command line: results go to stdout, everything else to stderr."""

import io
import json
import sys

from ..errors import UserError
from ..files import JsonObject


class UsageError(UserError):
    """Incorrect use of the command line, reported with exit status 2."""


def print_in_utf8() -> None:
    """Let stdout take every character, which the terminal's encoding may not."""
    # A program that calls `main` may have replaced it
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


def as_json(result: JsonObject, digits: int, indent: int | None = 2) -> str:
    """Return a result as JSON, with its numbers rounded to some digits behind the point."""
    rounded = json.loads(json.dumps(result), parse_float=lambda number: round(float(number), digits))
    return json.dumps(rounded, indent=indent)


def say(*words: object) -> None:
    """Print a message for the user to stderr."""
    print(*words, file=sys.stderr, flush=True)
