"""Compare how texts are cut into sentences: python scripts/benchmarks/sentences.py PHRASES PLAIN

A line of PHRASES (tests/fixtures/abbreviations.tsv) is a language, a tab, and a text with "|" between its sentences; a
line of PLAIN is a language, a tab, and one sentence. How many texts of PHRASES are right, how many sentences of PLAIN
are when another one of their language follows, and how long do 100 kB of English take? Takes a minute, and needs

    pip install pysbd spacy PyICU
"""

import argparse
import time
from collections.abc import Callable
from functools import cache
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path

import icu
import pysbd
import sentencex
import spacy

from hf_vanilla_transformer.inference.segments import Document


@cache
def pysbd_segmenter(language: str) -> pysbd.Segmenter:
    """Return the segmenter of a language, that of English for one which pysbd does not have."""
    known = pysbd.languages.LANGUAGE_CODES
    return pysbd.Segmenter(language=language if language in known else "en", clean=False)


@cache
def spacy_pipeline(language: str) -> spacy.language.Language:
    """Return spaCy's rules for a language."""
    pipeline = spacy.blank(language)
    pipeline.add_pipe("sentencizer")
    return pipeline


def icu_sentences(language: str, text: str) -> list[str]:
    """Return the sentences of a text according to ICU, with the exceptions of the locale."""
    boundaries = icu.BreakIterator.createSentenceInstance(icu.Locale(f"{language}@ss=standard"))
    # ICU counts in UTF-16
    whole = icu.UnicodeString(text)
    boundaries.setText(whole)
    places = [0, *boundaries]
    return [str(whole[start:end]) for start, end in pairwise(places)]


SPLITTERS: dict[str, Callable[[str, str], list[str]]] = {
    "this package": lambda language, text: Document(text, language).sentences,
    "sentencex alone": sentencex.segment,
    "pysbd": lambda language, text: pysbd_segmenter(language).segment(text),
    "spaCy's sentencizer": lambda language, text: [span.text for span in spacy_pipeline(language)(text).sents],
    "ICU": icu_sentences,
}


def read(path: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each line."""
    rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    return [(language, " ".join(text.split())) for language, text in rows]


def is_right(split: Callable[[str, str], list[str]], language: str, sentences: list[str]) -> bool:
    """Return whether a text is cut into its sentences."""
    parts = [part.strip() for part in split(language, " ".join(sentences))]
    return [part for part in parts if part] == sentences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phrases", type=Path)
    parser.add_argument("plain", type=Path)
    args = parser.parse_args()

    phrases = [(language, text.split("| ")) for language, text in read(args.phrases)]
    plain = []
    for language, rows in groupby(read(args.plain), key=itemgetter(0)):
        sentences = [sentence for _, sentence in rows]
        plain += [(language, list(pair)) for pair in zip(sentences, sentences[1:] + sentences[:1], strict=True)]
    english = " ".join(sentence for language, (sentence, _) in plain if language == "en")
    english = (english * (100_000 // len(english) + 1))[:100_000]
    print(f"| | right of {len(phrases)} | right of {len(plain):,} | seconds |\n|---|---|---|---|")
    for name, split in SPLITTERS.items():
        right = [sum(is_right(split, *text) for text in texts) for texts in (phrases, plain)]
        start = time.process_time()
        split("en", english)
        print(f"| {name} | {right[0]} | {right[1]} | {time.process_time() - start:.3f} |")


if __name__ == "__main__":
    main()
