"""`vanilla-transformer translate --input_files`: translate files of any size in parallel tasks, which resume."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ...commands.console import UsageError, say
from ...commands.models import resolve_languages
from ...commands.translate import TranslateFlags
from ...flags import option, positive, values_of
from ...inference.exports import find_format
from .runner import Runner, RunnerFlags

if TYPE_CHECKING:
    from .corpus_translation import CorpusTranslation


@dataclass(kw_only=True)
class TranslateFilesArguments(TranslateFlags, RunnerFlags):
    """The flags of `translate --input_files`.

    Args:
        input_files: files or patterns such as 'corpus/*.jsonl.zst': text, .jsonl (or .gz, .zst) or .parquet
        output_dir: folder for the translations, which train --train_file reads
        output_format: jsonl for pairs, txt for translations only
        scores: add the score of each translation to the pairs
        nbest: write this many translations of each line
        shard_lines: lines per task
    """

    TITLE: ClassVar[str] = "files instead of stdin, in tasks that resume and run in parallel"

    input_files: list[str] = option(metavar="FILE")
    output_dir: str = option()
    output_format: str = option("jsonl", choices=("jsonl", "txt"))
    scores: bool = option(False)
    nbest: int = option(1, parse=positive)
    shard_lines: int = option(10_000, parse=positive)


def run(args: TranslateFilesArguments) -> None:
    """Translate files into a folder, and print a summary as JSON."""
    from tqdm import tqdm

    from .corpus_translation import CorpusJob
    from .spans import find_files

    use_gpus = args.backend == "torch" or find_format(args.backend).uses_gpus
    runner = Runner(**values_of(args, RunnerFlags), use_gpus=use_gpus)
    if args.scores and args.output_format == "txt":
        raise UsageError("--scores requires --output_format jsonl.")
    if args.reverse_model:
        raise UsageError("--input_files cannot rerank: omit --reverse_model, or translate lines on stdin.")
    files = find_files(args.input_files)
    job = CorpusJob(_translation(args), files, args.output_dir, args.shard_lines)
    missing = runner.missing(job.tasks, job.is_done)
    lines = sum(task.span.lines for task in missing)
    say(f"{lines:,} lines in {len(missing):,} tasks to translate, {runner.describe()}")
    with tqdm(total=lines, desc="Translating", unit=" sentences", file=sys.stderr) as bar:
        for finished in job.run(runner):
            bar.update(finished)

    manifest = job.finish()
    if not manifest["whole"]:
        say(f"This element of the job array is done; {args.output_dir} is finished when the others are.")
        return
    if manifest["unusable_lines"]:
        for problem in manifest["problems"]:
            say(f"Left blank: {problem}")
        say(f"Unusable lines, left blank: {manifest['unusable_lines']:,}")
    summary = {name: manifest[name] for name in ("lines", "unusable_lines", "problems")}
    print(json.dumps({**summary, "files": len(manifest["parts"])}, indent=2, ensure_ascii=False))


def _translation(args: TranslateFilesArguments) -> "CorpusTranslation":
    """Return what each worker does, checked with a translator before any task starts."""
    from ...inference.hardware import use_threads
    from .corpus_translation import CorpusTranslation, recorded_dtype

    settings = args.line_settings()
    models = [str(Path(name).resolve()) if Path(name).is_dir() else name for name in args.model]
    # a job that resumes keeps its choice
    dtype = recorded_dtype(args.output_dir) if args.dtype == "auto" else None
    # a worker searches with its own number of threads
    with use_threads(args.threads):
        translator = args.load(models, dtype or args.dtype)
    source_lang, target_lang = resolve_languages(translator, args)
    if not (source_lang and target_lang):
        raise UsageError("The languages are unknown: pass --source_lang and --target_lang.")
    settings |= args.glossary_settings(translator)
    options = {**settings, "source_lang": source_lang, "target_lang": target_lang}
    # one word, to know that the model has the tag, and as many hypotheses and scores
    translator.translate(["a"], nbest=args.nbest, scores=args.scores, **options)
    return CorpusTranslation(
        models=tuple(models),
        backend=args.backend,
        # the choice of "auto", for all workers
        dtype=translator.dtype if args.dtype else None,
        languages=(source_lang, target_lang),
        format=args.output_format,
        nbest=args.nbest,
        scores=args.scores,
        seed=args.seed if args.do_sample else None,
        options=options,
    )
