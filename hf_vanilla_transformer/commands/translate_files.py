"""`vanilla-transformer translate --input_files ... --output_dir ...`: translate a corpus in many tasks."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .console import UsageError, say
from .flags import add_runner, positive
from .models import decoding_settings, direction, load_translator, resolve_languages
from .runner_flags import make_runner


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `translate` for files."""
    group: Any = parser.add_argument_group("files instead of stdin, in tasks that resume and run in parallel")
    group.add_argument(
        "--input_files",
        nargs="+",
        metavar="FILE",
        help="files, or patterns such as 'corpus/*.jsonl.zst': text or .jsonl, also .gz and .zst; .parquet",
    )
    group.add_argument("--output_dir", help="folder for the translations, which train --train_file reads")
    group.add_argument(
        "--output_format",
        choices=["jsonl", "txt"],
        default="jsonl",
        help="jsonl for pairs, txt for translations only (default: jsonl)",
    )
    group.add_argument("--scores", action="store_true", help="add the score of each translation to the pairs")
    group.add_argument(
        "--nbest", type=positive, default=1, help="write this many translations of each line (default: 1)"
    )
    group.add_argument("--shard_lines", type=positive, default=10_000, help="lines per task (default: 10000)")
    add_runner(group)
    parser.set_defaults(file_flags={action.dest: action.default for action in group._group_actions})


def is_requested(args: argparse.Namespace) -> bool:
    """Return whether files are to be translated.

    Raises:
        UsageError: if only some of the necessary flags are given.
    """
    given = [f"--{name}" for name, default in args.file_flags.items() if getattr(args, name) != default]
    if given and not args.input_files and not args.output_dir:
        raise UsageError(f"{', '.join(given)} can only be used with --input_files.")
    if bool(args.input_files) != bool(args.output_dir):
        raise UsageError("--input_files and --output_dir belong together; without them, stdin is translated.")
    return bool(args.input_files)


def run(args: argparse.Namespace, sampling: dict[str, Any]) -> None:
    """Translate files into a folder, and print a summary as JSON."""
    from tqdm import tqdm

    from ..corpus.corpus_translation import CorpusJob, CorpusTranslation
    from ..corpus.spans import find_files
    from ..export.registry import find_format
    from ..inference.precision import default_device, resolve_dtype

    runner = make_runner(args, use_gpus=args.backend == "torch" or find_format(args.backend).uses_gpus)
    if args.scores and args.output_format == "txt":
        raise UsageError("--scores requires --output_format jsonl.")
    files = find_files(args.input_files)
    models = [str(Path(name).resolve()) if Path(name).is_dir() else name for name in args.model]
    translator = load_translator(models, args.backend, args.dtype)  # to check it before any task starts
    if not translator.model.returns_scores and (args.scores or args.nbest > 1):
        raise UsageError(f"--backend {args.backend} has neither --scores nor --nbest.")
    source_lang, target_lang = resolve_languages(translator, args)
    if not (source_lang and target_lang):
        raise UsageError("The languages are unknown: pass --source_lang and --target_lang.")
    languages = {**direction(args), "source_lang": source_lang, "target_lang": target_lang}
    translator.encode([""], **languages)  # checks the tag
    beams = translator.num_hypotheses(args.num_beams or sampling.get("num_beams"))
    if args.nbest > beams and not (args.do_sample and beams == 1):  # without beams, samples are independent
        raise UsageError(f"--nbest {args.nbest} exceeds the beam size, {beams}: raise --num_beams.")
    translation = CorpusTranslation(
        tuple(models),
        args.backend,
        # all workers resolve "auto" alike
        str(resolve_dtype(args.dtype, default_device())).removeprefix("torch.") if args.dtype else None,
        (source_lang, target_lang),
        args.output_format,
        args.nbest,
        args.scores,
        args.seed if args.do_sample else None,
        {
            **languages,
            "max_tokens": args.max_tokens,
            **({"split_sentences": True} if args.split_sentences else {}),
            **decoding_settings(args),
            **sampling,
        },
    )
    del translator
    job = CorpusJob(translation, files, args.output_dir, args.shard_lines)
    missing = runner.missing(job.tasks, job.is_done)
    lines = sum(task.span.lines for task in missing)
    say(f"{lines:,} lines in {len(missing):,} tasks to translate, {runner.describe()}")
    with tqdm(total=lines, desc="Translating", unit=" sentences", file=sys.stderr) as bar:
        for finished in job.run(runner):
            bar.update(finished)
    _report(job.finish(), args.output_dir)


def _report(manifest: dict[str, Any], output_dir: str) -> None:
    if not manifest["whole"]:
        say(f"This element of the job array is done; {output_dir} is finished when the others are.")
        return
    if manifest["unusable_lines"]:
        say(f"Unusable lines, left blank: {manifest['unusable_lines']:,}; the first: {manifest['problems'][0]}")
    summary = {name: manifest[name] for name in ("lines", "unusable_lines", "problems")}
    print(json.dumps({**summary, "files": len(manifest["parts"])}, indent=2, ensure_ascii=False))
