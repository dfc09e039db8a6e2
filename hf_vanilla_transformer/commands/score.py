"""`vanilla-transformer score`: compute the log-probability and perplexity of given translations."""

import json
import sys
from dataclasses import dataclass

from ..flags import values_of
from .console import print_in_utf8, say
from .evaluation_text import read_text
from .models import load_translator, resolve_languages
from .shared_flags import BatchFlags, DirectionFlags, DtypeFlags, ModelsFlags, TextFlags


@dataclass(kw_only=True)
class ScoreArguments(ModelsFlags, DtypeFlags, BatchFlags, TextFlags):
    """The flags of `score`."""


def run(args: ScoreArguments) -> None:
    """Print one JSON object per pair to stdout, and the totals to stderr."""
    from tqdm import tqdm

    from ..inference.comparison import score_translations
    from ..inference.metrics import perplexity

    translator = load_translator(args.model, dtype=args.dtype)
    text = read_text(args, args.test_file, resolve_languages(translator, args))
    with tqdm(total=len(text.sources), desc="Scoring", unit=" pairs", file=sys.stderr) as bar:
        direction = values_of(args, DirectionFlags)
        results = score_translations(
            translator, text.sources, text.references, args.max_tokens, progress=bar.update, **direction
        )
    print_in_utf8()
    scored = zip(text.sources, text.references, results, strict=True)
    for index, (source, target, (log_probability, tokens)) in enumerate(scored):
        pair = {"index": index, "source": source, "target": target}
        # At least one token: `</s>` counts
        own = perplexity(-log_probability / tokens)
        row = {**pair, "log_probability": log_probability, "tokens": tokens, "perplexity": own}
        print(json.dumps(row, ensure_ascii=False))

    # Per token of the whole text, not the mean over pairs, in which short sentences would weigh too much
    total = sum(log_probability for log_probability, _ in results)
    total_tokens = sum(tokens for _, tokens in results)
    average = f"perplexity {perplexity(-total / total_tokens):.4f} per token"
    say(f"{len(results):,} pairs, {total_tokens:,} tokens: log-probability {total:.2f} nats, {average}")
