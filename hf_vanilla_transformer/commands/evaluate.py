"""`vanilla-transformer evaluate`: evaluate a model on test texts: BLEU, chrF, chrF++ and TER."""

import csv
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from ..errors import UserError
from ..files import JsonObject, replacing
from ..flags import option
from .console import as_json
from .evaluation_text import EvaluationText, read_text
from .models import (
    check_bleu,
    load_translator,
    report_problems,
    resolve_languages,
    translate_sentences,
    with_reverse_model,
)
from .shared_flags import BackendFlags, BleuFlags, ReverseFlags, TextFlags

# The columns of the table of scores, which are 79 characters wide
_TITLES = {
    "sentences": "sentences",
    "bleu": "BLEU",
    "chrf": "chrF",
    "chrf++": "chrF++",
    "ter": "TER",
    "paper_bleu": "paper BLEU",
}
_ERROR_RATES = ("exact_match", "symbol_error_rate", "word_error_rate")
_MAX_WIDTH = 79
_COLUMNS = ("text", "line", "chrf", "source", "reference", "translation")  # of the table of sentences
_Row = tuple[str, int, float, str, str, str]


@dataclass(kw_only=True)
class EvaluateArguments(ReverseFlags, BackendFlags, BleuFlags, TextFlags):
    """The flags of `evaluate`.

    Args:
        test_file: one or more: a .jsonl, .tsv, .csv or .parquet file, or the prefix P of a Moses pair P.en and P.de
            (default: the held-out built-in phrases)
        error_rates: also compute exact match, symbol error rate and word error rate of words, one per line, whose
            symbols are separated by spaces (word) or are its characters (char); the references of equal sources are
            alternatives
        output: also write a table of all sentences, with the chrF of each, to this file, which ends in .tsv or .csv
        worst_first: sort the table by chrF, the lowest first
        json: print JSON in a terminal too, and no table of scores
    """

    # Unlike the other verbs, this one takes several
    test_file: list[str] | None = option(None, metavar="P")  # type: ignore[assignment]
    error_rates: str | None = option(None, choices=("word", "char"))
    output: str | None = option(None, metavar="FILE")
    worst_first: bool = option(False)
    json: bool = option(False)

    def __post_init__(self):
        super().__post_init__()
        if self.output and not self.output.endswith((".tsv", ".csv")):
            raise UserError(f"Cannot write {self.output}: the name of a table must end in .tsv or .csv.")
        if self.worst_first and not self.output:
            raise UserError("--worst_first sorts the table of --output: give both.")
        self.check_reverse()


def run(args: EvaluateArguments) -> None:
    """Print the scores: a table for a person at a terminal, JSON to a stdout that is none.

    The JSON is one object, or for several texts one object per line. While it goes to a file, the table is on stderr.
    """
    from ..inference.metrics import error_rates

    # Now, not after the slow translation
    if args.output and not Path(args.output).absolute().parent.is_dir():
        raise FileNotFoundError(f"Cannot write {args.output}: there is no such folder.")
    translator = load_translator(args.model, args.backend, args.dtype, num_beams=args.num_beams)
    translator = with_reverse_model(translator, args)
    languages = resolve_languages(translator, args)
    check_bleu(args, languages[1])
    files: Sequence[str | None] = args.test_file or [None]
    # All of them before the slow translation, so that a mistake in the last one is reported at once
    texts = [read_text(args, file, languages) for file in files]
    shows_json = args.json or not sys.stdout.isatty()
    screen = sys.stderr if shows_json else sys.stdout
    shows_table = screen.isatty() and not args.json
    rows: list[_Row] = []
    for number, text in enumerate(texts, start=1):
        start = time.perf_counter()
        translations = translate_sentences(translator, text.sources, args)
        seconds = round(time.perf_counter() - start, 2)
        # A sentence without a translation counts as an empty one, so that leaving out hard sentences raises no score
        outputs = [translation.text for translation in translations]

        result = _score(outputs, text.references, args)
        result |= {"text": text.name, "direction": text.direction, "seconds": seconds}
        if args.error_rates:
            result |= error_rates(text.sources, outputs, text.references, args.error_rates)
        if text.dataset:
            result["dataset"] = text.dataset
        if untranslated := report_problems(translations, text.name):
            result["untranslated"] = untranslated
        if text.unseen:
            unseen = [outputs[i] for i in text.unseen]
            result["unseen_combinations"] = _score(unseen, [text.references[i] for i in text.unseen], args)
        # Before the scores are printed, because whoever reads them may leave, as `head` does
        if args.output:
            rows += _rows(text, outputs)
            _write_table(
                sorted(rows, key=itemgetter(_COLUMNS.index("chrf"))) if args.worst_first else rows, args.output
            )
        # Flushed, because the next text may take an hour
        if shows_json:
            print(as_json(result, 2, indent=2 if len(texts) == 1 else None), flush=True)
        if shows_table:
            print(_scores_table(result, number == 1, number == len(texts)), file=screen, flush=True)


def _score(translations: list[str], references: list[str], args: BleuFlags) -> JsonObject:
    """Return the scores of translations, and their number."""
    from ..inference.metrics import evaluate_translations

    scores = evaluate_translations(translations, references, args.bleu_tokenize, args.paper_bleu)
    return {**scores, "sentences": len(translations)}


def _scores_table(result: JsonObject, first: bool, last: bool) -> str:
    """Return the part of the table of scores for one text.

    Args:
        first: whether to begin with the titles of the columns.
        last: whether to end with sacreBLEU's signatures, which are the same for all texts.
    """
    columns = [name for name in _TITLES if name in result]
    titles = [f"{_TITLES[name]:>6}" for name in columns]
    width = _MAX_WIDTH - sum(len(title) + 2 for title in titles)

    def row(label: str, scores: JsonObject) -> str:
        texts = [f"{scores[name]:,}" if name == "sentences" else f"{scores[name]:.2f}" for name in columns]
        cells = (f"{text:>{len(title)}}" for text, title in zip(texts, titles, strict=True))
        shown = label if len(label) <= width else f"{label[: width - 3]}..."
        return "  ".join([f"{shown:<{width}}", *cells])

    lines = ["  ".join([" " * width, *titles])] if first else []
    lines.append(row(f"{result['text']}, {result['direction']}", result))
    if unseen := result.get("unseen_combinations"):
        lines.append(row("- unseen combinations of words", unseen))
    rates = [f"{name.replace('_', ' ')} {result[name]:.2f} %" for name in _ERROR_RATES if name in result]
    if rates:
        lines.append(f"- {', '.join(rates)}")
    if "untranslated" in result:
        lines.append(f"- not translated: {result['untranslated']:,} sentences")
    if last:
        lines.append("")
        for name, signature in result["signatures"].items():
            lines += textwrap.wrap(f"{_TITLES[name]}: {signature}", _MAX_WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def _rows(text: EvaluationText, translations: list[str]) -> list[_Row]:
    """Return the rows of a test text; its lines count from 1."""
    from ..inference.metrics import sentence_chrf

    scores = (round(score, 2) for score in sentence_chrf(translations, text.references))
    columns = zip(scores, text.sources, text.references, translations, strict=True)
    return [(text.name, line, *row) for line, row in enumerate(columns, start=1)]


def _write_table(rows: Sequence[_Row], file: str) -> None:
    """Write a table that spreadsheets open, with quotation marks around fields with tabs or line breaks."""
    # Without a byte order mark, Excel would not read it as UTF-8
    with replacing(file) as unfinished, unfinished.open("w", encoding="utf-8-sig", newline="") as table:
        writer = csv.writer(table, "excel" if file.endswith(".csv") else "excel-tab")
        writer.writerow(_COLUMNS)
        writer.writerows(rows)
