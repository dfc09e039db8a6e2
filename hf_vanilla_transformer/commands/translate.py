"""`vanilla-transformer translate`: translate stdin to stdout line by line, or documents or large files."""

import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from ..errors import UserError
from ..files import JsonObject, check_folder, replacing
from ..flags import Settings, numpy_seed, option, positive
from ..plugins import DOCUMENTS, find, load
from .console import UsageError, print_in_utf8, say
from .models import load_translator, report_problems, resolve_languages, translate_settings
from .runner_flags import RunnerFlags
from .shared_flags import BackendFlags, DecodingFlags, DtypeFlags, ModelsFlags

if TYPE_CHECKING:
    from ..inference.translator import Translator

PRINTS_RESULTS = True

ENDINGS = tuple(f".{name}" for name in find(DOCUMENTS))  # of the files of which a plugin knows the texts
MAX_LINES = 2000  # maximum number of lines that are sorted and batched together


@dataclass(kw_only=True)
class FileFlags(RunnerFlags):
    """The flags of `translate` for files."""

    TITLE: ClassVar[str] = "files instead of stdin, in tasks that resume and run in parallel"

    input_files: list[str] | None = option(
        "files or patterns such as 'corpus/*.jsonl.zst': text, .jsonl (or .gz, .zst) or .parquet", None, metavar="FILE"
    )
    output_dir: str | None = option("folder for the translations, which train --train_file reads", None)
    output_format: str = option("jsonl for pairs, txt for translations only", "jsonl", choices=("jsonl", "txt"))
    scores: bool = option("add the score of each translation to the pairs", False)
    nbest: int = option("write this many translations of each line", 1, parse=positive)
    shard_lines: int = option("lines per task", 10_000, parse=positive)

    documents: list[str] = field(default_factory=list, init=False)

    def __post_init__(self):
        changed = [flag.name for flag in fields(FileFlags) if flag.init and getattr(self, flag.name) != flag.default]
        if self.documents:
            if [getattr(self, name) for name in changed] != [self.output_dir]:
                raise UserError("Documents need --output_dir, and none of the other flags for files.")
            return
        if changed and not self.input_files and not self.output_dir:
            raise UserError(
                f"{', '.join(f'--{name}' for name in sorted(changed))} can only be used with --input_files."
            )
        if bool(self.input_files) != bool(self.output_dir):
            raise UserError("--input_files and --output_dir belong together; without them, stdin is translated.")


@dataclass(kw_only=True)
class TranslateArguments(ModelsFlags, BackendFlags, DtypeFlags, DecodingFlags, FileFlags):
    """The flags of `translate`."""

    model: list[str] = option(
        "folder of a trained model or its name on the Hub, several for an ensemble; then documents that become ones "
        f"in --output_dir: {' '.join(ENDINGS)}",
        metavar="MODEL_OR_DOCUMENT",
        positional=True,
    )
    do_sample: bool = option("sample tokens instead of searching for the best", False)
    top_k: int | None = option("sample only from this many tokens (default: all)", None, parse=positive)
    seed: int = option("seed of the sampling", 42, parse=numpy_seed)
    split_sentences: bool = option("cut each line into sentences, for paragraphs and long lines", False)
    format: str = option("html for a page on stdin, whose tags are kept", "text", choices=("text", "html"))

    def __post_init__(self):
        # No name of a model ends like that of a document, but a folder may
        self.documents = [
            name for name in self.model if Path(name).suffix.lower() in ENDINGS and not Path(name).is_dir()
        ]
        self.model = [name for name in self.model if name not in self.documents]
        if not self.model:
            raise UserError("Name the model before the documents.")
        for name in self.model:
            if Path(name).is_file():
                known = " ".join(ENDINGS) or "none, since this package is not installed"
                raise UserError(f"{name} is neither a model nor a document that a plugin translates ({known}).")
        super().__post_init__()


def run(args: TranslateArguments) -> None:
    """Translate files into a folder if any are given; otherwise print one translation per line of stdin, in order."""
    from tqdm import tqdm
    from transformers import set_seed

    from ..data.formats import decode_lines

    settings = {**translate_settings(args), **_sampling(args)}
    if args.format == "html" and args.output_dir:
        raise UsageError("--format html is for standard input.")
    if args.input_files:
        _translate_files(args, settings)
        return
    if args.do_sample:
        set_seed(args.seed)
    if args.documents:
        _translate_documents(args, settings)
        return
    # Python has no stdin if it was closed, as by a service manager
    if sys.stdin is None:
        raise OSError("Standard input is closed: redirect the text to it with < FILE.")

    translator = _load(args, args.model, args.dtype)
    # Before stdin is read, so that a wrong language is reported even if nothing arrives there
    resolve_languages(translator, args)
    print_in_utf8()
    if args.format == "html":
        pages = load(DOCUMENTS, "html").texts_of(_standard_input().read(), "standard input")
        (translation,) = translator.translate_html(pages, **settings)
        print(translation.text, end="")
        report_problems([translation], "standard input")
        return

    settings |= {"split_sentences": args.split_sentences}
    lines_read = 0
    untranslated = 0
    # No bar while someone types, which would be drawn over; None: only in a terminal
    hidden = sys.stdin.isatty() or None
    with tqdm(desc="Translating", unit=" sentences", file=sys.stderr, disable=hidden) as bar:
        for lines in _chunks(decode_lines(_standard_input(), "standard input"), wait=args.do_sample):
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


def _sampling(args: TranslateArguments) -> Settings:
    """Return the settings of sampling."""
    if not args.do_sample:
        if args.top_k is not None:
            raise UsageError("--top_k has no effect without --do_sample.")
        return {}
    if args.backend != "torch":
        raise UsageError("--do_sample requires --backend torch.")
    # One beam and all tokens, to sample from the model's own distribution; `generate` would take the model's beams and
    # only the 50 best tokens
    return {"do_sample": True, "num_beams": _num_beams(args), "top_k": args.top_k or 0}


def _num_beams(args: TranslateArguments) -> int | None:
    """Return the beam size, or None for that of the model; sampling has one beam."""
    return args.num_beams or (1 if args.do_sample else None)


def _load(args: TranslateArguments, models: Sequence[str], dtype: str | None) -> "Translator":
    """Load the translator, for the search that the flags ask for."""
    return load_translator(models, args.backend, dtype, num_beams=_num_beams(args), do_sample=args.do_sample)


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


def _standard_input() -> BinaryIO:
    """Return a second binary reader for standard input.

    At exit the interpreter closes the reader of `sys.stdin`, and aborts if a thread is still blocked in it.
    """
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:
        # Tests replace stdin with one that has no file descriptor
        return sys.stdin.buffer


def _translate_documents(args: TranslateArguments, settings: Settings) -> None:
    """Translate documents into a folder, and print the path of each translation."""
    from tqdm import tqdm

    assert args.output_dir  # checked by the flags
    check_folder(args.output_dir)
    outputs = [Path(args.output_dir, Path(name).name) for name in args.documents]
    if len({path.resolve() for path in [*map(Path, args.documents), *outputs]}) < 2 * len(outputs):
        raise UsageError("Documents need different names, and an --output_dir that is not their own folder.")
    # All of them, so that a damaged one is reported before the model is loaded
    contents = [Path(name).read_bytes() for name in args.documents]
    formats = [load(DOCUMENTS, Path(name).suffix.lower().removeprefix(".")) for name in args.documents]
    texts = [
        format.texts_of(content, name) for format, content, name in zip(formats, contents, args.documents, strict=True)
    ]
    translator = _load(args, args.model, args.dtype)
    resolve_languages(translator, args)
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    with tqdm(desc="Translating", unit=" sentences", file=sys.stderr) as bar:
        settings |= {"progress": bar.update}
        for name, format, output, content, parts in zip(
            args.documents, formats, outputs, contents, texts, strict=True
        ):
            translations = translator.translate_documents(parts, format.document, **settings)
            with replacing(output) as unfinished:
                unfinished.write_bytes(format.with_texts(content, name, [each.text for each in translations]))
            for problem in filter(None, (each.problem for each in translations)):
                say(f"{name}: not translated: {problem}")
            print(output)


def _translate_files(args: TranslateArguments, settings: Settings) -> None:
    """Translate files into a folder, and print a summary as JSON."""
    from tqdm import tqdm

    from ..corpus.corpus_translation import CorpusJob, CorpusTranslation, recorded_dtype
    from ..corpus.spans import find_files
    from ..inference.exports import find_format
    from ..inference.parallel import use_threads

    runner = args.make_runner(use_gpus=args.backend == "torch" or find_format(args.backend).uses_gpus)
    if args.scores and args.output_format == "txt":
        raise UsageError("--scores requires --output_format jsonl.")
    assert args.input_files
    assert args.output_dir  # checked by the flags
    files = find_files(args.input_files)
    models = [str(Path(name).resolve()) if Path(name).is_dir() else name for name in args.model]
    # a job that resumes keeps its choice
    dtype = recorded_dtype(args.output_dir) if args.dtype == "auto" else None
    # to check it before any task starts; a worker searches with its own number of threads
    with use_threads(args.threads):
        translator = _load(args, models, dtype or args.dtype)
    if not translator.model.returns_scores and (args.scores or args.nbest > 1):
        raise UsageError(f"--backend {args.backend} has neither --scores nor --nbest.")
    source_lang, target_lang = resolve_languages(translator, args)
    if not (source_lang and target_lang):
        raise UsageError("The languages are unknown: pass --source_lang and --target_lang.")
    # checks the tag
    translator.encode([""], source_lang, target_lang, args.tag)
    beams = translator.num_hypotheses(_num_beams(args))
    if args.nbest > beams and not (args.do_sample and beams == 1):
        # without beams, samples are independent
        raise UsageError(f"--nbest {args.nbest} exceeds the beam size, {beams}: raise --num_beams.")
    translation = CorpusTranslation(
        tuple(models),
        args.backend,
        # the choice of "auto", for all workers
        translator.dtype if args.dtype else None,
        (source_lang, target_lang),
        args.output_format,
        args.nbest,
        args.scores,
        args.seed if args.do_sample else None,
        {
            **settings,
            "source_lang": source_lang,
            "target_lang": target_lang,
            **({"split_sentences": True} if args.split_sentences else {}),
        },
    )
    # each worker loads its own
    del translator
    job = CorpusJob(translation, files, args.output_dir, args.shard_lines)
    missing = runner.missing(job.tasks, job.is_done)
    lines = sum(task.span.lines for task in missing)
    say(f"{lines:,} lines in {len(missing):,} tasks to translate, {runner.describe()}")
    with tqdm(total=lines, desc="Translating", unit=" sentences", file=sys.stderr) as bar:
        for finished in job.run(runner):
            bar.update(finished)
    _report(job.finish(), args.output_dir)


def _report(manifest: JsonObject, output_dir: str) -> None:
    if not manifest["whole"]:
        say(f"This element of the job array is done; {output_dir} is finished when the others are.")
        return
    if manifest["unusable_lines"]:
        for problem in manifest["problems"]:
            say(f"Left blank: {problem}")
        say(f"Unusable lines, left blank: {manifest['unusable_lines']:,}")
    summary = {name: manifest[name] for name in ("lines", "unusable_lines", "problems")}
    print(json.dumps({**summary, "files": len(manifest["parts"])}, indent=2, ensure_ascii=False))
