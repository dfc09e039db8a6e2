"""Flags that several verbs share."""

import argparse
import math


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def finite(text: str) -> float:
    """Parse a number that is neither infinite nor NaN."""
    number = float(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {number}")
    return number


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the argument for one model."""
    parser.add_argument("model", metavar="MODEL", help="folder of a trained model, or its name on the Hub")


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add the argument for one model or several that translate together."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="+",
        help="folder of a trained model, or its name on the Hub; several models form an ensemble",
    )


def add_backend(parser: argparse.ArgumentParser) -> None:
    """Add the choice of the runtime."""
    parser.add_argument(
        "--backend", default="torch", choices=["torch", "ctranslate2", "onnx"], help="runtime for the model"
    )


def add_batches(parser: argparse.ArgumentParser) -> None:
    """Add the size of batches."""
    parser.add_argument("--max_tokens", type=positive, default=2048, help="tokens per batch (default: 2048)")


def add_decoding(parser: argparse.ArgumentParser) -> None:
    """Add the settings of beam search, and the size of batches."""
    add_batches(parser)
    parser.add_argument("--num_beams", type=positive, help="beam size (default: the model's, 4 in the paper)")
    parser.add_argument("--length_penalty", type=finite, help="alpha (default: the model's, 0.6 in the paper)")


def add_text(parser: argparse.ArgumentParser) -> None:
    """Add the choice of a text with references."""
    text = parser.add_mutually_exclusive_group()
    text.add_argument(
        "--test_file",
        metavar="P",
        help="a .jsonl, .tsv, .csv or .parquet file, or a Moses prefix: P.en and P.de (default: the held-out phrases)",
    )
    text.add_argument("--dataset_name", help="a data set on the Hub instead")
    parser.add_argument("--dataset_config_name", help="configuration of the data set")
    parser.add_argument("--split", default="test", help="split of the data set (default: test)")
    parser.add_argument("--source_lang", help="default: the language saved with the model")
    parser.add_argument("--target_lang", help="default: the language saved with the model")


def add_bleu(parser: argparse.ArgumentParser) -> None:
    """Add the tokenisation for BLEU."""
    parser.add_argument("--bleu_tokenize", default="13a", choices=["13a", "none", "intl", "char", "zh", "ja-mecab"])
