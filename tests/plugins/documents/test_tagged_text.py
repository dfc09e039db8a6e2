"""Tags go to the words of a translation that come from the words in them."""

import re
from collections import defaultdict

import pytest

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.inference import segments
from hf_vanilla_transformer.plugins.documents.html import HtmlDocument
from hf_vanilla_transformer.plugins.documents.tagged_text import Tag, TaggedPassage


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
    passage = TaggedPassage("a red dog", [Tag(2, "<b>", opens="b"), Tag(5, "</b>", closes="b")], "en")
    assert passage.join(iter([(None, None)])) == "a <b>red</b> dog"
    # "chien" comes from "dog", and "rouge" from "red"
    assert passage.join(iter([("un chien rouge", [[0], [2], [1]])])) == "un chien <b>rouge</b>"
    # without an alignment, words are in the same order
    assert passage.join(iter([("un chien rouge", None)])) == "un <b>chien</b> rouge"


class CountedReads(defaultdict):
    """A dictionary that counts how often it is read."""

    reads = 0

    def __getitem__(self, key):
        self.reads += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("html", ["<b>word</b> ", "word</b> <i>{x} ", "<b>word ", "a <!-- b --> ", "<b></b> {} "])
def test_placing_the_marks_of_a_sentence_takes_linear_time(html, monkeypatch):
    counted = CountedReads(list)
    monkeypatch.setattr(segments, "defaultdict", lambda factory: counted)
    document = HtmlDocument("A word: " + html * 1000, "en")
    assert document.join(document.sentences) == "A word: " + html * 1000
    assert counted.reads < 5000


def test_elements_deeper_than_the_limit_stay_nested_and_around_their_words():
    html = f"Go <i>{'<b>' * 49}<i></i>big red dog{'</b>' * 49}</i> now"
    document = HtmlDocument(html, "en")
    assert document.sentences == ["Go big red dog now"]
    joined = document.join(["VA CHIEN ROUGE GRAND MAINTENANT"], {0: [[0], [3], [2], [1], [4]]})
    assert joined == f"VA <i>{'<b>' * 49}<i></i>CHIEN ROUGE GRAND{'</b>' * 49}</i> MAINTENANT"
