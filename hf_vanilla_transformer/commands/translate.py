"""`vanilla-transformer translate`: translate stdin to stdout, line by line, or files into a folder."""

import io
import sys
from collections.abc import Iterable, Iterator
from queue import Queue
from threading import Thread
from typing import Any, BinaryIO

from . import translate_files
from .console import UsageError, say
from .models import decoding_settings, direction, load_translator, report_problems, resolve_languages
from .translate_flags import TranslateArguments

HELP = "translate stdin to stdout line by line, or files into a folder"
MAX_LINES = 2000  # maximum number of lines that are sorted and batched together


def run(args: TranslateArguments) -> None:
    """Translate files into a folder if any are given; otherwise print one translation per line of stdin, in order."""
    from tqdm import tqdm
    from transformers import set_seed

    from ..data.formats import decode_lines

    sampling = _sampling(args)
    if args.input_files:
        translate_files.run(args, sampling)
        return
    # Python has no stdin if it was closed, as by a service manager
    if sys.stdin is None:
        raise OSError("Standard input is closed: redirect the text to it with < FILE.")

    if args.do_sample:
        set_seed(args.seed)
    translator = load_translator(args.model, args.backend, args.dtype)
    settings = {**direction(args), **decoding_settings(args), **sampling, "split_sentences": args.split_sentences}
    # Before stdin is read, so that a wrong language is reported even if nothing arrives there
    resolve_languages(translator, args)
    # The terminal's encoding may lack characters. A program that calls `main` may have replaced stdout
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")

    lines_read = 0
    untranslated = 0
    # No bar while someone types, which would be drawn over
    with tqdm(desc="Translating", unit=" sentences", file=sys.stderr, disable=sys.stdin.isatty()) as bar:
        for lines in _chunks(decode_lines(_standard_input(), "standard input"), wait=args.do_sample):
            translations = translator.translate(lines, max_tokens=args.max_tokens, progress=bar.update, **settings)
            for translation in translations:
                # One line of output per line of input: a model may generate a line break
                print(" ".join(translation.text.splitlines()))
            sys.stdout.flush()
            untranslated += report_problems(translations, "standard input", lines_read + 1)
            lines_read += len(lines)
    if untranslated:
        whole_or_part = "in part" if args.split_sentences else "and left blank"
        say(f"{untranslated:,} of {lines_read:,} lines were not translated, {whole_or_part}")


def _sampling(args: TranslateArguments) -> dict[str, Any]:
    """Return the settings of sampling."""
    if not args.do_sample:
        if args.top_k is not None:
            raise UsageError("--top_k has no effect without --do_sample.")
        return {}
    if args.backend != "torch":
        raise UsageError("--do_sample requires --backend torch.")
    # One beam and all tokens, to sample from the model's own distribution; `generate` would take the model's beams and
    # only the 50 best tokens
    return {"do_sample": True, "num_beams": args.num_beams or 1, "top_k": args.top_k or 0}


def _chunks(lines: Iterable[str], wait: bool) -> Iterator[list[str]]:
    """Yield the lines that have arrived so far, at least one and at most `MAX_LINES` at a time.

    Args:
        wait: wait for `MAX_LINES` lines or the end, so that sampling does not depend on when lines arrive.
    """
    queue: Queue[str | BaseException | None] = Queue(MAX_LINES)

    # In a thread, because reading blocks: only so can the lines that are there be told from those still to come
    def read() -> None:
        try:
            for line in lines:
                queue.put(line)
            queue.put(None)
        except BaseException as error:
            queue.put(error)

    # A daemon, so that a failure ends the process while the thread still waits for a line
    Thread(target=read, daemon=True).start()
    last: str | BaseException | None = ""
    while isinstance(last, str):
        last = queue.get()
        chunk = []
        while isinstance(last, str):
            chunk.append(last)
            if len(chunk) == MAX_LINES or (queue.empty() and not wait):
                break
            last = queue.get()
        if chunk:
            yield chunk
    # An invalid line ends the text only after the lines before it are translated
    if last is not None:
        raise last


def _standard_input() -> BinaryIO:
    """Return a second binary reader for standard input.

    At exit the interpreter closes the reader of `sys.stdin`, and aborts if a thread is still blocked in it.
    """
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:
        # Tests replace stdin with one that has no file descriptor
        return sys.stdin.buffer
