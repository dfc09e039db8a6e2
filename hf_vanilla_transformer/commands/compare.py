"""`vanilla-transformer compare`: compare two models on a test text: confidence intervals, significance, examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..flags import option
from .console import as_json
from .evaluation_text import read_text
from .models import check_bleu, load_translator, report_problems, resolve_languages, translate_sentences
from .shared_flags import BleuFlags, DecodingFlags, DtypeFlags, TextFlags


@dataclass(kw_only=True)
class CompareArguments(DtypeFlags, DecodingFlags, TextFlags, BleuFlags):
    """The flags of `compare`.

    Args:
        a: a model, or a file with its translations, one per line
        b: the other model or file
    """

    a: str = option(metavar="A", positional=True)
    b: str = option(metavar="B", positional=True)


def run(args: CompareArguments) -> None:
    """Print the comparison to stdout as one JSON object."""
    from ..data.formats import read_lines
    from ..inference.comparison import compare_translations
    from ..inference.translator import check_same_directions

    systems = (args.a, args.b)
    outputs = {name: list(read_lines(name)) for name in systems if Path(name).is_file()}
    models = dict.fromkeys(name for name in systems if name not in outputs)
    translators = {name: load_translator([name], dtype=args.dtype, num_beams=args.num_beams) for name in models}

    languages: tuple[str | None, str | None] = (args.source_lang, args.target_lang)
    # If both are given, a model of one direction can be compared with one of several
    if not all(languages):
        check_same_directions({name: translator.directions for name, translator in translators.items()})
    for translator in translators.values():
        languages = resolve_languages(translator, args)
    check_bleu(args, languages[1])

    text = read_text(args, args.test_file, languages)
    # The comparison checks this too, but only after the slow translation
    for name, lines in outputs.items():
        if len(lines) != len(text.sources):
            raise UserError(f"{name} has {len(lines)} translations for {len(text.sources)} lines.")

    problems = {}
    for name, translator in translators.items():
        translations = translate_sentences(translator, text.sources, args)
        outputs[name] = [translation.text for translation in translations]
        problems[name] = report_problems(translations, name)

    # With the side in its key, because a system can be compared with itself
    sides = list(zip("AB", systems, strict=True))
    compared: dict[str, Sequence[str]] = {f"{side}: {name}": outputs[name] for side, name in sides}
    result = compare_translations(text.sources, text.references, compared, args.bleu_tokenize, args.paper_bleu)
    if any(problems.values()):
        result["untranslated"] = {side: problems[name] for side, name in sides if problems.get(name)}
    # p-values are small
    print(as_json(result, 4))
