"""Measure what placeholders and HTML cost: python scripts/benchmarks/documents.py MODEL TEXT

The source sentences of TEXT (TEXT.en for a model from English) are translated

1. with one placeholder in each, at a random place, and without it: how many translations have it exactly once, how
   many sentences are reported instead, and what is the BLEU of the rest of the translations?
2. as paragraphs of HTML, each with a link and bold words, and as the same text without tags: how much processor time
   does each take? The two take turns, and the medians count.

Takes about a minute with a model of the size of `tiny`.
"""

import argparse
import random
import time
from functools import partial
from html import escape
from itertools import islice

import sacrebleu
from measuring import Report, describe_machine, log, time_interleaved

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.data.formats import read_lines

PLACEHOLDERS = ("https://example.org/a?b=c", "anna@example.org", "{{name}}", "{0}", "%s", "%(total)d", "`ls -l`", "🙂")


def normalize_spaces(text: str) -> str:
    """Return a text with one space between its words."""
    return " ".join(text.split())


def measure_placeholders(report: Report, translator: Translator, lines: list[str], references: list[str]) -> None:
    """Add the rows on placeholders."""
    chooser = random.Random(0)
    placeholders = chooser.choices(PLACEHOLDERS, k=len(lines))
    marked = []
    for line, placeholder in zip(lines, placeholders, strict=True):
        words = line.split()
        words.insert(chooser.randint(0, len(words)), placeholder)
        marked.append(" ".join(words))
    plain = translator.translate(list(map(normalize_spaces, lines)), split_sentences=True)
    found = translator.translate(marked, split_sentences=True)

    kept = reported = lost = 0
    rest = []
    for sentence, placeholder, translation in zip(marked, placeholders, found, strict=True):
        is_kept = translation.text.count(placeholder) == sentence.count(placeholder)
        kept += is_kept
        reported += translation.problem is not None
        lost += not is_kept and translation.problem is None
        rest.append(normalize_spaces(translation.text.replace(placeholder, " ")))
    count = len(lines)
    report.add("placeholders kept exactly once", kept, count, kept / count, "", "sentences")
    report.add("placeholders lost or doubled, and not reported", lost, count, lost / count, "0", "sentences")
    report.add("sentences reported", reported, count, reported / count, "at most 0.02", "sentences")

    bleu = sacrebleu.corpus_bleu(rest, [references]).score
    expected = sacrebleu.corpus_bleu([each.text for each in plain], [references]).score
    row = "BLEU of the rest, and of the translations of the same sentences without placeholders (difference)"
    report.add(row, bleu, expected, bleu - expected, "at least -0.5", "BLEU")


def as_html(line: str, chooser: random.Random) -> str:
    """Return a paragraph in which up to two groups of words have tags."""
    words = [escape(word, quote=False) for word in line.split()]
    first, second, third, fourth = sorted(chooser.choices(range(len(words) + 1), k=4))
    if third < fourth:
        words[third:fourth] = [f"<b>{' '.join(words[third:fourth])}</b>"]
    if first < second:
        words[first:second] = [f'<a href="/a?b&amp;c">{" ".join(words[first:second])}</a>']
    return f"<p>{' '.join(words)}</p>"


def measure_html(report: Report, translator: Translator, lines: list[str], num_beams: int, repeats: int) -> None:
    """Add the row on the time of HTML."""
    chooser = random.Random(0)
    pages = [as_html(line, chooser) for line in lines]
    seconds = time_interleaved(
        repeats,
        time.process_time,
        html=partial(translator.translate_html, pages, num_beams=num_beams),
        plain=partial(translator.translate, lines, split_sentences=True, num_beams=num_beams),
    )
    row = f"HTML, beam {num_beams}, against the same text without tags"
    report.add(row, seconds["html"], seconds["plain"], seconds["html"] / seconds["plain"], "at most 1.3", "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", help="parallel text, without the endings of its two files")
    parser.add_argument("--sentences", type=int, default=500, help="most sentences with placeholders (default: 500)")
    parser.add_argument("--html_sentences", type=int, default=200, help="most paragraphs of HTML (default: 200)")
    parser.add_argument("--num_beams", type=int, default=4, help="beam size for HTML (default: 4)")
    parser.add_argument("--repeats", type=int, default=5, help="of each measurement (default: 5)")
    args = parser.parse_args()

    translator = Translator.load(args.model)
    source, target = translator.directions.resolve(None, None)
    lines, references = (
        list(islice(read_lines(f"{args.text}.{language}"), args.sentences)) for language in (source, target)
    )
    if not lines:
        parser.error(f"{args.text}.{source} is empty")
    log(f"{len(lines)} sentences of {args.text}")
    report = Report()
    measure_placeholders(report, translator, lines, references)
    measure_html(report, translator, lines[: args.html_sentences], args.num_beams, args.repeats)
    print(f"{describe_machine()}\n\n{report.table()}")


if __name__ == "__main__":
    main()
