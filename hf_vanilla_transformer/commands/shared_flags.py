"""Flags that several verbs share; the dataclass of a verb inherits those that it has."""

from dataclasses import dataclass

from ..errors import UserError
from ..flags import finite, option, positive
from ..inference.exports import format_names

# as in inference.hardware, which imports torch
_MAX_TOKENS = 2048


@dataclass(kw_only=True)
class ModelFlags:
    """One model."""

    model: str = option("folder of a trained model, or its name on the Hub", metavar="MODEL", positional=True)


@dataclass(kw_only=True)
class ModelsFlags:
    """One model, or several that form an ensemble."""

    model: list[str] = option(
        "folder of a trained model or its name on the Hub; several: an ensemble", metavar="MODEL", positional=True
    )


@dataclass(kw_only=True)
class BackendFlags:
    """The runtime."""

    backend: str = option("runtime of the model", "torch", choices=("torch", *format_names()))


@dataclass(kw_only=True)
class DtypeFlags:
    """The number format."""

    dtype: str | None = option(
        "number format of the model; auto measures whether bfloat16 or float32 is faster here (default: float32)",
        None,
        # as in inference.hardware, which imports torch
        choices=("float32", "bfloat16", "float16", "auto"),
    )


@dataclass(kw_only=True)
class GlossaryFlags(BackendFlags):
    """A glossary, and the runtime, which must tell from which words a translation comes."""

    glossary: str | None = option(
        "terms and the translations that they get: a TBX file, or one with a term, a tab and its translation per line",
        None,
        metavar="FILE",
    )

    def __post_init__(self):
        if self.glossary and self.backend != "torch":
            raise UserError("--glossary requires --backend torch.")


@dataclass(kw_only=True)
class BatchFlags:
    """The batch size."""

    max_tokens: int = option("maximum tokens per batch", _MAX_TOKENS, parse=positive)


@dataclass(kw_only=True)
class SearchFlags:
    """Beam search."""

    num_beams: int | None = option("beam size (default: that of the model; 4 in the paper)", None, parse=positive)
    length_penalty: float | None = option(
        "alpha of the length penalty (default: that of the model; 0.6 in the paper)", None, parse=finite
    )


@dataclass(kw_only=True)
class DirectionFlags:
    """The direction of a model that has several, and other tags."""

    source_lang: str | None = option("language to translate from (default: the one saved with the model)", None)
    target_lang: str | None = option("language to translate to (default: the one saved with the model)", None)
    tag: str | None = option("tag with which some training sources started, such as <bt> (default: none)", None)


@dataclass(kw_only=True)
class DecodingFlags(BatchFlags, SearchFlags, DirectionFlags):
    """All settings of a translation."""

    max_tokens: int | None = option(  # type: ignore[assignment]
        f"maximum tokens per batch (default: {_MAX_TOKENS:,}, or twice as many with one beam and without scores)",
        None,
        parse=positive,
    )


@dataclass(kw_only=True)
class TextFlags(DirectionFlags):
    """A test text with references, and its languages."""

    test_file: str | None = option(
        "a .jsonl, .tsv, .csv or .parquet file, or the prefix P of a Moses pair P.en and P.de (default: the held-out "
        "built-in phrases)",
        None,
        metavar="P",
    )
    dataset_name: str | None = option("a dataset on the Hub to use instead of --test_file", None)
    dataset_config_name: str | None = option("configuration of the dataset", None)
    split: str = option("split of the dataset", "test")
    sacrebleu_testset: str | None = option(
        "a test set of sacreBLEU to use instead of --test_file, such as wmt14/full; downloaded to ~/.sacrebleu, or "
        "the folder that the environment variable SACREBLEU names, unless it is there",
        None,
        metavar="NAME",
    )

    def __post_init__(self):
        if sum(map(bool, (self.test_file, self.dataset_name, self.sacrebleu_testset))) > 1:
            raise UserError("Give only one of --test_file, --dataset_name and --sacrebleu_testset.")


@dataclass(kw_only=True)
class BleuFlags:
    """The tokenisation of BLEU, and the paper's BLEU."""

    bleu_tokenize: str = option(
        "sacreBLEU's tokenisation for BLEU: 13a, none, intl, char, zh, ja-mecab, flores200, ...", "13a"
    )
    paper_bleu: bool = option(
        "also compute the paper's BLEU for translation into German: tokenised by Moses (or not, with --bleu_tokenize "
        "none), with compounds split at their hyphens (extra: paper)",
        False,
    )
