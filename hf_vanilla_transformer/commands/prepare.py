"""`vanilla-transformer prepare`: clean and tokenise text larger than memory, once, for `train --train_file FOLDER`."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from .console import UsageError, say
from .flags import add_runner, positive
from .runner_flags import make_runner

HELP = "clean and tokenise text larger than memory, once, for training"
VOCABULARY_FLAGS = {"vocab_size": 37_000, "tokenizer_model": "bpe", "normalization": "none"}  # with their defaults


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `prepare`."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="PATH",
        help="Moses prefixes, .jsonl, .tsv or .csv files (also compressed as .gz or .zst), .parquet files",
    )
    parser.add_argument("--dataset_name", help="instead of files, a dataset on the Hub, streamed")
    parser.add_argument("--dataset_config_name", help="configuration of the dataset")
    parser.add_argument("--source_lang", required=True, help="source language, named as in the text")
    parser.add_argument("--target_lang", required=True, help="target language, named as in the text")
    parser.add_argument("--output_dir", required=True, help="folder for the shards")
    _add_tokenizer(parser)
    _add_limits(parser)
    parser.add_argument(
        "--shard_pairs", type=positive, default=100_000, help="pairs read per shard and task (default: 100000)"
    )
    add_runner(parser)


def _add_tokenizer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokenizer_name", help="tokenizer to use (default: train one on the first million pairs)")
    parser.add_argument("--vocab_size", type=positive, help="size of a trained tokenizer (default: 37000)")
    parser.add_argument("--tokenizer_model", choices=["bpe", "unigram"], help="kind of a trained one (default: bpe)")
    parser.add_argument("--normalization", choices=["none", "nfkc"], help="Unicode normalisation (default: none)")
    parser.set_defaults(**VOCABULARY_FLAGS)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max_tokens",
        type=positive,
        default=25_000,
        help="drop pairs longer than such a batch (default: 25000)",
    )
    parser.add_argument(
        "--max_sentence_tokens", type=positive, default=256, help="drop pairs with a longer side (default: 256)"
    )
    parser.add_argument(
        "--max_length_ratio",
        type=float,
        default=4.0,
        help="drop pairs with a higher ratio of the longer side to the shorter (default: 4)",
    )
    parser.add_argument(
        "--filter_language", action="store_true", help="drop pairs that are in other languages (extra: clean)"
    )
    parser.add_argument("--no_clean", action="store_true", help="drop only unusable pairs; duplicates are kept")
    parser.add_argument(
        "--exclude",
        nargs="+",
        default=(),
        metavar="FILE",
        help="drop pairs whose source or target is a line of these text files, such as those of the test text",
    )


def _text_file(file: str) -> str:
    """Return the absolute path of a file of sentences, one per line.

    Raises:
        UsageError: if its name is that of another format.
    """
    if Path(file.removesuffix(".gz").removesuffix(".zst")).suffix in (".jsonl", ".tsv", ".csv", ".parquet"):
        raise UsageError(f"--exclude takes plain text, one sentence per line, not {Path(file).name}.")
    return os.path.abspath(file)


def run(args: argparse.Namespace) -> None:
    """Write a folder of shards, and print a summary as JSON."""
    from transformers import AutoTokenizer

    from ..corpus.pieces import Preparation
    from ..corpus.preparation import prepare
    from ..data.cleaning import Cleaning
    from ..data.language_filter import check_known
    from ..data.source import HubDataset, Source, TextFile
    from ..data.tokenizer import adapt_tokenizer
    from ..model.loading import load

    if bool(args.files) == bool(args.dataset_name):
        raise UsageError("Give either files or --dataset_name.")
    if args.filter_language and args.no_clean:
        raise UsageError("Give either --filter_language or --no_clean.")
    for name, default in VOCABULARY_FLAGS.items():
        if args.tokenizer_name and getattr(args, name) != default:
            raise UsageError(f"--{name} has no effect: {args.tokenizer_name} has its own vocabulary.")
    runner = make_runner(args)
    languages = (args.source_lang, args.target_lang)
    if args.filter_language:
        check_known(*languages)
    try:
        cleaning = Cleaning(
            args.max_sentence_tokens, args.max_length_ratio, languages if args.filter_language else None
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    preparation = Preparation(
        languages,
        args.vocab_size,
        args.max_tokens,
        None if args.no_clean else cleaning,
        args.shard_pairs,
        args.tokenizer_model,
        args.normalization,
        tuple(map(_text_file, args.exclude)),
    )
    source: Source = HubDataset(languages, args.dataset_name, args.dataset_config_name)
    if args.files:
        source = Source([TextFile(languages, os.path.abspath(file)) for file in args.files])
    tokenizer = load(AutoTokenizer, args.tokenizer_name) if args.tokenizer_name else None
    if tokenizer:
        adapt_tokenizer(tokenizer, args.tokenizer_name)
    say(f"Preparing with {runner.describe()}")
    manifest = prepare(source, preparation, args.output_dir, tokenizer, runner, _show)
    if manifest["whole"]:
        summary = {name: value for name, value in manifest.items() if name not in ("settings", "shards")}
        print(json.dumps(summary, indent=2))
    else:
        say(
            "This element of the job array has done its part of the current step; run the whole array again until "
            f"{args.output_dir} is finished."
        )


def _show(step: str, total: int | None, finished: Iterator[int]) -> None:
    """Show the progress of a step."""
    from tqdm import tqdm

    with tqdm(total=total, unit=" pairs", unit_scale=True, desc=step, file=sys.stderr) as bar:
        for pairs in finished:
            bar.update(pairs)
