"""Messages of the command line: results go to stdout, everything else to stderr."""

import sys
from typing import Any


class UsageError(Exception):
    """Wrong use of the command line: exit status 2."""


def say(*words: Any) -> None:
    """Print a message for people on stderr."""
    print(*words, file=sys.stderr, flush=True)
