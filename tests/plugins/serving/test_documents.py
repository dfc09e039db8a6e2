"""The server translates documents: HTML, placeholders, and what is no sentence."""

import re

import pytest
from live_server import text

from hf_vanilla_transformer.inference.glossary import Glossary

PAGE = '<p>A <b class="x">big dog</b> runs &amp; sits.<br/>12:30 <img alt="a cat" src=x></p><!-- c --><pre>a dog</pre>'


@pytest.mark.parametrize("alternatives", [0, 2])
def test_html_keeps_its_tags_and_its_sentences_are_translated(serve, alone, alternatives):
    answer = serve()("POST", "/translate", text(PAGE, format="html", alternatives=alternatives)).body
    for page in [answer["translatedText"], *answer.get("alternatives", [])]:
        assert sorted(re.findall("<[^i][^>]*>", page)) == sorted(re.findall("<[^i][^>]*>", PAGE))
        assert "12:30 <img" in page
        assert page.endswith('" src=x></p><!-- c --><pre>a dog</pre>')
    words = re.sub("<(?!img).*?>", "", answer["translatedText"]).split("12:30")[0]
    assert words == alone("A big dog runs & sits.").replace("&", "&amp;").replace("<", "&lt;")
    assert f'alt="{alone("a cat")}"' in answer["translatedText"]


def test_terms_of_the_glossary_are_in_every_text_and_alternative(serve, save_model, model):
    other, _ = save_model(source_lang="de", target_lang="en")
    send = serve({"model": model, "other": other}, glossaries={("en", "de"): Glossary({"dog": "Zwurbel 3000"})})
    plain = send("POST", "/translate", text(["A cat runs.", "See `dog`."], alternatives=2)).body
    assert "Zwurbel" not in str(plain)
    answer = send("POST", "/translate", text("A dog runs. The dogs sit. See `dog` or Dog!", alternatives=2)).body
    assert [each.count("Zwurbel 3000") for each in [answer["translatedText"], *answer["alternatives"]]] == [2, 2, 2]
    page = send("POST", "/translate", text("<p>A <b>big dog</b> runs</p>", format="html")).body["translatedText"]
    assert re.sub("<[^>]*>", "", page).count("Zwurbel 3000") == 1
    backwards = send("POST", "/translate", {"q": "the dog", "source": "de", "target": "en"}).body
    assert "Zwurbel" not in str(backwards)


def test_what_is_no_sentence_is_not_translated_and_placeholders_appear_once(serve):
    send = serve()
    for same in ("12345", "---", "00:01:02,500 --> 00:01:04,000", "\U0001f436", "{{name}} %s", "https://x.org/a"):
        assert send("POST", "/translate", text(same)).body == {"translatedText": same}
    translation = send("POST", "/translate", text("- See `ls` in {0} now")).body["translatedText"]
    assert translation.startswith("- ")
    assert translation.count("`ls`") == translation.count("{0}") == 1


@pytest.mark.parametrize("format", ["text", "html"])
def test_placeholders_of_whoever_serves_are_kept(serve, format):
    send = serve(placeholders=r"ACME-\d+")
    translation = send("POST", "/translate", text("A dog ACME-12 runs", format=format)).body["translatedText"]
    assert translation.count("ACME-12") == 1
    assert "ACME" not in serve()("POST", "/translate", text("A dog ACME-12 runs")).body["translatedText"]
