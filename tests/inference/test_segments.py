"""Cutting texts into sentences loses nothing."""

from hypothesis import given
from hypothesis import strategies as st

from hf_vanilla_transformer.inference.segments import Document

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


def test_a_line_break_ends_a_sentence_and_blank_lines_are_kept():
    document = Document("  A title\n\nOne\ttwo. Three\r\n", "en")
    assert document.pieces == ["  ", "A title", "\n", "\n", "One\ttwo.", " ", "Three", "\r\n"]
    assert document.sentences == ["A title", "One\ttwo.", "Three"]


@given(_TEXTS, st.sampled_from(["en", "de", "zh", "ar", "xx"]))
def test_the_parts_are_the_text_and_white_space_is_never_translated(text, language):
    document = Document(text, language)
    assert "".join(document.pieces) == text
    assert document.sentences == [piece for piece in document.pieces if not piece.isspace()]
    assert all(piece and (piece.isspace() or piece == piece.strip()) for piece in document.pieces)
    assert document.join(document.sentences) == text


def test_translations_take_the_places_of_the_sentences():
    assert Document("One. Two!\n\n Three", "en").join(["Eins.", "Zwei!", "Drei"]) == "Eins. Zwei!\n\n Drei"
