"""The command line `vanilla-transformer`; each verb has its file in `commands/`.

Exit status: 0 on success, 1 on failure with a one-line message, 2 on incorrect use, 130 on Ctrl-C.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from .commands import (
    average,
    compare,
    demo,
    evaluate,
    export,
    plot,
    prepare,
    push,
    score,
    serve,
    train,
    translate,
    tune,
)
from .commands.console import UsageError, say
from .version import __version__

TRAINER_VERBS: dict[str, ModuleType] = {"train": train, "tune": tune}  # include the Trainer's flags, slow to import
VERBS: dict[str, ModuleType] = {
    "evaluate": evaluate,
    "compare": compare,
    "score": score,
    "translate": translate,
    "export": export,
    "push": push,
    "demo": demo,
    "serve": serve,
    "plot": plot,
    "prepare": prepare,
    "average": average,
}
PRINTING = ("evaluate", "compare", "score", "translate", "prepare", "push", "tune")  # verbs whose results go to stdout


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vanilla-transformer",
        description="Train, evaluate and use the original Transformer (2017).",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in TRAINER_VERBS.items():
        verbs.add_parser(name, help=verb.HELP, add_help=False)
    for name, verb in VERBS.items():
        flags = verbs.add_parser(name, help=verb.HELP)
        verb.add_flags(flags)
        flags.set_defaults(run_verb=verb.run)
    return parser


def _one_line(error: Exception) -> str:
    """Return the message of an error in one line, without the traceback of a worker process."""
    text = str(error)
    if "Original Traceback (most recent call last)" in text:  # raised in a worker of a DataLoader
        last = text.strip().splitlines()[-1]
        text = last.partition(": ")[2] or last
    return " ".join(text.split())


def _run(argv: Sequence[str]) -> None:
    parser = _parser()
    if sys.stdout is None and argv and argv[0] in PRINTING:
        raise OSError("Standard output is closed, so results would be lost: redirect it, for example with > FILE.")
    if argv and argv[0] in TRAINER_VERBS:
        TRAINER_VERBS[argv[0]].run(argv[1:])
    else:
        args = parser.parse_args(argv)
        args.run_verb(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    if sys.stderr is None:  # closed by the caller; print() would mix messages with the results on stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        _run(sys.argv[1:] if argv is None else argv)
    except UsageError as error:
        say(f"vanilla-transformer: {error}")
        return 2
    except BrokenPipeError:  # the reader of the output has exited, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError, ImportError, ArithmeticError) as error:
        say("vanilla-transformer:", _one_line(error))
        return 1
    except (RuntimeError, MemoryError) as error:
        from .training.safeguards import reason_for

        reason = reason_for(error)
        if reason is None:
            raise
        say("vanilla-transformer:", reason)
        return 1
    except KeyboardInterrupt:
        say("vanilla-transformer: interrupted")
        return 130
    return 0
