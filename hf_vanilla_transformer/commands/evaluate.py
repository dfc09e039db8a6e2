"""`vanilla-transformer evaluate`: compute BLEU, chrF, chrF++ and TER of a model on test texts."""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..files import JsonObject
from ..flags import option
from .models import load_translator, report_problems, resolve_languages, translate_sentences
from .reference_text import ReferenceText, read_text
from .shared_flags import BackendFlags, BleuFlags, DecodingFlags, DtypeFlags, ModelsFlags, TextFlags

if TYPE_CHECKING:
    from ..inference.translator import Translator

HELP = "evaluate a model on test texts: BLEU, chrF, chrF++ and TER as JSON"


@dataclass(kw_only=True)
class EvaluateArguments(ModelsFlags, BackendFlags, DtypeFlags, DecodingFlags, BleuFlags, TextFlags):
    """The flags of `evaluate`."""

    test_file: list[str] | None = option(  # type: ignore[assignment]
        "one or more: a .jsonl, .tsv, .csv or .parquet file, or the prefix P of a Moses pair P.en and P.de (default: "
        "the held-out built-in phrases)",
        None,
        metavar="P",
    )


def run(args: EvaluateArguments) -> None:
    """Print the scores to stdout: one JSON object, or for several texts one object per line."""
    from ..inference.metrics import check_tokenization

    check_tokenization(args.bleu_tokenize)
    translator = load_translator(args.model, args.backend, args.dtype)
    languages = resolve_languages(translator, args)
    files: Sequence[str | None] = args.test_file or [None]
    texts = [read_text(args, file, languages) for file in files]
    for text in texts:
        # all were read before the slow translation
        result = _evaluate(translator, text, args)
        print(json.dumps(result, indent=2 if len(texts) == 1 else None), flush=True)


def _evaluate(translator: "Translator", text: ReferenceText, args: EvaluateArguments) -> JsonObject:
    """Return the scores of a model on a text."""
    from ..inference.metrics import evaluate_translations

    start = time.perf_counter()
    found = translate_sentences(translator, text.sources, args)
    seconds = time.perf_counter() - start
    untranslated = report_problems(found, text.name)
    translations = [translation.text for translation in found]

    def score(indices: Iterable[int]) -> JsonObject:
        chosen = list(indices)
        predictions = [translations[i] for i in chosen]
        references = [text.references[i] for i in chosen]
        return {**evaluate_translations(predictions, references, args.bleu_tokenize), "sentences": len(chosen)}

    about = {"text": text.name, "direction": text.direction, "seconds": round(seconds, 2)}
    result = {**score(range(len(translations))), **about}
    if untranslated:
        result["untranslated"] = untranslated
    if text.unseen:
        result["unseen_combinations"] = score(text.unseen)
    return result
