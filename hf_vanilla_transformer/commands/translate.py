"""`vanilla-transformer translate`: translate stdin to stdout, line by line."""

import argparse
import io
import sys
from collections.abc import Iterable, Iterator
from queue import Queue
from threading import Thread
from typing import Any

from .flags import add_backend, add_decoding, add_models
from .models import decoding_settings, load_models

HELP = "translate stdin to stdout line by line"
MAX_LINES = 2000  # that are sorted and batched together


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `translate`."""
    for add in (add_models, add_backend, add_decoding):
        add(parser)


def run(args: argparse.Namespace) -> None:
    """Print one translation per line of stdin, in order."""
    from tqdm import tqdm

    from ..data.readers import decode_lines
    from ..inference.translation import translate

    if sys.stdin is None:
        raise OSError("Standard input is closed: give the text as < FILE.")
    model, tokenizer = load_models(args.model, args.backend)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the terminal's encoding: text may hold any character
    with tqdm(desc="Translating", unit=" sentences", file=sys.stderr, disable=sys.stdin.isatty()) as bar:
        for lines in _chunks(decode_lines(_standard_input(), "standard input")):
            translations = translate(
                model, tokenizer, lines, args.max_tokens, progress=bar.update, **decoding_settings(args)
            )
            for translation in translations:
                print(" ".join(translation.splitlines()))  # a line break would shift all later lines
            sys.stdout.flush()


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines in chunks: those that have arrived so far, at least one and at most `MAX_LINES`."""
    waiting: Queue[str | BaseException | None] = Queue(MAX_LINES)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(None)
        except BaseException as error:  # raised again by the consumer
            waiting.put(error)

    Thread(target=read, daemon=True).start()
    item: str | BaseException | None = ""
    while item is not None:
        chunk: list[str] = []
        item = waiting.get()
        while isinstance(item, str):
            chunk.append(item)
            if len(chunk) == MAX_LINES or waiting.empty():
                break
            item = waiting.get()
        if chunk:
            yield chunk
        if isinstance(item, BaseException):
            raise item


def _standard_input() -> Any:
    """Return a second reader of stdin's bytes.

    The interpreter closes that of `sys.stdin` when it exits, and aborts if a thread is still waiting in it.
    """
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # stdin is not a real file, as in tests
        return sys.stdin.buffer
