"""`vanilla-transformer evaluate`: compute BLEU, chrF, chrF++ and TER of a model on test texts."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..flags import option
from .models import load_translator, report_problems, resolve_languages, translate_sentences
from .reference_text import read_text
from .shared_flags import BackendFlags, BleuFlags, DecodingFlags, DtypeFlags, ModelsFlags, TextFlags

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
        start = time.perf_counter()
        found = translate_sentences(translator, text.sources, args)
        seconds = time.perf_counter() - start
        # A sentence without a translation counts as an empty one, so that leaving out hard sentences raises no score
        pairs = [(each.text, reference) for each, reference in zip(found, text.references, strict=True)]

        about = {"text": text.name, "direction": text.direction, "seconds": round(seconds, 2)}
        result = {**_score(pairs, args.bleu_tokenize), **about}
        if untranslated := report_problems(found, text.name):
            result["untranslated"] = untranslated
        if text.unseen:
            result["unseen_combinations"] = _score([pairs[i] for i in text.unseen], args.bleu_tokenize)
        # Flushed, because the next text may take an hour
        print(json.dumps(result, indent=2 if len(texts) == 1 else None), flush=True)


def _score(pairs: list[tuple[str, str]], bleu_tokenize: str) -> dict[str, object]:
    """Return the scores of translations, each with its reference."""
    from ..inference.metrics import evaluate_translations

    translations = [translation for translation, _ in pairs]
    references = [reference for _, reference in pairs]
    return {**evaluate_translations(translations, references, bleu_tokenize), "sentences": len(pairs)}
