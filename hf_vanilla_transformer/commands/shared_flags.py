"""Flags that several verbs share; the dataclass of a verb inherits those that it has."""

import argparse
from dataclasses import dataclass

from ..errors import UserError
from ..flags import Flags, finite, option, positive
from ..inference.exports import format_names

# as in inference.hardware, which imports torch
_MAX_TOKENS = 2048


@dataclass(kw_only=True)
class ModelFlags(Flags):
    """One model.

    Args:
        model: folder of a trained model, or its name on the Hub
    """

    model: str = option(metavar="MODEL", positional=True)


@dataclass(kw_only=True)
class ModelsFlags(Flags):
    """One model, or several that form an ensemble.

    Args:
        model: folder of a trained model or its name on the Hub; several: an ensemble
    """

    model: list[str] = option(metavar="MODEL", positional=True)


@dataclass(kw_only=True)
class BackendFlags(Flags):
    """The runtime.

    Args:
        backend: runtime of the model
    """

    backend: str = option("torch", choices=("torch", *format_names()))


@dataclass(kw_only=True)
class DtypeFlags(Flags):
    """The number format.

    Args:
        dtype: number format of the model; auto measures whether bfloat16 or float32 is faster here (default: float32)
    """

    # as in inference.hardware, which imports torch
    dtype: str | None = option(None, choices=("float32", "bfloat16", "float16", "auto"))


@dataclass(kw_only=True)
class GlossaryFlags(BackendFlags):
    """A glossary, and the runtime, which must tell from which words a translation comes.

    Args:
        glossary: terms and the translations that they get: a TBX file, or one with a term, a tab and its translation
            per line
    """

    glossary: str | None = option(None, metavar="FILE")

    def __post_init__(self):
        if self.glossary and self.backend != "torch":
            raise UserError("--glossary requires --backend torch.")


@dataclass(kw_only=True)
class BatchFlags(Flags):
    """The batch size.

    Args:
        max_tokens: maximum tokens per batch
    """

    max_tokens: int = option(_MAX_TOKENS, parse=positive)


@dataclass(kw_only=True)
class SearchFlags(Flags):
    """Beam search.

    Args:
        num_beams: beam size (default: that of the model; 4 in the paper)
        length_penalty: alpha of the length penalty (default: that of the model; 0.6 in the paper)
    """

    num_beams: int | None = option(None, parse=positive)
    length_penalty: float | None = option(None, parse=finite)


@dataclass(kw_only=True)
class DirectionFlags(Flags):
    """The direction of a model that has several, and other tags.

    Args:
        source_lang: language to translate from (default: the one saved with the model)
        target_lang: language to translate to (default: the one saved with the model)
        tag: tag with which some training sources started, such as <bt> (default: none)
    """

    source_lang: str | None = option(None)
    target_lang: str | None = option(None)
    tag: str | None = option(None)


@dataclass(kw_only=True)
class DecodingFlags(BatchFlags, SearchFlags, DirectionFlags):
    """All settings of a translation.

    Args:
        max_tokens: maximum tokens per batch (default: 2,048, or 4,096 with one beam, unless scores are sampled)
    """

    max_tokens: int | None = option(None, parse=positive)  # type: ignore[assignment]


@dataclass(kw_only=True)
class ReverseFlags(ModelsFlags, DtypeFlags, DecodingFlags):
    """Models, their search, and a model of the opposite direction.

    Args:
        reverse_model: model of the opposite direction, which reranks the hypotheses of the beam search
        reverse_weight: weight of its score; that of the model itself is 1 (default: 0.5)
    """

    reverse_model: str | None = option(None, metavar="MODEL")
    reverse_weight: float | None = option(None, parse=finite)

    def check_reverse(self) -> None:
        """Check that the weight is not given alone.

        Raises:
            ValueError: if it is.
        """
        if self.reverse_weight is not None and not self.reverse_model:
            raise UserError("--reverse_weight has no effect without --reverse_model.")


def _placeholders(text: str) -> str:
    """Return an expression for placeholders if it is valid."""
    from ..inference.placeholders import placeholder_pattern

    try:
        placeholder_pattern(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


@dataclass(kw_only=True)
class PlaceholderFlags(Flags):
    """What is not translated.

    Args:
        placeholders: regular expression for placeholders besides the usual ones ({0}, addresses, code, ...), which are
            kept in texts that are cut into sentences
    """

    placeholders: str | None = option(None, metavar="REGEX", parse=_placeholders)


@dataclass(kw_only=True)
class TextFlags(DirectionFlags):
    """A test text with references, and its languages.

    Args:
        test_file: a .jsonl, .tsv, .csv or .parquet file, or the prefix P of a Moses pair P.en and P.de (default: the
            held-out built-in phrases)
        dataset_name: a dataset on the Hub to use instead of --test_file
        dataset_config_name: configuration of the dataset
        split: split of the dataset
        sacrebleu_testset: a test set of sacreBLEU to use instead of --test_file, such as wmt14/full; downloaded to
            ~/.sacrebleu, or the folder that the environment variable SACREBLEU names, unless it is there
    """

    test_file: str | None = option(None, metavar="P")
    dataset_name: str | None = option(None)
    dataset_config_name: str | None = option(None)
    split: str = option("test")
    sacrebleu_testset: str | None = option(None, metavar="NAME")

    def __post_init__(self):
        if sum(map(bool, (self.test_file, self.dataset_name, self.sacrebleu_testset))) > 1:
            raise UserError("Give only one of --test_file, --dataset_name and --sacrebleu_testset.")


@dataclass(kw_only=True)
class BleuFlags(Flags):
    """The tokenisation of BLEU, and the paper's BLEU.

    Args:
        bleu_tokenize: sacreBLEU's tokenisation for BLEU: 13a, none, intl, char, zh, ja-mecab, flores200, ...
        paper_bleu: also compute the paper's BLEU for translation into German: tokenised by Moses (or not, with
            --bleu_tokenize none), with compounds split at their hyphens (extra: paper)
    """

    bleu_tokenize: str = option("13a")
    paper_bleu: bool = option(False)
