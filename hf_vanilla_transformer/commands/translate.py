"""`vanilla-transformer translate`: translate stdin to stdout, line by line, or files into a folder."""

import io
import sys
from collections.abc import Iterable, Iterator
from queue import Queue
from threading import Thread
from typing import BinaryIO

from ..flags import Settings
from . import translate_files
from .console import UsageError, say
from .models import decoding_settings, direction, load_translator, report_problems, resolve_languages
from .translate_flags import TranslateArguments

HELP = "translate stdin to stdout line by line, or files into a folder"
MAX_LINES = 2000  # maximum number of lines that are sorted and batched together


def run(args: TranslateArguments) -> None:
    """Translate files into a folder if any are given; otherwise print one translation per line of stdin, in order."""
    if args.input_files:
        translate_files.run(args, _sampling(args))
    else:
        _translate_standard_input(args)


def _translate_standard_input(args: TranslateArguments) -> None:
    from tqdm import tqdm
    from transformers import set_seed

    from ..data.formats import decode_lines

    if sys.stdin is None:
        raise OSError("Standard input is closed: redirect the text to it with < FILE.")
    sampling = _sampling(args)
    if args.do_sample:
        set_seed(args.seed)
    translator = load_translator(args.model, args.backend, args.dtype)
    settings = {**direction(args), **decoding_settings(args), **sampling, "split_sentences": args.split_sentences}
    resolve_languages(translator, args)  # before stdin is read
    lines_read = untranslated = 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        # the terminal's encoding may lack characters
        sys.stdout.reconfigure(encoding="utf-8")
    with tqdm(desc="Translating", unit=" sentences", file=sys.stderr, disable=sys.stdin.isatty()) as bar:
        for lines in _chunks(decode_lines(_standard_input(), "standard input"), wait=args.do_sample):
            translations = translator.translate(lines, max_tokens=args.max_tokens, progress=bar.update, **settings)
            for translation in translations:
                # one line of output per line of input
                print(" ".join(translation.text.splitlines()))
            sys.stdout.flush()
            untranslated += report_problems(translations, "standard input", lines_read + 1)
            lines_read += len(lines)
    if untranslated:
        whole_or_part = "in part" if args.split_sentences else "and left blank"
        say(f"{untranslated:,} of {lines_read:,} lines were not translated, {whole_or_part}")


def _sampling(args: TranslateArguments) -> Settings:
    """Return the settings of sampling."""
    if not args.do_sample:
        if args.top_k is not None:
            raise UsageError("--top_k has no effect without --do_sample.")
        return {}
    if args.backend != "torch":
        raise UsageError("--do_sample requires --backend torch.")
    return {"do_sample": True, "num_beams": args.num_beams or 1, "top_k": args.top_k or 0}


def _chunks(lines: Iterable[str], wait: bool) -> Iterator[list[str]]:
    """Yield the lines that have arrived so far, at least one and at most `MAX_LINES` at a time.

    Args:
        wait: wait for `MAX_LINES` lines or the end, so that sampling does not depend on when lines arrive.
    """
    queue: Queue[str | BaseException | None] = Queue(MAX_LINES)

    def read() -> None:
        try:
            for line in lines:
                queue.put(line)
            queue.put(None)
        except BaseException as error:
            # raised again by the consumer
            queue.put(error)

    Thread(target=read, daemon=True).start()
    item: str | BaseException | None = ""
    while item is not None:
        chunk: list[str] = []
        item = queue.get()
        while isinstance(item, str):
            chunk.append(item)
            if len(chunk) == MAX_LINES or (queue.empty() and not wait):
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
    except io.UnsupportedOperation:
        # stdin has no file descriptor, as in tests
        return sys.stdin.buffer
