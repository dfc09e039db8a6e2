"""The command line `vanilla-transformer`; each verb has its file, in `commands/` or in a plugin.

Exit status: 0 on success, 1 on failure, 2 on incorrect use, 130 on Ctrl-C. A `UserError` becomes one line, to which
`--debug` adds its traceback; any other error is a bug, whose traceback is always shown.
"""

import inspect
import io
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from threading import current_thread, main_thread
from types import FrameType, ModuleType
from typing import NoReturn, get_type_hints

from .commands.console import UsageError, say
from .data.cores import share_cores
from .errors import UserError
from .flags import choose, parse
from .plugins import VERBS, find, load
from .version import __version__

# In the order of the help. Each is a module of its name in `commands/`, except for a public name
_MODULES = {"convert": "conversion"}
_NAMES = ("train", "evaluate", "compare", "score", "translate", "convert", "export", "push", "average")
_PROG = "vanilla-transformer"
_INTERRUPTED = 130  # exit status
_ERRNO = re.compile(r"\[Errno -?\d+\] ")  # in the message of an OSError, before the text that says the same
_WORKER = "Original Traceback (most recent call last)"  # in the message of an error of a DataLoader's worker
# For users as well: a file, the network or memory is to blame, not the code
_OUTSIDE_ERRORS = (OSError, UnicodeDecodeError, json.JSONDecodeError)


def _one_line(error: Exception) -> str:
    """Return the message of an error in one line, without numbers of errors and the traceback of a worker process."""
    text = _ERRNO.sub("", str(error))
    if _WORKER in text:
        last = text.strip().splitlines()[-1]
        text = last.partition(": ")[2] or last
    return " ".join(text.split())


def _ignore_lost_workers() -> None:
    """Disable torch's handler, which may raise again for a lost worker while its loss is explained and printed."""
    while True:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return
        except (ValueError, AttributeError):
            # only the main thread may do so; Windows has no such signal
            return
        except RuntimeError:
            # raised by the handler, before it was replaced
            continue


def _explain(error: Exception) -> tuple[int, str] | None:
    """Return the exit status and the line for an error that is meant for users, or None for a bug.

    The line is empty if the reader of the output has exited, as `head` does.
    """
    if isinstance(error, UsageError):
        return 2, str(error)
    # such as no memory left, or a lost process
    if isinstance(error, (RuntimeError, MemoryError, ConnectionError, FileNotFoundError, EOFError)):
        from .training.failures import reason_for

        if reason := reason_for(error):
            return 1, reason
    if isinstance(error, BrokenPipeError):
        return 1, ""
    if isinstance(error, (UserError, *_OUTSIDE_ERRORS)):
        return 1, _one_line(error)
    return None


@lru_cache
def find_verbs() -> dict[str, ModuleType | UserError]:
    """Return the module of each verb, those of the core before those of plugins, or why it cannot be imported."""
    found: dict[str, ModuleType | UserError] = {
        name: import_module(f".commands.{_MODULES.get(name, name)}", __package__) for name in _NAMES
    }
    for name in find(VERBS):
        try:
            found.setdefault(name, load(VERBS, name))
        except UserError as error:
            found[name] = error
    return found


def parses_words(verb: ModuleType | UserError) -> bool:
    """Return whether a verb parses its flags itself, because they include those of the Trainer, slow to import."""
    return isinstance(verb, ModuleType) and "argv" in inspect.signature(verb.run).parameters


def _help(verb: ModuleType | UserError) -> str:
    """Return what a verb does: the first line of its module, after its name."""
    if isinstance(verb, UserError):
        return str(verb).replace("%", "%%")
    return str(verb.__doc__).splitlines()[0].partition(": ")[2].rstrip(".")


def _given(words: Sequence[str]) -> set[str]:
    """Return the names of the flags among words."""
    return {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}


def _variants(name: str) -> dict[str, str]:
    """Return the flags with which a plugin takes over a verb, each with the name of the plugin's.

    The one called `translate.input_files` runs `translate` with `--input_files`.
    """
    return {other.partition(".")[2]: other for other in find_verbs() if other.startswith(f"{name}.")}


def _epilog(name: str) -> str:
    """Return the end of the help of a verb: what plugins add to it."""
    if not find(VERBS):
        return "Plugins are missing, because the package is not installed but imported from its folder."
    flags_of: dict[str, list[str]] = {}
    for flag, other in _variants(name).items():
        flags_of.setdefault(_help(find_verbs()[other]), []).append(f"--{flag}")
    variants = [f"{' or '.join(flags)}: {help}" for help, flags in flags_of.items()]
    return f"Plugins add these; --help lists their other flags: {'; '.join(variants)}." if variants else ""


def _run(words: Sequence[str]) -> None:
    helps = {name: _help(verb) for name, verb in find_verbs().items() if "." not in name}
    name = choose(
        helps,
        words,
        prog=_PROG,
        description="Train, evaluate and use the original Transformer (2017).",
        metavar="VERB",
        version=f"{_PROG} {__version__}",
    )
    given = _given(words[1:])
    variant = next((other for flag, other in _variants(name).items() if flag in given), name)
    verb = find_verbs()[variant]
    if isinstance(verb, UserError):
        raise verb
    if parses_words(verb):
        verb.run(words[1:])
        return
    try:
        arguments = get_type_hints(verb.run)["args"]
        epilog = _epilog(name) if variant == name else None
        args = parse(arguments, words[1:], prog=f"{_PROG} {name}", description=_help(verb), epilog=epilog)
    except UserError as error:
        raise UsageError(str(error)) from error
    verb.run(args)


def _draw_only_long_bars() -> None:
    """Draw progress bars, also those of other libraries, only in a terminal and after the first second.

    tqdm reads these defaults of its arguments when it is imported, so a program that has imported it keeps its own.
    """
    if "tqdm" in sys.modules:
        return
    os.environ.setdefault("TQDM_DELAY", "1")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")


class _ClosedOutput(io.TextIOBase):
    """A standard output that the caller has closed."""

    def write(self, text: str) -> int:
        """Raise an OSError: print() would discard results without a word."""
        raise OSError("Standard output is closed, so results would be lost: redirect it, for example with > FILE.")


@contextmanager
def _noting_interrupts(interrupts: list[int]) -> Iterator[None]:
    """Add to `interrupts` on Ctrl-C, which compiled code may turn into an error of its own."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        interrupts.append(number)
        raise KeyboardInterrupt

    # only Python's own handler is replaced, which only the main thread may do
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(error: Exception | KeyboardInterrupt, interrupted: bool, debug: bool) -> int:
    """Report why a verb ended, in one line, and return the exit status; raise a bug."""
    _ignore_lost_workers()
    if interrupted or isinstance(error, KeyboardInterrupt):
        say(f"{_PROG}: interrupted")
        return _INTERRUPTED
    explanation = _explain(error)
    if explanation is None:
        raise error
    status, line = explanation
    if not line:
        # or Python would complain about what is still to be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status
    if debug:
        traceback.print_exception(error)
    say(f"{_PROG}: {line}")
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    if sys.stderr is None:
        # closed by the caller; print() would mix messages with the results on stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    share_cores()
    _draw_only_long_bars()
    words = sys.argv[1:] if argv is None else argv
    debug = "--debug" in words
    interrupts: list[int] = []
    try:
        try:
            with _noting_interrupts(interrupts):
                _run(words)
        except (Exception, KeyboardInterrupt) as error:
            return _end(error, bool(interrupts), debug)
    except (RuntimeError, KeyboardInterrupt) as error:
        # raised by signals, also while another error is reported: torch's handler raises one for a lost worker
        return _end(error, bool(interrupts), debug)
    return 0


def run_program(*words: str) -> NoReturn:
    """Run the verb given by `words` and the command line, and end this process."""
    status = main([*words, *sys.argv[1:]])
    if status == _INTERRUPTED and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Python ends in a moment, in which a second Ctrl-C would be a traceback
        signal.signal(signal.SIGINT, lambda *_: os._exit(status))
    sys.exit(status)
