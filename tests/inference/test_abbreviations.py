"""Abbreviations end no sentence, in the rules of the language of a text."""

from pathlib import Path

import pytest
import sentencex

from hf_vanilla_transformer.inference.segments import Document

# A language, and a text with "|" between its sentences: 101 phrases in 12 languages, then 40 of others, also in 8 more
PHRASES = [
    line.split("\t")
    for line in Path(__file__).parents[1].joinpath("fixtures", "abbreviations.tsv").read_text("utf-8").splitlines()
]


def test_abbreviations_end_no_sentence():
    wrong = []
    for language, marked in PHRASES:
        sentences = [sentence.strip() for sentence in marked.split("|")]
        if Document(" ".join(sentences), language).sentences != sentences:
            wrong.append((language, marked))
    assert len(PHRASES) == 141
    assert len(wrong) <= 5, wrong


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("en", ["It is 5 p.m.", "They left."]),
        ("en", ["Take plan B.", "Then go."]),
        ("en", ["hello there.", "how are you?", "fine."]),
        ("de", ["Er ist 25.", "Sie ist 30."]),
        ("de", ["Es war 1999.", "Dann ging er."]),
        ("nl", ["Er waren Jan e.a.", "Zij zongen."]),
        ("fr", ["C'est pour vous.", "Elle l'a dit."]),
        ("en", ["Use the .NET tool.", "Two of the .PDF files ."]),
        ("th", ["พ.ศ. 2560 ก.ค. รศ.ดร. สมชาย"]),
        ("ar", ["د. أحمد جاء.", "ثم ذهب."]),
        ("xx", ["Saluton.", "Kiel vi fartas?"]),
    ],
)
def test_other_full_stops_end_one(language, sentences):
    assert Document(" ".join(sentences), language).sentences == sentences


def test_the_country_of_a_language_does_not_matter():
    sentences = ["O Sr. Silva e a Sra. Costa chegaram.", "Jantaram."]
    for language in ("pt", "pt_BR", "pt-BR"):
        assert Document(" ".join(sentences), language).sentences == sentences


def test_full_stops_of_khmer_end_a_sentence_but_not_in_its_etc():
    text = "ខ្ញុំទៅសាលា។ គាត់ទៅផ្ទះ៕ផ្លែឈើ។ល។ ច្រើន។"
    document = Document(text, "km")
    assert document.sentences == ["ខ្ញុំទៅសាលា។", "គាត់ទៅផ្ទះ៕", "ផ្លែឈើ។ល។ ច្រើន។"]
    assert document.join(document.sentences) == text
    # those that sentencex knows
    assert Document("যাই। আসি।", "bn").sentences == ["যাই।", "আসি।"]


@pytest.mark.parametrize("repeated", ["Dr. ", "a. b. ", "A. ", "1. ", "im 5. Mai ", "\u17d4", "\u17d4\u179b", "x.y."])
def test_a_text_of_nothing_but_abbreviations_is_cut_in_pieces(repeated, monkeypatch):
    lengths = []
    segment = sentencex.segment
    monkeypatch.setattr(sentencex, "segment", lambda code, part: lengths.append(len(part)) or segment(code, part))
    text = repeated * (40_000 // len(repeated))
    document = Document(text, "de")
    assert document.join([None] * len(document.sentences)) == text
    assert sum(lengths) <= 4 * len(text)
