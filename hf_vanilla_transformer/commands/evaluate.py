"""`vanilla-transformer evaluate`: compute BLEU, chrF and TER of a model on a test text."""

import argparse
import json
import time
from collections.abc import Iterable
from typing import Any

from .flags import add_backend, add_bleu, add_decoding, add_dtype, add_models, add_text
from .models import languages_of, load_models, translate_sentences
from .text import read_text

HELP = "evaluate a model on a test text: BLEU, chrF and TER as JSON"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `evaluate`."""
    for add in (add_models, add_backend, add_dtype, add_decoding, add_text, add_bleu):
        add(parser)


def run(args: argparse.Namespace) -> None:
    """Print the scores to stdout as one JSON object."""
    from ..inference.metrics import check_tokenization, evaluate_translations

    check_tokenization(args.bleu_tokenize)
    model, tokenizer = load_models(args.model, args.backend, args.dtype)
    text = read_text(args, languages_of(model))
    start = time.perf_counter()
    translations = translate_sentences(model, tokenizer, text.sources, args)
    seconds = time.perf_counter() - start

    def score(indices: Iterable[int]) -> dict[str, Any]:
        predictions, references = zip(*((translations[i], text.references[i]) for i in indices), strict=True)
        scores = evaluate_translations(list(predictions), list(references), args.bleu_tokenize)
        return {**scores, "sentences": len(predictions)}

    result = {**score(range(len(translations))), "text": text.name, "seconds": round(seconds, 2)}
    if text.unseen:
        result["unseen_combinations"] = score(text.unseen)
    print(json.dumps(result, indent=2))
