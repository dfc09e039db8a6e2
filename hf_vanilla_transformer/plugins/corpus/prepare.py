"""`vanilla-transformer prepare`: clean and tokenise text larger than memory, once, for training."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields

from ...commands.console import say
from ...data.text_flags import CleaningFlags, VocabularyFlags
from ...errors import UserError
from ...flags import option, positive, values_of
from .runner import Runner, RunnerFlags


@dataclass(kw_only=True)
class PrepareArguments(VocabularyFlags, CleaningFlags, RunnerFlags):
    """The flags of `prepare`.

    Args:
        files: Moses prefixes, .jsonl, .tsv or .csv files (also compressed as .gz or .zst), .parquet files
        dataset_name: Instead of files, a dataset on the Hub, streamed.
        dataset_config_name: Configuration of the dataset.
        source_lang: Source language, named as in the text.
        target_lang: Target language, named as in the text.
        output_dir: Folder for the shards.
        tokenizer_name: Tokenizer to use; by default, learn one from the first million pairs.
        vocab_size: Size of the joint vocabulary.
        max_tokens: Drop pairs longer than such a batch.
        max_sentence_tokens: Maximum tokens on either side of a training pair.
        exclude: Drop pairs with a sentence of these texts on either side, such as the test text: files of sentences,
            or parallel text as for training.
        shard_pairs: Pairs read per shard and task.
    """

    files: list[str] = option([], metavar="PATH", positional=True)
    dataset_name: str | None = option(None)
    dataset_config_name: str | None = option(None)
    source_lang: str = option()
    target_lang: str = option()
    output_dir: str = option()
    tokenizer_name: str | None = option(None)
    vocab_size: int = option(37_000, parse=positive)
    max_tokens: int = option(25_000, parse=positive)
    max_sentence_tokens: int = option(256, parse=positive)
    exclude: list[str] = option([], metavar="PATH")
    shard_pairs: int = option(100_000, parse=positive)

    def __post_init__(self):
        VocabularyFlags.__post_init__(self)
        CleaningFlags.__post_init__(self)
        if bool(self.files) == bool(self.dataset_name):
            raise UserError("Give either files or --dataset_name.")
        defaults = {flag.name: flag.default for flag in fields(self)}
        for name, value in values_of(self, VocabularyFlags).items():
            if self.tokenizer_name and value != defaults[name]:
                raise UserError(f"--{name} has no effect: {self.tokenizer_name} has its own vocabulary.")


def run(args: PrepareArguments) -> None:
    """Write a folder of shards, and print a summary as JSON."""
    from ...data.cleaning import Cleaning
    from ...data.languages import check_known
    from ...data.source import HubDataset, Source, TextFile
    from ...data.tokenizer import adapt_tokenizer
    from ...loading import load_tokenizer
    from .pieces import Preparation
    from .preparation import prepare

    runner = Runner(**values_of(args, RunnerFlags))
    languages = (args.source_lang, args.target_lang)
    if args.filter_language:
        check_known(*languages)
    cleaning = Cleaning(args.max_sentence_tokens, args.max_length_ratio, languages if args.filter_language else None)
    preparation = Preparation(
        **values_of(args, VocabularyFlags),
        languages=languages,
        max_tokens=args.max_tokens,
        cleaning=cleaning if args.clean else None,
        shard_pairs=args.shard_pairs,
        exclude=tuple(map(os.path.abspath, args.exclude)),
    )
    source: Source = Source([TextFile(languages, os.path.abspath(file)) for file in args.files])
    if args.dataset_name:
        source = HubDataset(languages, args.dataset_name, args.dataset_config_name)
    tokenizer = None
    if args.tokenizer_name:
        tokenizer = load_tokenizer(args.tokenizer_name)
        adapt_tokenizer(tokenizer, args.tokenizer_name)
    say(f"Preparing with {runner.describe()}")
    manifest = prepare(source, preparation, args.output_dir, tokenizer, runner, _show)
    if not manifest["whole"]:
        say(f"This part of the current step is done; run the whole job array until {args.output_dir} is finished.")
        return
    summary = {name: value for name, value in manifest.items() if name not in ("settings", "shards")}
    print(json.dumps(summary, indent=2))


def _show(step: str, total: int | None, finished: Iterator[int]) -> None:
    """Show the progress of a step."""
    from tqdm import tqdm

    with tqdm(total=total, unit=" pairs", unit_scale=True, desc=step, file=sys.stderr) as bar:
        for pairs in finished:
            bar.update(pairs)
