"""`vanilla-transformer compare`: compare two models, or files with their translations, on a test text."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from .flags import add_bleu, add_decoding, add_dtype, add_text
from .models import load_translator, report_problems, resolve_languages, translate_sentences
from .reference_text import read_text

HELP = "compare two models on a test text: confidence intervals, significance, examples"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `compare`."""
    for add in (add_dtype, add_decoding, add_text, add_bleu):
        add(parser)
    parser.add_argument("a", metavar="A", help="a model, or a file with its translations, one per line")
    parser.add_argument("b", metavar="B", help="the other model or file")


def run(args: argparse.Namespace) -> None:
    """Print the comparison to stdout as one JSON object."""
    from ..data.formats import read_lines
    from ..inference.metrics import check_tokenization
    from ..inference.translator import check_same_directions
    from ..study.comparison import compare_translations

    check_tokenization(args.bleu_tokenize)
    systems = (args.a, args.b)
    files = {name: list(read_lines(name)) for name in systems if Path(name).is_file()}
    translators = {name: load_translator([name], dtype=args.dtype) for name in systems if name not in files}
    languages: tuple[str | None, str | None] = (args.source_lang, args.target_lang)
    if not all(languages):  # otherwise models of one direction and of several can be compared
        check_same_directions({name: each.directions for name, each in translators.items()})
    for translator in translators.values():
        languages = resolve_languages(translator, args)
    text = read_text(args, languages)
    for name, lines in files.items():  # checked before the slow translation
        if len(lines) != len(text.sources):
            raise ValueError(f"{name} has {len(lines)} translations for {len(text.sources)} lines.")
    translations: dict[str, Sequence[str]] = {}
    untranslated: dict[str, int] = {}
    for side, name in zip("AB", systems, strict=True):
        if name in files:
            translations[f"{side}: {name}"] = files[name]
            continue
        found = translate_sentences(translators[name], text.sources, args)
        if number := report_problems(found, name):
            untranslated[side] = number
        translations[f"{side}: {name}"] = [translation.text for translation in found]
    result = compare_translations(text.sources, text.references, translations, args.bleu_tokenize)
    print(json.dumps({**result, "untranslated": untranslated} if untranslated else result, indent=2))
