"""`vanilla-transformer translate`: translate stdin to stdout line by line; plugins translate documents and files."""

import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO

from ..errors import UserError
from ..flags import Settings, numpy_seed, option, positive, values_of
from .console import UsageError, print_in_utf8, say
from .models import load_translator, report_problems, resolve_languages, translate_settings, with_reverse_model
from .shared_flags import GlossaryFlags, PlaceholderFlags, ReverseFlags

if TYPE_CHECKING:
    from ..inference.translator import Translator

MAX_LINES = 2000  # maximum number of lines that are sorted and batched together


@dataclass(kw_only=True)
class TranslateFlags(ReverseFlags, GlossaryFlags, PlaceholderFlags):
    """The flags of `translate`, which plugins inherit that translate more than lines on stdin.

    Args:
        do_sample: sample tokens instead of searching for the best
        top_k: sample only from this many tokens (default: all)
        seed: seed of the sampling
        split_sentences: cut each line into sentences, for paragraphs and long lines
    """

    do_sample: bool = option(False)
    top_k: int | None = option(None, parse=positive)
    seed: int = option(42, parse=numpy_seed)
    split_sentences: bool = option(False)

    def __post_init__(self):
        super().__post_init__()
        for name in self.model:
            if Path(name).is_file():
                raise UserError(f"{name} is a file, not a model; documents are translated with --output_dir FOLDER.")
        self.check_reverse()
        if self.do_sample and self.reverse_model:
            raise UserError("--reverse_model reranks the hypotheses of a beam search: omit --do_sample.")

    @property
    def search_beams(self) -> int | None:
        """The beam size, or None for that of the model; sampling has one beam."""
        return self.num_beams or (1 if self.do_sample else None)

    def settings(self) -> Settings:
        """Return the flags as arguments of `Translator.translate`.

        Raises:
            UsageError: if they contradict each other.
        """
        settings = {**translate_settings(self), **values_of(self, PlaceholderFlags)}
        if not self.do_sample:
            if self.top_k is not None:
                raise UsageError("--top_k has no effect without --do_sample.")
            return settings
        if self.backend != "torch":
            raise UsageError("--do_sample requires --backend torch.")
        # One beam and all tokens, to sample from the model's own distribution; `generate` would take the model's beams
        # and only the 50 best tokens
        sampling = {"do_sample": True, "num_beams": self.search_beams, "top_k": self.top_k or 0}
        return {**settings, **sampling}

    def line_settings(self) -> Settings:
        """Return `settings` for lines, each of which is a sentence, or cut into sentences.

        Raises:
            UsageError: as `settings`.
        """
        if not self.split_sentences:
            if self.placeholders is not None:
                raise UsageError("--placeholders requires --split_sentences.")
            return self.settings()
        return {**self.settings(), "split_sentences": True}

    def load(self, models: Sequence[str], dtype: str | None) -> "Translator":
        """Load the translator, for the search that the flags ask for, and seed what is sampled."""
        from transformers import set_seed

        if self.do_sample:
            set_seed(self.seed)
        translator = load_translator(models, self.backend, dtype, num_beams=self.search_beams)
        return with_reverse_model(translator, self)

    def glossary_settings(self, translator: "Translator") -> Settings:
        """Return the glossary, if there is one, as an argument of `Translator.translate`.

        Raises:
            OSError, ValueError: as `read_glossary`.
        """
        if self.glossary is None:
            return {}
        from ..inference.glossary import read_glossary

        source_lang, target_lang = resolve_languages(translator, self)
        direction = (source_lang or "source", target_lang or "target")
        return {"glossary": read_glossary(self.glossary, [direction])[direction]}


def run(args: TranslateFlags) -> None:
    """Print one translation per line of stdin, in order."""
    from tqdm import tqdm

    from ..data.formats import decode_lines

    settings = args.line_settings()
    text = open_standard_input()
    translator = args.load(args.model, args.dtype)
    # Before stdin is read, so that a wrong language is reported even if nothing arrives there
    resolve_languages(translator, args)
    settings |= args.glossary_settings(translator)
    print_in_utf8()
    lines_read = 0
    untranslated = 0
    # No bar while someone types, which would be drawn over; None: only in a terminal
    hidden = sys.stdin.isatty() or None
    with tqdm(desc="Translating", unit=" sentences", file=sys.stderr, disable=hidden) as bar:
        for lines in _chunks(decode_lines(text, "standard input"), wait=args.do_sample):
            translations = translator.translate(lines, progress=bar.update, **settings)
            for translation in translations:
                # One line of output per line of input: a model may generate a line break
                print(" ".join(translation.text.splitlines()))
            sys.stdout.flush()
            untranslated += report_problems(translations, "standard input", lines_read + 1)
            lines_read += len(lines)
    if untranslated:
        whole_or_part = "in part" if args.split_sentences else "and left blank"
        say(f"{untranslated:,} of {lines_read:,} lines were not translated, {whole_or_part}")


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
    chunk: list[str] = []
    while isinstance(last := queue.get(), str):
        chunk.append(last)
        if len(chunk) == MAX_LINES or (queue.empty() and not wait):
            yield chunk
            chunk = []
    if chunk:
        yield chunk
    # An invalid line ends the text only after the lines before it are translated
    if last is not None:
        raise last


def open_standard_input() -> BinaryIO:
    """Return a second binary reader for standard input.

    At exit the interpreter closes the reader of `sys.stdin`, and aborts if a thread is still blocked in it.

    Raises:
        OSError: if standard input is closed.
    """
    # Python has no stdin if it was closed, as by a service manager
    if sys.stdin is None:
        raise OSError("Standard input is closed: redirect the text to it with < FILE.")
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:
        # Tests replace stdin with one that has no file descriptor
        return sys.stdin.buffer
