import re
from collections import defaultdict

import pytest
import torch

from hf_vanilla_transformer import Translator, convert, train_tokenizer
from hf_vanilla_transformer.inference import alignment
from hf_vanilla_transformer.inference.alignment import Mark, _link, insert, splice, words
from hf_vanilla_transformer.inference.segments import Passage
from hf_vanilla_transformer.plugins.documents.html import HtmlDocument


def test_a_failed_alignment_leaves_the_attention_of_the_model_as_it_was(small_model, monkeypatch):
    tokenizer = train_tokenizer(["a dog runs"] * 3, 280)
    model = small_model(vocab_size=len(tokenizer))

    def out_of_memory(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(model.base_model, "forward", out_of_memory)
    with pytest.raises(MemoryError):
        Translator(model, tokenizer).align([("a dog", "dogs")])
    assert model.config._attn_implementation == "sdpa"


def test_a_model_of_another_class_translates_without_alignment(small_model):
    marian = convert.to_marian(small_model())
    tokenizer = train_tokenizer(["a dog"], 270)
    assert alignment.align(marian, tokenizer, [], [("a dog", "a dog")] * 2, limit=9, max_tokens=64) == [None, None]


def test_words_are_linked_by_their_share_of_the_attention_and_added_punctuation_is_not():
    # from: Does  he    lend   it    ?
    attention = [
        [0.45, 0.00, 0.55, 0.05, 0.05],  # Leiht
        [0.40, 0.30, 0.10, 0.10, 0.10],  # er
        [0.40, 0.10, 0.30, 0.10, 0.10],  # ,
        [0.40, 0.00, 0.00, 0.50, 0.10],  # es
        [0.10, 0.00, 0.10, 0.10, 0.70],  # ?
    ]
    links = _link(torch.tensor(attention), "Does he lend it?", "Leiht er, es?")
    assert links == [[2, 0], [1], [], [3], [4]]


@pytest.mark.slow
def test_tags_land_on_words_whose_translation_is_known(trained_on_multi30k):
    known = {"man": "mann", "woman": "frau", "dog": "hund", "girl": "mädchen", "boy": "junge", "men": "männer"}
    known |= {"ball": "ball", "street": "straße", "beach": "strand", "red": "roten", "black": "schwarzen"}
    model, tokenizer, _, sources, references = trained_on_multi30k
    cases = [
        (source, reference, word, translation)
        for source, reference in zip(sources, references, strict=True)
        for word, translation in known.items()
        if source.split().count(word) == reference.split().count(translation) == 1
    ]
    links = Translator(model, tokenizer).align([(source, reference) for source, reference, *_ in cases])
    right = 0
    for (source, reference, word, translation), found in zip(cases, links, strict=True):
        document = HtmlDocument(re.sub(rf"\b{word}\b", r"<b>\g<0></b>", source), "en")
        right += len(document.sentences) == 1 and f"<b>{translation}</b>" in document.join([reference], {0: found})
    # After half a minute of training; the model of the quickstart reaches 95 % on its phrases
    assert right / len(cases) > 0.75


def test_tags_go_to_the_words_that_come_from_the_words_in_them():
    marks = [Mark(2, "<b>", opens="b"), Mark(5, "</b>", closes="b")]
    assert splice("a red dog", marks, str) == "a <b>red</b> dog"
    # "chien" comes from "dog", and "rouge" from "red"
    assert insert("un chien rouge", "a red dog", marks, [[0], [2], [1]], str) == "un chien <b>rouge</b>"
    # without an alignment, words are in the same order
    assert insert("un chien rouge", "a red dog", marks, None, str) == "un <b>chien</b> rouge"


@pytest.mark.parametrize(
    ("source", "translation", "attention", "expected"),
    [
        ("5 %", "5 Prozent", [[0.9, 0.1], [0.1, 0.9]], [[0], [1]]),
        ("cats & dogs", "Katzen und Hunde", [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]], [[0], [1], [2]]),
        # the comma comes from nothing, and takes no source word from the others
        ("Does he", "Ja, er", [[0.6, 0.8], [0.05, 0.05], [0.1, 0.7]], [[0], [], [1]]),
        ("Eat!", "กิน !", [[0.7, 0.1], [0.8, 0.1], [0.7, 0.1], [0.1, 0.8]], [[0], [0], [0], [1]]),
        # words beyond the limit have no attention
        ("a b", "x y z", [[0.9, 0.1], [0.1, 0.9], [0.0, 0.0]], [[0], [1], []]),
        ("! ?", "x", [[0.5, 0.5]], [[]]),
        ("", "x y", [[], []], [[], []]),
        ("a", "", [], []),
    ],
)
def test_words_come_from_words_and_symbols_count_as_words(source, translation, attention, expected):
    sizes = (len(words(translation)), len(words(source)))
    assert _link(torch.tensor(attention).view(sizes), source, translation) == expected


class CountedReads(defaultdict):
    """A dictionary that counts how often it is read."""

    reads = 0

    def __getitem__(self, key):
        self.reads += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("html", ["<b>word</b> ", "word</b> <i>{x} ", "<b>word ", "a <!-- b --> ", "<b></b> {} "])
def test_placing_the_marks_of_a_sentence_takes_linear_time(html, monkeypatch):
    counted = CountedReads(list)

    def invert(links):
        counted.update(original(links))
        return counted

    original = alignment._invert
    monkeypatch.setattr(alignment, "_invert", invert)
    document = HtmlDocument("A word: " + html * 1000, "en")
    assert document.join(document.sentences) == "A word: " + html * 1000
    assert counted.reads < 5000


def test_elements_deeper_than_the_limit_stay_nested_and_around_their_words():
    html = f"Go <i>{'<b>' * 49}<i></i>big red dog{'</b>' * 49}</i> now"
    document = HtmlDocument(html, "en")
    assert document.sentences == ["Go big red dog now"]
    joined = document.join(["VA CHIEN ROUGE GRAND MAINTENANT"], {0: [[0], [3], [2], [1], [4]]})
    assert joined == f"VA <i>{'<b>' * 49}<i></i>CHIEN ROUGE GRAND{'</b>' * 49}</i> MAINTENANT"


@pytest.mark.parametrize("place", range(22))
def test_a_mark_belongs_to_one_piece_and_stays_at_its_place(place):
    text = "A dog runs. It stops! "
    passage = Passage(text, [Mark(place, "<br>")], "en")
    assert sum(len(piece.marks) for piece in passage.pieces) == 1
    sentences = sum(piece.is_sentence for piece in passage.pieces)
    assert passage.join(iter([(None, None)] * sentences)) == f"{text[:place]}<br>{text[place:]}"
