"""Cutting texts into sentences loses nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_vanilla_transformer.inference.segments import Document, Mark, Passage
from hf_vanilla_transformer.model.text_rules_vanilla_transformer import normalise

_TEXTS = st.lists(
    st.sampled_from(
        ["Mr. Smith came.", " ", "\n", "\r\n", "\t", "Who?", "第一句。", "a", "...", "\u2028", "\xa0", "«No!»", "3.5"]
    )
    | st.text(max_size=20)
).map("".join)


def sentences(text, language="en"):
    return Document(text, language).sentences


def test_sentences_of_several_languages():
    assert sentences("Mr. Smith came. He saw it!  Who else?") == ["Mr. Smith came.", "He saw it!", "Who else?"]
    assert sentences("Das ist z. B. gut. Ja?", "de") == ["Das ist z. B. gut.", "Ja?"]
    assert sentences("第一句。第二句。", "zh") == ["第一句。", "第二句。"]
    assert sentences("Saluton. Kiel vi fartas?", "language-of-nobody") == ["Saluton.", "Kiel vi fartas?"]


def test_a_line_break_ends_a_sentence_and_white_space_is_kept_between_them():
    document = Document("  A title\n\nOne\ttwo. Three\r\n", "en")
    assert document.sentences == ["A title", "One two.", "Three"]
    assert document.join(["1", "2", "3"]) == "  1\n\n2 3\r\n"


@given(_TEXTS, st.sampled_from(["en", "de", "zh", "ar", "xx"]))
def test_a_text_whose_sentences_are_kept_is_itself(text, language):
    document = Document(text, language)
    assert document.join([None] * len(document.sentences)) == text
    assert all(any(map(str.isalpha, sentence)) for sentence in document.sentences)
    assert all(sentence == " ".join(sentence.split()) for sentence in document.sentences)


@pytest.mark.parametrize(
    "text",
    [
        "12345",
        "---",
        "| --- | :-: |",
        "00:01:02,500 --> 00:01:04,000",
        "\u200b",
        "\U0001f436\ufe0f!",
        "1.",
        "3,5 %",
        "* * *",
    ],
)
def test_what_has_no_letter_is_not_translated(text):
    assert Document(text, "en").sentences == []
    assert Document(text, "en").join([]) == text


@pytest.mark.parametrize(
    "marker", ["- ", "  * ", "1. ", "12) ", "a) ", "## ", "> ", "| ", "\u2022 ", "\U0001f436 ", "- [x] "]
)
def test_what_a_line_starts_with_is_not_translated(marker):
    document = Document(f"{marker}A dog.", "en")
    assert document.sentences == ["A dog."]
    assert document.join(["Ein Hund."]) == f"{marker}Ein Hund."


@pytest.mark.parametrize("text", ["'A dog.'", "\u00bfQui\u00e9n?", "(A dog)", "\u201eA dog\u201c", "3 dogs", "a dog"])
def test_the_start_of_a_sentence_is_part_of_it(text):
    assert Document(text, "en").sentences == [text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("an item{s}, or item{0} here", "AN ITEM{s}, OR ITEM{0} HERE"),
        ("see v{n} of #{id} and {n}.", "SEE V{n} OF #{id} AND {n}."),
        ('"{a}" of ({b})', '"{a}" OF ({b})'),
    ],
)
def test_a_placeholder_that_touches_a_word_stays_beside_it(text, expected):
    document = Document(text, "en")
    assert document.join([sentence.upper() for sentence in document.sentences]) == expected


def test_a_placeholder_follows_the_words_around_it():
    document = Document("The dog {name} eats.", "en")
    assert document.aligned == [0]
    assert document.join(["Es frisst der Hund."], {0: [[2], [2], [0], [1], [3]]}) == "Es frisst der Hund {name}."
    assert Document("{0} dogs in `x`", "en").join(["Hunde in"], {0: [[0], [1]]}) == "{0} Hunde in `x`"
    assert Document("See {a} {b}.", "en").join(["Siehe."]) == "Siehe {a} {b}."


def test_invisible_characters_reach_no_model_and_move_no_placeholder():
    document = Document("\u200eDie Do\xadnau\u200efahrt {name} be\xadginnt.\n\u2066+49\xad1\u2069", "de")
    assert document.sentences == ["Die Donaufahrt beginnt."]
    assert document.join(["The trip starts."], {0: [[0], [1], [2], [3]]}) == (
        "The trip {name} starts.\n\u2066+49\xad1\u2069"  # what is not translated stays
    )


@pytest.mark.parametrize("between", [" ", "\u200f ", " \u200e", "\u2069 \u2068", "\ufeff\xa0\xad"])
def test_invisible_characters_around_white_space_join_no_sentences(between):
    document = Document(f"A dog runs.{between}The cat sleeps.", "en")
    assert document.sentences == ["A dog runs.", "The cat sleeps."]
    joined = document.join(["Ein Hund.", "Eine Katze."])
    assert normalise(joined) == "Ein Hund. Eine Katze."
    assert document.join([None, None]) == f"A dog runs.{between}The cat sleeps."


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        ("50% Hunde", "50% {a} Hunde"),
        ("1,000.5 Hunde", "1,000.5 {a} Hunde"),
        ("l'homme dort", "l'homme {a} dort"),
        ("Nord-Süd Hunde", "Nord-Süd {a} Hunde"),
        ("Hund, Hunde", "Hund {a}, Hunde"),
    ],
)
def test_a_placeholder_never_stands_inside_a_number_or_joined_words(translation, expected):
    # behind the first word, by the alignment
    document = Document("Half {a} dogs", "en")
    assert document.join([translation], {0: [[0]] + [[1]] * 9}) == expected


@pytest.mark.parametrize("repeated", ["a", "1", "a-", "1,"])
def test_joined_words_are_found_in_linear_time(repeated):
    # in seconds, not minutes: the time limit of every test
    translation = repeated * 100_000 + " b"
    document = Document("Half {a} dogs", "en")
    assert document.join([translation]).replace(" {a}", "") == translation


@pytest.mark.parametrize("place", range(22))
def test_a_mark_belongs_to_one_segment_and_stays_at_its_place(place):
    text = "A dog runs. It stops! "
    passage = Passage(text, [Mark(place, "<br>")], "en")
    assert sum(len(segment.marks) for segment in passage.segments) == 1
    sentences = sum(segment.is_sentence for segment in passage.segments)
    assert passage.join(iter([(None, None)] * sentences)) == f"{text[:place]}<br>{text[place:]}"


def test_hypotheses_of_equal_rank_are_joined_and_the_last_one_stands_in():
    document = Document("One `x` dog. Two. Three.", "en")
    hypotheses = [["A b", "C d"], ["E"], []]
    assert document.pairs(hypotheses) == [("One dog.", "A b"), ("One dog.", "C d")]
    texts = document.join_hypotheses(hypotheses, iter([[[1], [0]], None]), 2)
    assert texts == ["A b `x` E Three.", "C `x` d E Three."]
