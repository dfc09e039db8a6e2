"""`vanilla-transformer evaluate`: compute BLEU, chrF, chrF++ and TER of a model on test texts."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

    # Unlike the other verbs, this one takes several
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
    # All of them before the slow translation, so that a mistake in the last one is reported at once
    texts = [read_text(args, file, languages) for file in files]
    for text in texts:
        result = _evaluate(translator, text, args)
        # Flushed, because the next text may take an hour
        print(json.dumps(result, indent=2 if len(texts) == 1 else None), flush=True)


def _evaluate(translator: "Translator", text: ReferenceText, args: EvaluateArguments) -> dict[str, object]:
    """Return the scores of a model on a text."""
    from ..inference.metrics import evaluate_translations

    start = time.perf_counter()
    found = translate_sentences(translator, text.sources, args)
    seconds = time.perf_counter() - start
    # A sentence without a translation counts as an empty one, so that leaving out hard sentences raises no score
    translations = [translation.text for translation in found]
    untranslated = report_problems(found, text.name)

    def score(indices: Sequence[int]) -> dict[str, object]:
        predictions = [translations[i] for i in indices]
        references = [text.references[i] for i in indices]
        return {**evaluate_translations(predictions, references, args.bleu_tokenize), "sentences": len(indices)}

    about = {"text": text.name, "direction": text.direction, "seconds": round(seconds, 2)}
    result = {**score(range(len(translations))), **about}
    if untranslated:
        result["untranslated"] = untranslated
    if text.unseen:
        result["unseen_combinations"] = score(text.unseen)
    return result
