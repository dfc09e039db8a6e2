"""Console output of the command line: results go to stdout, everything else to stderr."""

import sys


class UsageError(Exception):
    """Incorrect use of the command line, reported with exit status 2."""


def say(*words: object) -> None:
    """Print a message for the user to stderr."""
    print(*words, file=sys.stderr, flush=True)
