"""Measure what placeholders and HTML cost: python scripts/benchmarks/documents.py MODEL TEXT

The source sentences of TEXT (TEXT.en for a model from English) are translated

1. with one placeholder in each, at a random place, and without it: in how many translations is it exactly once or
   reported, and what is the BLEU of the rest?
2. as paragraphs of HTML in which a link and bold words surround a few words, and as the same text without tags: how
   much processor time does each take? The two take turns, and the medians count.

Takes about a minute with a model of the size of `tiny`.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import sacrebleu
from measuring import Report, describe_machine, log

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.data.formats import read_lines

PLACEHOLDERS = ("https://example.org/a?b=c", "anna@example.org", "{{name}}", "{0}", "%s", "%(total)d", "`ls -l`", "🙂")


def words_of(text: str) -> str:
    """Return a text with one space between its words."""
    return " ".join(text.split())


def measure_placeholders(report: Report, translator: Translator, lines: list[str], references: list[str]) -> None:
    """Add the rows on placeholders."""
    chooser = random.Random(0)
    placeholders, marked = [], []
    for line in lines:
        words = line.split()
        placeholders.append(chooser.choice(PLACEHOLDERS))
        words.insert(chooser.randint(0, len(words)), placeholders[-1])
        marked.append(" ".join(words))

    plain = [each.text for each in translator.translate(lines)]
    found = translator.translate(marked, split_sentences=True)
    pairs = list(zip(found, placeholders, strict=True))
    kept = sum(each.text.count(placeholder) == 1 for each, placeholder in pairs)
    reported = sum(each.text.count(placeholder) != 1 and each.problem is not None for each, placeholder in pairs)
    rest = [words_of(each.text.replace(placeholder, " ")) for each, placeholder in pairs]
    count = len(lines)
    report.add("placeholders exactly once", kept, count, kept / count, "the rest reported", "sentences")
    report.add("placeholders reported", reported, count, reported / count, "at most 0.02", "sentences")
    bleu, expected = (
        sacrebleu.corpus_bleu(list(map(words_of, each)), [references], tokenize="none").score for each in (rest, plain)
    )
    row = "BLEU without the placeholders, against that of the sentences without them (difference)"
    report.add(row, bleu, expected, bleu - expected, "at least -0.5", "BLEU")


def as_html(line: str, chooser: random.Random) -> str:
    """Return a paragraph in which two groups of words have tags."""
    words = [word.replace("&", "&amp;").replace("<", "&lt;") for word in line.split()]
    first, second, third, fourth = sorted(chooser.choices(range(len(words) + 1), k=4))
    link, bold = " ".join(words[first:second]), " ".join(words[third:fourth])
    parts = [*words[:first], f'<a href="/a?b&amp;c">{link}</a>' if link else "", *words[second:third]]
    parts += [f"<b>{bold}</b>" if bold else "", *words[fourth:]]
    return f"<p>{words_of(' '.join(parts))}</p>"


def processor_seconds(repeats: int, **candidates: Callable[[], Any]) -> dict[str, float]:
    """Return the median processor time of each candidate; they alternate, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(repeats + 1):
        for name, function in candidates.items():
            start = time.process_time()
            function()
            if round_number:
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def measure_html(report: Report, translator: Translator, lines: list[str], num_beams: int, repeats: int) -> None:
    """Add the row on the time of HTML."""
    chooser = random.Random(0)
    pages = [as_html(line, chooser) for line in lines]
    seconds = processor_seconds(
        repeats,
        html=partial(translator.translate_html, pages, num_beams=num_beams),
        plain=partial(translator.translate, lines, split_sentences=True, num_beams=num_beams),
    )
    row = f"HTML, beam {num_beams}, against the same text without tags"
    report.add(row, seconds["html"], seconds["plain"], seconds["html"] / seconds["plain"], "at most 1.3", "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", help="parallel text, without the endings of its two files")
    parser.add_argument("--sentences", type=int, default=500, help="at most, for the placeholders (default: 500)")
    parser.add_argument("--html_sentences", type=int, default=200, help="at most, for HTML (default: 200)")
    parser.add_argument("--num_beams", type=int, default=4, help="of HTML (default: 4)")
    parser.add_argument("--repeats", type=int, default=5, help="of each measurement (default: 5)")
    args = parser.parse_args()

    translator = Translator.load(args.model)
    source, target = translator.directions.resolve(None, None)
    lines, references = (
        list(islice(read_lines(f"{args.text}.{language}"), args.sentences)) for language in (source, target)
    )
    log(f"{len(lines)} sentences of {args.text}")
    report = Report()
    measure_placeholders(report, translator, lines, references)
    measure_html(report, translator, lines[: args.html_sentences], args.num_beams, args.repeats)
    print(f"{describe_machine()}\n\n{report.table()}")


if __name__ == "__main__":
    main()
