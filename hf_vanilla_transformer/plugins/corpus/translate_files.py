"""`vanilla-transformer translate --input_files`: translate files of any size in parallel tasks, which resume."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ...commands.console import UsageError, say
from ...commands.models import resolve_languages
from ...commands.translate import TranslateFlags
from ...flags import option, positive
from ...inference.exports import find_format
from .runner_flags import RunnerFlags

if TYPE_CHECKING:
    from .corpus_translation import CorpusTranslation


@dataclass(kw_only=True)
class TranslateFilesArguments(TranslateFlags, RunnerFlags):
    """The flags of `translate --input_files`."""

    TITLE: ClassVar[str] = "files instead of stdin, in tasks that resume and run in parallel"

    input_files: list[str] = option(
        "files or patterns such as 'corpus/*.jsonl.zst': text, .jsonl (or .gz, .zst) or .parquet", metavar="FILE"
    )
    output_dir: str = option("folder for the translations, which train --train_file reads")
    output_format: str = option("jsonl for pairs, txt for translations only", "jsonl", choices=("jsonl", "txt"))
    scores: bool = option("add the score of each translation to the pairs", False)
    nbest: int = option("write this many translations of each line", 1, parse=positive)
    shard_lines: int = option("lines per task", 10_000, parse=positive)


def run(args: TranslateFilesArguments) -> None:
    """Translate files into a folder, and print a summary as JSON."""
    from tqdm import tqdm

    from .corpus_translation import CorpusJob
    from .spans import find_files

    runner = args.make_runner(use_gpus=args.backend == "torch" or find_format(args.backend).uses_gpus)
    if args.scores and args.output_format == "txt":
        raise UsageError("--scores requires --output_format jsonl.")
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

    settings = args.settings()
    models = [str(Path(name).resolve()) if Path(name).is_dir() else name for name in args.model]
    # a job that resumes keeps its choice
    dtype = recorded_dtype(args.output_dir) if args.dtype == "auto" else None
    # a worker searches with its own number of threads
    with use_threads(args.threads):
        translator = args.load(models, dtype or args.dtype)
    if not translator.model.returns_scores and (args.scores or args.nbest > 1):
        raise UsageError(f"--backend {args.backend} has neither --scores nor --nbest.")
    source_lang, target_lang = resolve_languages(translator, args)
    if not (source_lang and target_lang):
        raise UsageError("The languages are unknown: pass --source_lang and --target_lang.")
    # checks the tag
    translator.encode([""], source_lang, target_lang, args.tag)
    beams = translator.num_hypotheses(args.search_beams)
    if args.nbest > beams and not (args.do_sample and beams == 1):
        # without beams, samples are independent
        raise UsageError(f"--nbest {args.nbest} exceeds the beam size, {beams}: raise --num_beams.")
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
        options={
            **settings,
            **args.glossary_settings(translator),
            "source_lang": source_lang,
            "target_lang": target_lang,
            **({"split_sentences": True} if args.split_sentences else {}),
        },
    )
