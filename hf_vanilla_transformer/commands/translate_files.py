"""`vanilla-transformer translate --input_files ... --output_dir ...`: translate a corpus in many tasks."""

import json
import sys
from pathlib import Path

from ..files import JsonObject
from ..flags import Settings
from .console import UsageError, say
from .models import decoding_settings, direction, load_translator, resolve_languages
from .translate_flags import TranslateArguments


def run(args: TranslateArguments, sampling: Settings) -> None:
    """Translate files into a folder, and print a summary as JSON."""
    from tqdm import tqdm

    from ..corpus.corpus_translation import CorpusJob, CorpusTranslation
    from ..corpus.spans import find_files
    from ..export.registry import find_format
    from ..inference.precision import default_device, resolve_dtype

    runner = args.make_runner(use_gpus=args.backend == "torch" or find_format(args.backend).uses_gpus)
    if args.scores and args.output_format == "txt":
        raise UsageError("--scores requires --output_format jsonl.")
    assert args.input_files
    assert args.output_dir  # checked by the flags
    files = find_files(args.input_files)
    models = [str(Path(name).resolve()) if Path(name).is_dir() else name for name in args.model]
    # to check it before any task starts
    translator = load_translator(models, args.backend, args.dtype)
    if not translator.model.returns_scores and (args.scores or args.nbest > 1):
        raise UsageError(f"--backend {args.backend} has neither --scores nor --nbest.")
    source_lang, target_lang = resolve_languages(translator, args)
    if not (source_lang and target_lang):
        raise UsageError("The languages are unknown: pass --source_lang and --target_lang.")
    languages = {**direction(args), "source_lang": source_lang, "target_lang": target_lang}
    translator.encode([""], **languages)  # checks the tag
    beams = translator.num_hypotheses(args.num_beams or (1 if args.do_sample else None))
    if args.nbest > beams and not (args.do_sample and beams == 1):
        # without beams, samples are independent
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


def _report(manifest: JsonObject, output_dir: str) -> None:
    if not manifest["whole"]:
        say(f"This element of the job array is done; {output_dir} is finished when the others are.")
        return
    if manifest["unusable_lines"]:
        say(f"Unusable lines, left blank: {manifest['unusable_lines']:,}; the first: {manifest['problems'][0]}")
    summary = {name: manifest[name] for name in ("lines", "unusable_lines", "problems")}
    print(json.dumps({**summary, "files": len(manifest["parts"])}, indent=2, ensure_ascii=False))
