"""Flags that several verbs share."""

import argparse
import math

from ..export.registry import FORMATS


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def finite(text: str) -> float:
    """Parse a number that is neither infinite nor NaN."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {number}")
    return number


def positive_number(text: str) -> float:
    """Parse a finite number above 0."""
    number = finite(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {number}")
    return number


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the argument for one model."""
    parser.add_argument("model", metavar="MODEL", help="folder of a trained model, or its name on the Hub")


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add the argument for one model, or for several models that form an ensemble."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="+",
        help="folder of a trained model, or its name on the Hub; several models form an ensemble",
    )


def add_backend(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the runtime."""
    parser.add_argument(
        "--backend",
        default="torch",
        choices=["torch", *FORMATS],
        help="runtime of the model (default: torch)",
    )


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the number format."""
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16", "auto"],  # as in inference.precision, which imports torch
        help="number format of the model; auto is bfloat16 if the processor or GPU multiplies it natively, otherwise "
        "float32 (default: float32)",
    )


def add_batches(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the batch size."""
    parser.add_argument("--max_tokens", type=positive, default=2048, help="maximum tokens per batch (default: 2048)")


def add_decoding(parser: argparse.ArgumentParser) -> None:
    """Add the flags for beam search and the batch size."""
    add_batches(parser)
    parser.add_argument(
        "--num_beams", type=positive, help="beam size (default: the value saved with the model; 4 in the paper)"
    )
    parser.add_argument(
        "--length_penalty",
        type=finite,
        help="alpha of the length penalty (default: the value saved with the model; 0.6 in the paper)",
    )


def add_direction(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the direction of a model that has several, and for other tags."""
    parser.add_argument("--source_lang", help="language to translate from (default: the one saved with the model)")
    parser.add_argument("--target_lang", help="language to translate to (default: the one saved with the model)")
    parser.add_argument("--tag", help="tag with which some training sources started, such as <bt> (default: none)")


def add_runner(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where the tasks of a corpus job run."""
    parser.add_argument(
        "--workers", type=positive, help="processes on this machine (default: one per GPU, or per --threads cores)"
    )
    parser.add_argument("--threads", type=positive, default=1, help="threads per worker (default: 1)")
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run on this Ray cluster instead, such as 10.0.0.1:6379 or auto (extra: cluster)",
    )
    parser.add_argument(
        "--task", type=int, metavar="I", help="run only every N-th task, from task I on, as element I of a job array"
    )
    parser.add_argument("--tasks", type=positive, metavar="N", help="number of elements of the job array")


def add_host(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the address of a server."""
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, only this machine)"
    )


def add_text(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Add the flags for a test text with references, or for several, and its languages."""
    text = parser.add_mutually_exclusive_group()
    text.add_argument(
        "--test_file",
        metavar="P",
        nargs="+" if several else None,
        help=f"{'one or more: ' if several else ''}a .jsonl, .tsv, .csv or .parquet file, or the prefix P of a Moses "
        "pair P.en and P.de (default: the held-out built-in phrases)",
    )
    text.add_argument("--dataset_name", help="a dataset on the Hub to use instead of --test_file")
    parser.add_argument("--dataset_config_name", help="configuration of the dataset")
    parser.add_argument("--split", default="test", help="split of the dataset (default: test)")
    add_direction(parser)


def add_bleu(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the tokenisation of BLEU."""
    parser.add_argument(
        "--bleu_tokenize",
        default="13a",
        help="sacreBLEU's tokenisation for BLEU: 13a (the default), none, intl, char, zh, ja-mecab, flores200, ...",
    )
