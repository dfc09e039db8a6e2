"""`vanilla-transformer translate`: translate stdin to stdout, line by line."""

import argparse
import io
import sys
from collections.abc import Iterable, Iterator
from queue import Queue
from threading import Thread
from typing import BinaryIO

from .flags import add_backend, add_decoding, add_dtype, add_models
from .models import decoding_settings, load_models

HELP = "translate stdin to stdout line by line"
MAX_LINES = 2000  # maximum number of lines that are sorted and batched together


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `translate`."""
    for add in (add_models, add_backend, add_dtype, add_decoding):
        add(parser)


def run(args: argparse.Namespace) -> None:
    """Print one translation per line of stdin, in order."""
    from tqdm import tqdm

    from ..data.readers import decode_lines
    from ..inference.translation import translate

    if sys.stdin is None:
        raise OSError("Standard input is closed: redirect the text to it with < FILE.")
    model, tokenizer = load_models(args.model, args.backend, args.dtype)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # the terminal's encoding may lack characters
    with tqdm(desc="Translating", unit=" sentences", file=sys.stderr, disable=sys.stdin.isatty()) as bar:
        for lines in _chunks(decode_lines(_standard_input(), "standard input")):
            translations = translate(
                model, tokenizer, lines, args.max_tokens, progress=bar.update, **decoding_settings(args)
            )
            for translation in translations:
                print(" ".join(translation.splitlines()))  # one line of output per line of input
            sys.stdout.flush()


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines that have arrived so far, at least one and at most `MAX_LINES` at a time."""
    queue: Queue[str | BaseException | None] = Queue(MAX_LINES)

    def read() -> None:
        try:
            for line in lines:
                queue.put(line)
            queue.put(None)
        except BaseException as error:  # raised again by the consumer
            queue.put(error)

    Thread(target=read, daemon=True).start()
    item: str | BaseException | None = ""
    while item is not None:
        chunk: list[str] = []
        item = queue.get()
        while isinstance(item, str):
            chunk.append(item)
            if len(chunk) == MAX_LINES or queue.empty():
                break
            item = queue.get()
        if chunk:
            yield chunk
        if isinstance(item, BaseException):
            raise item


def _standard_input() -> BinaryIO:
    """Return a second binary reader for standard input.

    At exit the interpreter closes the reader of `sys.stdin`, and aborts if a thread is still blocked in it.
    """
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # stdin has no file descriptor, as in tests
        return sys.stdin.buffer
