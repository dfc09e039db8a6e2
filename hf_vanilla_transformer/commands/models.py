"""Load the models given on the command line, and translate with them."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..flags import Settings, values_of
from .console import UsageError, say
from .shared_flags import BleuFlags, DecodingFlags, DirectionFlags, ReverseFlags, SearchFlags

if TYPE_CHECKING:
    from ..inference.translator import Translation, Translator

_REVERSE_WEIGHT = 0.5


def load_translator(
    names: Sequence[str],
    backend: str = "torch",
    dtype: str | None = None,
    batch_size: int | None = None,
    num_beams: int | None = None,
) -> "Translator":
    """Load a model and its tokenizer from a folder or the Hub; several names form an ensemble.

    Args:
        names, backend, dtype, batch_size, num_beams: as for `Translator.load`.

    Raises:
        OSError, ValueError: as `Translator.load`.
    """
    from ..inference.translator import Translator

    translator = Translator.load(names, backend, dtype, batch_size, num_beams)
    if dtype == "auto":
        say(f"--dtype auto: {translator.name} translates in {translator.dtype}")
    return translator


def with_reverse_model(translator: "Translator", args: ReverseFlags) -> "Translator":
    """Return the translator, with the model of the opposite direction if the flags name one.

    Raises:
        OSError, ValueError: as `Translator.load` and `RerankingTranslator`.
        UsageError: if the search has one beam, and so nothing to rerank.
    """
    if args.reverse_model is None:
        return translator
    from ..inference.reranking import RerankingTranslator

    if translator.num_hypotheses(args.num_beams) == 1:
        raise UsageError("--reverse_model reranks the hypotheses of a beam search: use several --num_beams.")
    languages = resolve_languages(translator, args)
    reverse = load_translator([args.reverse_model], dtype=args.dtype, num_beams=args.num_beams)
    weight = _REVERSE_WEIGHT if args.reverse_weight is None else args.reverse_weight
    return RerankingTranslator(translator, reverse, weight, *languages)


def labels(names: Sequence[str]) -> list[str]:
    """Return a short name for each folder or model: its last part, or all of it if several have the same last part."""
    short = [Path(name).resolve().name for name in names]
    return short if len(set(short)) == len(short) else list(names)


def decoding_settings(args: SearchFlags) -> Settings:
    """Return the beam search settings that were given as flags."""
    # A setting that is None would override that of the model
    return {name: value for name, value in values_of(args, SearchFlags).items() if value is not None}


def resolve_languages(translator: "Translator", args: DirectionFlags) -> tuple[str | None, str | None]:
    """Return the languages given as flags, or the model's own; None for one that is unknown.

    Raises:
        UsageError: if the model does not have them, or has several targets and none is given.
    """
    try:
        return translator.directions.resolve(args.source_lang, args.target_lang)
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_bleu(args: BleuFlags, target_lang: str | None) -> None:
    """Check, before a slow translation, that BLEU can be computed as the flags say.

    Raises:
        UsageError: if they ask for the paper's BLEU in a language other than German.
        ImportError, ValueError: as `PaperBleu` and `check_tokenization`.
    """
    from ..inference.metrics import PaperBleu, check_tokenization

    check_tokenization(args.bleu_tokenize)
    if args.paper_bleu:
        if target_lang != "de":
            raise UsageError(
                f"--paper_bleu is for German (de), not for {target_lang!r}: the paper's scores have compounds split "
                "at hyphens only in English-German, so in other languages no published score would be comparable."
            )
        PaperBleu(args.bleu_tokenize)


def translate_settings(args: DecodingFlags) -> Settings:
    """Return the settings given as flags, as arguments of `Translator.translate`."""
    return {**values_of(args, DirectionFlags), **decoding_settings(args), "max_tokens": args.max_tokens}


def translate_sentences(translator: "Translator", sources: list[str], args: DecodingFlags) -> list["Translation"]:
    """Translate `sources` with the settings in `args`, and show a progress bar."""
    from tqdm import tqdm

    with tqdm(total=len(sources), desc="Translating", unit=" sentences", file=sys.stderr) as bar:
        return translator.translate(sources, progress=bar.update, **translate_settings(args))


def report_problems(translations: Iterable["Translation"], where: str, first: int = 1) -> int:
    """Name the lines that have no translation on stderr, and return their number.

    Args:
        where: what the lines belong to, such as "standard input".
        first: number of the first line.
    """
    count = 0
    for number, translation in enumerate(translations, first):
        if translation.problem:
            say(f"{where}, line {number}: not translated: {translation.problem}")
            count += 1
    return count
