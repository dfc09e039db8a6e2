"""`vanilla-transformer import`: turn spreadsheets, translation memories and other files into parallel text."""

import argparse
import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from ...commands.console import say
from ...errors import UserError
from ...flags import Flags, finite, numpy_seed, option


def _size(text: str) -> float:
    """Parse a number of pairs, or a share below 1."""
    size = finite(text)
    if size < 0 or (size >= 1 and not size.is_integer()):
        raise argparse.ArgumentTypeError(f"must be a number of pairs, or a share below 1, got {text}")
    return size


@dataclass(kw_only=True)
class ImportArguments(Flags):
    """The flags of `import`.

    Args:
        files: Files: .xlsx, .xls, .ods, .csv, .tsv, .txt (tabs), .tmx, .po, .xlf, .eaf, .json, .jsonl; or Moses
            prefixes.
        source_lang: Source language, such as en; names the files that are written.
        target_lang: Target language.
        output_dir: New folder for train, validation and test, each as a Moses pair.
        columns: Names or numbers of the columns, or names of the tiers, of source and target (default: the languages).
        encoding: Encoding of plain text (default: recognised).
        validation: Pairs for validation, 0 for none, or a share below 1 (default: 1000, at most a tenth).
        test: Pairs for the test, likewise.
        exclude: Leave out pairs with a sentence of these Moses pairs, such as an earlier test text.
        seed: Seed of the choice of validation and test pairs.
    """

    files: list[str] = option(metavar="FILE", positional=True)
    source_lang: str = option()
    target_lang: str = option()
    output_dir: str = option()
    columns: list[str] = option([], metavar="COLUMN")
    encoding: str | None = option(None)
    validation: float | None = option(None, parse=_size)
    test: float | None = option(None, parse=_size)
    exclude: list[str] = option([], metavar="PREFIX")
    seed: int = option(0, parse=numpy_seed)

    def __post_init__(self):
        if self.columns and len(self.columns) != 2:
            raise UserError(f"--columns takes two names, those of source and target, got {len(self.columns)}.")
        if self.source_lang == self.target_lang:
            raise UserError("--source_lang and --target_lang are the same.")


def run(args: ImportArguments) -> None:
    """Write the text, and print a summary as JSON."""
    from tqdm import tqdm

    from ...data.languages import not_languages
    from ...files import new_folder, write_whole
    from .importing import SPLITS, Import, Pair, split

    languages = (args.source_lang, args.target_lang)
    if message := not_languages(languages):
        say(message)
    excluded = [set[str](), set[str]()]
    for prefix in args.exclude:
        # Without --encoding, which is that of the files: an earlier import has written these in UTF-8
        for pair in Import(languages).pairs([prefix]):
            for sentences, sentence in zip(excluded, pair, strict=True):
                sentences.add(sentence)
    job = Import(languages, tuple(args.columns), args.encoding)
    with new_folder(args.output_dir) as folder:
        pairs: list[Pair] = []
        try:
            for pair in tqdm(job.pairs(args.files), desc="reading", unit=" pairs", unit_scale=True):
                if any(sentence in sentences for sentence, sentences in zip(pair, excluded, strict=True)):
                    job.dropped["excluded"] += 1
                else:
                    pairs.append(pair)
        finally:
            # also before an error, which a wrong encoding or separator may explain
            for note in job.notes:
                say(note)
        parts = split(pairs, (_count(args.validation, len(pairs)), _count(args.test, len(pairs))), args.seed)
        if not parts[0]:
            raise UserError(f"No pairs are left for training, of {job.read:,} read: {dict(job.dropped)}.")
        for name, part in zip(SPLITS, parts, strict=True):
            for side, language in enumerate(languages):
                if part:
                    write_whole(folder / f"{name}.{language}", "".join(f"{pair[side]}\n" for pair in part))
        summary = {
            "read": job.read,
            "dropped": dict(job.dropped),
            "without_markup": job.markup,
            **{name: len(part) for name, part in zip(SPLITS, parts, strict=True)},
        }
        write_whole(folder / "import.json", json.dumps({"files": [Path(file).name for file in args.files], **summary}))
    print(json.dumps(summary, indent=2))
    words = ["--source_lang", args.source_lang, "--target_lang", args.target_lang]
    words += ["--train_file", f"{args.output_dir}/train", "--output_dir", f"{args.output_dir}/model"]
    if parts[1]:
        words += ["--validation_file", f"{args.output_dir}/validation"]
    say(f"Train on it with: vanilla-transformer train {shlex.join(words)}")


def _count(size: float | None, pairs: int) -> int:
    """Return the number of pairs that a flag asks for."""
    if size is None:
        return min(1000, pairs // 10)
    return int(size) if size >= 1 else int(size * pairs)
