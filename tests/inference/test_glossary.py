"""Glossaries: terms get the translations that a user asks for."""

import io
import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_models import with_varied_lengths
from small import write_moses

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.errors import UserError
from hf_vanilla_transformer.inference.glossary import Glossary, insert_terms, link_terms, read_glossary
from hf_vanilla_transformer.plugins import DOCUMENTS, load

TBX_2 = """<?xml version="1.0"?><!DOCTYPE martif SYSTEM "TBXcoreStructV02.dtd">
<martif type="TBX" xml:lang="en"><text><body><termEntry id="1">
<langSet xml:lang="de"><tig><term>Köter</term><termNote type="administrativeStatus">deprecatedTerm-admn-sts</termNote>
</tig><ntig><termGrp><term>Hündchen</term></termGrp></ntig></langSet>
<langSet xml:lang="en-US"><tig><term>dog</term></tig><tig><term>hound</term></tig></langSet>
</termEntry></body></text></martif>"""
TBX_3 = """<?xml version="1.0"?><tbx xmlns="urn:iso:std:iso:30042:ed-2" type="TBX-Core" style="dca"><text><body>
<conceptEntry id="1"><langSec xml:lang="de"><termSec><term>Hündchen</term></termSec></langSec>
<langSec xml:lang="en"><termSec><term>dog</term></termSec><termSec><term>hound</term></termSec></langSec>
</conceptEntry></body></text></tbx>"""


def terms(glossary: dict[str, str], sentence: str) -> list[str]:
    return [term.translation for term in Glossary(glossary).find(sentence)]


@pytest.mark.parametrize(
    ("glossary", "sentence", "expected"),
    [
        ({"dog": "Hund"}, "Dog and DOG, dogs, hot-dog: a dog's", ["Hund", "HUND", "Hund", "Hund"]),
        # not a common word that looks like a name
        ({"Apple": "Apple", "US": "USA"}, "an apple for us, of Apple and APPLE in the US", ["Apple", "APPLE", "USA"]),
        ({"apple": "Apfel", "Apple": "Apple"}, "Apple or apple", ["Apple", "Apfel"]),
        # the longest first, wherever it starts
        ({"fire": "F", "fire truck": "LF", "truck": "L"}, "a fire  truck, a fire and a truck", ["LF", "F", "L"]),
        ({"a b": "1", "b c d": "2", "a": "3"}, "a b c d", ["3", "2"]),
        # no words of it
        ({"art": "Kunst"}, "a cartoon of articles", []),
        ({"driver's license": "Führerschein"}, "his driver\u2019s license", ["Führerschein"]),
        ({"café": "Kaffeehaus"}, "a cafe\u0301", ["Kaffeehaus"]),
        ({"C++": "Cpp"}, "in C++ and C", ["Cpp"]),
        ({"C": "Ce"}, "in C++, C# and C", ["Ce"]),
        ({"dog\xadhouse": "Hütte"}, "a doghouse", ["Hütte"]),
        ({"图书": "Buch"}, "这是图书馆", ["Buch"]),
        ({"": "x", " ": "y", "cat": " ", "dog": " der  Hund "}, "a cat, a dog", ["der Hund"]),
        # what is copied is not translated
        ({"dog": "Hund"}, "`dog` https://dog.org/dog {dog} a@dog.org", []),
    ],
)
def test_terms_of_a_sentence(glossary, sentence, expected):
    assert terms(glossary, sentence) == expected


@pytest.mark.parametrize(
    ("sentence", "translation", "links", "glossary", "expected"),
    [
        ("a dog runs.", "ein Hund rennt.", [[0], [1], [2], [3]], {"dog": "Köter"}, "ein Köter rennt."),
        # several words, for several and for one
        ("a fire truck", "ein Feuerwehrauto", [[0], [1, 2]], {"fire truck": "LF 20"}, "ein LF 20"),
        ("a truck", "ein Last Kraftwagen", [[0], [1], [1]], {"truck": "Laster"}, "ein Laster"),
        # not the article, which comes from another word too, but a compound
        ("a dog runs", "ein Hund rennt", [[0, 1], [1], [2]], {"dog": "Köter"}, "ein Köter rennt"),
        ("a fire truck", "ein Feuerwehrauto", [[0], [1, 2]], {"truck": "Laster"}, "ein Laster"),
        # at the start of a sentence
        ("Dogs run", "„Hunde rennen", [[], [0], [1]], {"dogs": "alle Köter"}, "„Alle Köter rennen"),
        ("A phone", "Telefon eines", [[1], [0]], {"phone": "iPhone"}, "iPhone eines"),
        # already there, by itself or with the ending of its case, wherever the alignment sees it
        ("a dog runs", "ein Hund rennt", [[1], [0], [2]], {"dog": "Hund"}, "ein Hund rennt"),
        ("of the dog", "des Hundes", [[1], [2]], {"dog": "Hund"}, "des Hundes"),
        # the start of another word is not there
        ("a hat, a hut", "eine Hütte", [[0], [1]], {"hat": "Hut"}, "eine Hut"),
        ("a man", "ein Mann", [[0], [1]], {"man": "an"}, "ein an"),
        # in place of a mark or a digit, without which it would be one word with its neighbours
        ("a dog", "ein&Tier", [[0], [1], [0]], {"dog": "Hund"}, "ein Hund Tier"),
        ("dog a", "&quot;", [[0], [1], [1]], {"dog": "Hund"}, "Hund quot;"),
        ("a dog", "3D", [[1], [0]], {"dog": "Hund"}, "Hund D"),
        ("dog cat", "狗猫", [[0], [1]], {"dog": "Dog", "cat": "Cat"}, "Dog Cat"),
        ("a dog", "ein-Tier", [[0], [0], [1]], {"dog": "Hund"}, "ein-Hund"),
        ("a dog", "一只狗跑", [[0], [0], [1], [0]], {"dog": "犬"}, "一只犬跑"),
        # two of them
        ("dog, dog", "Hund, Tier", [[0], [1], [2]], {"dog": "Hund"}, "Hund, Hund"),
        ("a dog, a cat", "ein Tier", [[0], [1, 4]], {"dog": "Hund", "cat": "Katze"}, "ein Hund Katze"),
        # from no word
        ("a big dog runs.", "Große rennt.", [[1], [3], [4]], {"dog": "Köter"}, "Große Köter rennt."),
        ("dog runs", "rennt", [[1]], {"dog": "Köter"}, "Köter rennt"),
        ("dog", "", [], {"dog": "Köter"}, "Köter"),
        # not inside a number, and without spaces where a script has none
        ("about 50 dogs.", "etwa 50%.", [[0], [1], [], [3]], {"dogs": "Köter"}, "etwa 50% Köter."),
        ("a dog runs 1,5 km", "1,5", [[2], [], [4]], {"dog": "Hund", "km": "km"}, "1,5 Hund km"),
        ("a dog likes", "我喜欢", [[0], [2], [2]], {"dog": "苹果"}, "我苹果喜欢"),
        ("dogs like", "喜欢", [[1], [1]], {"dogs": "苹果"}, "苹果喜欢"),
    ],
)
def test_asked_translations_replace_the_words_that_come_from_a_term(sentence, translation, links, glossary, expected):
    assert insert_terms(sentence, translation, Glossary(glossary).find(sentence), links) == expected


def test_no_tag_gets_between_the_words_of_an_asked_translation():
    document = load(DOCUMENTS, "html").document("A <b>big dog</b> runs to <i>a dog</i>.", "en")
    translation = "Ein großer Zwurbel 3000 rennt zu Zwurbel 3000."
    found = Glossary({"dog": "Zwurbel 3000"}).find(document.sentences[0])
    # such as of a model that does not know these words
    links = [[0], [1], [1], [3], [3], [4], [3], [0], [7]]
    expected = "Ein <b>großer Zwurbel 3000</b> rennt zu <i>Zwurbel 3000</i>."
    assert document.join([translation], {0: links}) != expected
    assert document.join([translation], {0: link_terms(translation, found, links)}) == expected


@pytest.fixture
def translator(save_model, phrase_tokenizer):
    model, _ = save_model(source_lang="en", target_lang="de")
    return Translator(with_varied_lengths(model), phrase_tokenizer)


@given(st.lists(st.sampled_from(["a", "dog", "Dog", "red cat", "runs", ",", "https://dog.org", "."]), max_size=12))
def test_each_asked_translation_is_in_every_hypothesis(parts):
    """For any alignment, even a wrong one."""
    sentence = " ".join(parts)
    glossary = Glossary({"dog": "Köter", "red cat": "Rote Katze"})
    links = [[i % (len(parts) or 1)] for i in range(6)]
    translation = insert_terms(sentence, "x1 x, x.", glossary.find(sentence), links)
    for term, asked in glossary.items():
        assert translation.count(asked) == sum(part.lower() == term for part in parts)


def test_terms_get_into_every_hypothesis_of_sentences_texts_and_pages(translator):
    glossary = {"dog": "Zwurbel 3000"}
    sentences = ["a dog runs", "two men sit", "", "the big Dog sits with a dog"]
    plain = translator.translate(sentences, nbest=2, num_beams=2)
    asked = translator.translate(sentences, nbest=2, num_beams=2, glossary=glossary)
    for sentence, before, after in zip(sentences, plain, asked, strict=True):
        count = sentence.lower().split().count("dog")
        assert [hypothesis.text.count("Zwurbel 3000") for hypothesis in after.hypotheses] == [count] * 2
        if not count:
            assert after == before
    (text,) = translator.translate(["A dog runs. See `dog`. The dog."], split_sentences=True, glossary=glossary)
    assert text.text.count("Zwurbel 3000") == 2
    assert text.text.count("`dog`") == 1
    (page,) = translator.translate_html(["<p>a <b>big dog</b> runs <br> <i>dog</i></p>"], glossary=glossary)
    assert page.text.count("Zwurbel 3000") == 2
    assert sorted(re.findall("<[^>]*>", page.text)) == sorted(["<p>", "<b>", "</b>", "<br>", "<i>", "</i>", "</p>"])


def test_files_of_terms_in_several_languages(tmp_path):
    file = tmp_path / "terms.tsv"
    file.write_text("\ufeffen-GB\tde\tfr\r\ndog\tHund\tchien\r\n\r\n fire  truck\tFeuerwehr\t\r\ndog\tTier\t\r\n")
    glossaries = read_glossary(str(file), [("en", "de"), ("fr", "en"), ("en", "es")])
    assert glossaries["en", "de"] == {"dog": "Hund", "fire truck": "Feuerwehr"}
    assert glossaries["fr", "en"] == {"chien": "dog"}
    assert glossaries["en", "es"] == {}
    # as spreadsheets write it
    file.write_text('dog\tHund\t\n"red, ""big"""\trot\t\n')
    assert read_glossary(str(file), [("en", "de")]) == {("en", "de"): {"dog": "Hund", 'red, "big"': "rot"}}


def test_a_term_of_tbx_is_deprecated_only_if_its_status_says_so(tmp_path):
    file = tmp_path / "terms.tbx"
    status = "<basic:administrativeStatus>deprecatedTerm-admn-sts</basic:administrativeStatus>"
    current = "<termSec><term>veraltet</term><note>not deprecated</note></termSec>"
    german = f"<termSec><term>alt</term>{status}</termSec>{current}"
    namespaces = 'xmlns="urn:iso:std:iso:30042:ed-2" xmlns:basic="http://www.tbxinfo.net/ns/basic"'
    file.write_text(f"""<tbx {namespaces}><text><body><conceptEntry>
    <langSec xml:lang="en"><termSec><term>deprecated</term></termSec></langSec>
    <langSec xml:lang="de">{german}</langSec></conceptEntry></body></text></tbx>""")
    assert read_glossary(str(file), [("en", "de")]) == {("en", "de"): {"deprecated": "veraltet"}}


@pytest.mark.parametrize("content", [TBX_2, TBX_3])
def test_terms_of_tbx(tmp_path, content):
    file = tmp_path / "terms.TBX"
    file.write_text(content, encoding="utf-8")
    glossaries = read_glossary(str(file), [("en", "de"), ("de", "en")])
    assert glossaries["en", "de"] == {"dog": "Hündchen", "hound": "Hündchen"}
    assert glossaries["de", "en"]["Hündchen"] == "dog"


@pytest.mark.parametrize(
    ("name", "content", "directions", "message"),
    [
        ("a.tsv", "dog\tHund\ncat\n", ["en de"], "a.tsv, line 2: expected a term in each column, separated by tabs"),
        ("a.tsv", "dog\t \n", ["en de"], "line 1"),
        ("a.tsv", "a\tb\tc\n", ["en de"], r"\(en, de\)"),
        ("a.tsv", "dog\tHund\n", ["en de", "de en"], "line 1: name the languages of the columns here"),
        ("a.tsv", "en\tfr\ndog\tchien\n", ["en de"], "has no terms from en to de"),
        ("a.tsv", "", ["en de"], "has no terms from en to de"),
        ("a.tbx", "dog\tHund\n", ["en de"], "is not TBX: damaged XML"),
        ("a.tbx", "<martif/>", ["en de"], "no terms"),
    ],
)
def test_useless_files_are_errors(tmp_path, name, content, directions, message):
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(UserError, match=message):
        read_glossary(str(file), [tuple(direction.split()) for direction in directions])


def test_entities_of_tbx_are_not_read(tmp_path):
    file = tmp_path / "a.tbx"
    file.write_text(
        TBX_2.replace('"TBXcoreStructV02.dtd"', f'"x" [<!ENTITY e SYSTEM "{file}">]').replace("dog", "&e;")
    )
    (glossary,) = read_glossary(str(file), [("en", "de")]).values()
    assert set(glossary) - {""} == {"hound"}


def test_glossaries_of_the_command_line(saved, tmp_path, monkeypatch, capsys):
    file = tmp_path / "terms.tsv"
    file.write_text("dog\tZwurbel\n")

    def run(*flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog runs\ntwo men sit\n")))
        return main(["translate", saved.path, *flags]), *capsys.readouterr()

    status, out, _ = run("--glossary", str(file))
    assert status == 0
    assert [line.count("Zwurbel") for line in out.splitlines()] == [1, 0]
    assert run("--glossary", str(file), "--format", "html")[1].count("Zwurbel") == 1
    for flags, message in (
        (["--glossary", str(file), "--backend", "onnx"], "--glossary requires --backend torch"),
        (["--glossary", str(tmp_path / "none.tsv")], "none.tsv"),
    ):
        status, _, errors = run(*flags)
        assert status > 0
        assert message in errors
        assert "Traceback" not in errors

    write_moses(tmp_path / "in", en=["a dog runs"])
    files = ["--input_files", str(tmp_path / "in.en"), "--output_dir", str(tmp_path / "out")]
    assert main(["translate", saved.path, *files, "--glossary", str(file)]) == 0
    assert json.loads((tmp_path / "out" / "part-00000.jsonl").read_text())["de"].count("Zwurbel") == 1
    # the terms decide the output
    file.write_text("dog\tHund\n")
    capsys.readouterr()
    assert main(["translate", saved.path, *files, "--glossary", str(file)]) == 1
    assert "different text or settings (options;" in capsys.readouterr().err


def test_a_runtime_without_attention_weights_is_an_error(translator, monkeypatch):
    monkeypatch.setattr(type(translator.model), "attention", lambda self, inputs, kind="cross": None)
    assert translator.translate(["a cat runs"], glossary={"dog": "Hund"})
    with pytest.raises(UserError, match="attention weights"):
        translator.translate(["a dog runs"], glossary={"dog": "Hund"})


@pytest.mark.slow
def test_terms_are_as_asked_and_the_rest_stays(trained_on_multi30k):
    model, tokenizer, _, sources, _ = trained_on_multi30k
    translator = Translator(model, tokenizer)
    glossary = Glossary({"man": "zwurbel", "dog": "rumpfel", "woman": "gnibel", "people": "snorfe", "boy": "zipfelo"})
    sentences = [source for source in sources[:600] if glossary.find(source)]
    plain = [translation.text for translation in translator.translate(sentences, num_beams=1)]
    asked = [translation.text for translation in translator.translate(sentences, num_beams=1, glossary=glossary)]
    kept = 0
    for sentence, before, after in zip(sentences, plain, asked, strict=True):
        terms = glossary.find(sentence)
        # also behind a hyphen
        assert {term.translation for term in terms} <= set(re.findall(r"\w+", after))
        # for each term one word gave way, and nothing else
        kept += (Counter(before.split()) - Counter(after.split())).total() <= len(terms)
    assert len(sentences) > 200
    assert kept > 0.8 * len(sentences)
