"""The command line `vanilla-transformer`; each verb has its file in `commands/`.

Exit status: 0 on success, 1 on failure, 2 on incorrect use, 130 on Ctrl-C. A `UserError` becomes one line, to which
`--debug` adds its traceback; any other error is a bug, whose traceback is always shown.
"""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import get_type_hints

from .commands.console import UsageError, draw_only_long_bars, say
from .errors import UserError
from .flags import choose, parse
from .version import __version__

# In the order of the help. Each is a module of its name in `commands/`, except for a word of Python and a public name
_MODULES = {"import": "import_text", "convert": "conversion"}
_NAMES = ("evaluate", "compare", "score", "translate", "convert", "export", "push", "demo", "serve", "plot")
VERBS: dict[str, ModuleType] = {
    name: import_module(f".commands.{_MODULES.get(name, name)}", __package__)
    for name in (*_NAMES, "import", "prepare", "average")
}
# Their flags include those of the Trainer, which is slow to import, so they parse them themselves
TRAINER_VERBS = {name: import_module(f".commands.{name}", __package__) for name in ("train", "tune")}
# Verbs whose results go to stdout
PRINTING = ("evaluate", "compare", "score", "translate", "import", "prepare", "push", "tune")
_PROG = "vanilla-transformer"
_WORKER = "Original Traceback (most recent call last)"  # in the message of an error of a DataLoader's worker
# For users as well: a file, the network or memory is to blame, not the code
_OUTSIDE_ERRORS = (OSError, UnicodeDecodeError, json.JSONDecodeError)


def _one_line(error: Exception) -> str:
    """Return the message of an error in one line, without the traceback of a worker process."""
    text = str(error)
    if _WORKER in text:
        last = text.strip().splitlines()[-1]
        text = last.partition(": ")[2] or last
    return " ".join(text.split())


def _explain(error: Exception) -> tuple[int, str] | None:
    """Return the exit status and the line for an error that is meant for users, or None for a bug."""
    if isinstance(error, UsageError):
        return 2, str(error)
    if isinstance(error, (UserError, *_OUTSIDE_ERRORS)):
        return 1, _one_line(error)
    if isinstance(error, (RuntimeError, MemoryError)):
        # such as a full disk while weights are written, or no memory left on a GPU
        from .training.safeguards import reason_for

        reason = reason_for(error)
        return None if reason is None else (1, reason)
    return None


def _wants_traceback(words: Sequence[str]) -> bool:
    """Return whether `--debug` is given; with a value, it is transformers' flag of that name."""
    takes_value = bool(words) and words[0] in TRAINER_VERBS
    pairs = pairwise([*words, "-"])
    return any(word == "--debug" and (not takes_value or after.startswith("-")) for word, after in pairs)


def _help(verb: ModuleType) -> str:
    """Return what a verb does: the first line of its module, after its name."""
    return str(verb.__doc__).splitlines()[0].partition(": ")[2].rstrip(".")


def _run(words: Sequence[str]) -> None:
    helps = {name: _help(verb) for name, verb in {**TRAINER_VERBS, **VERBS}.items()}
    name = choose(
        helps,
        words,
        prog=_PROG,
        description="Train, evaluate and use the original Transformer (2017).",
        metavar="VERB",
        version=f"{_PROG} {__version__}",
    )
    if sys.stdout is None and name in PRINTING:
        raise OSError("Standard output is closed, so results would be lost: redirect it, for example with > FILE.")
    if name in TRAINER_VERBS:
        TRAINER_VERBS[name].run(words[1:])
        return
    verb = VERBS[name]
    try:
        arguments = get_type_hints(verb.run)["args"]
        args = parse(arguments, words[1:], prog=f"{_PROG} {name}", description=helps[name])
    except UserError as error:
        raise UsageError(str(error)) from error
    verb.run(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    if sys.stderr is None:
        # closed by the caller; print() would mix messages with the results on stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    draw_only_long_bars()
    words = sys.argv[1:] if argv is None else argv
    # before the flags are parsed, since parsing may fail
    debug = _wants_traceback(words)
    try:
        _run(words)
    except BrokenPipeError:
        # the reader of the output has exited, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        say(f"{_PROG}: interrupted")
        return 130
    except SystemExit as stop:
        # raised by argparse, also for values that a dataclass refuses
        if debug and stop.code == 2:
            traceback.print_exc()
        raise
    except Exception as error:
        explanation = _explain(error)
        if explanation is None:
            raise
        if debug:
            traceback.print_exc()
        status, line = explanation
        say(f"{_PROG}: {line}")
        return status
    return 0
