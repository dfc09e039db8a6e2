"""The HTTP API, over real connections: translations, errors, limits, and what is logged."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from export_models import PHRASES
from live_server import metric, text
from transformers import AutoTokenizer

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.data.tokenizer import add_tags
from hf_vanilla_transformer.plugins.serving.server import ENDINGS


def test_a_text_and_a_list_are_translated_from_json_and_forms(serve, alone):
    send = serve()
    assert send("POST", "/translate", text(PHRASES[0])).body == {"translatedText": alone(PHRASES[0])}
    assert send("POST", "/translate", text(PHRASES[1]), form=True).body == {"translatedText": alone(PHRASES[1])}
    assert send("POST", "/translate", text([])).body == {"translatedText": []}
    answer = send("POST", "/translate", text(PHRASES[:3]))
    assert answer.body == {"translatedText": [alone(phrase) for phrase in PHRASES[:3]]}
    part = 'Content-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    multipart = "--x\r\n" + "--x\r\n".join(part.format(*item) for item in text(PHRASES[2]).items()) + "--x--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    assert send("POST", "/translate", multipart, headers=headers).body == {"translatedText": alone(PHRASES[2])}


def test_sentences_are_put_back_between_the_white_space_of_the_text(serve, alone):
    answer = serve()("POST", "/translate", text("\n Who?\tI am. \r\n\r\n  Good"))
    assert answer.body["translatedText"] == f"\n {alone('Who?')}\t{alone('I am.')} \r\n\r\n  {alone('Good')}"
    assert serve()("POST", "/translate", text(" \n")).body == {"translatedText": " \n"}


def test_answers_do_not_depend_on_what_else_is_translated(serve, alone):
    send, phrases = serve(), PHRASES * 4
    with ThreadPoolExecutor(32) as clients:
        answers = list(clients.map(lambda phrase: send("POST", "/translate", text(phrase)).body, phrases))
    assert [answer["translatedText"] for answer in answers] == [*map(alone, PHRASES)] * 4
    assert metric(send, "batch_sentences_count") < len(phrases) / 2  # they were translated together


def test_alternatives_are_other_translations_of_the_n_best_list(serve, model, phrase_tokenizer, decoding):
    send = serve()
    found = model.generate(**phrase_tokenizer(PHRASES[0], return_tensors="pt"), **decoding, num_return_sequences=3)
    expected = phrase_tokenizer.batch_decode(found, skip_special_tokens=True)
    answer = send("POST", "/translate", text(PHRASES[0], alternatives=2)).body
    assert [answer["translatedText"], *answer["alternatives"]] == expected
    answer = send("POST", "/translate", text([PHRASES[0], ""], alternatives=50)).body
    assert answer["alternatives"] == [expected[1:], []]


def test_languages_health_and_detection(serve, model, save_model):
    other, _ = save_model(source_lang="de", target_lang="en")
    send = serve({"model": model, "other": other})
    assert send("GET", "/health").body == {"status": "ok"}
    assert send("GET", "/languages").body == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": ["en"]},
    ]
    assert send("POST", "/detect", {"q": "Where do your friends live?"}).body[0]["language"] == "en"
    german = "Das ist ein Satz in deutscher Sprache."
    (best, second) = send("POST", "/detect", {"q": german}).body
    assert (best["language"], second["language"]) == ("de", "en")
    assert best["confidence"] > 90
    assert best["confidence"] + second["confidence"] == pytest.approx(100, abs=0.2)
    answer = send("POST", "/translate", {"q": german, "source": "auto", "target": "en"}).body
    assert answer["detectedLanguage"] == best
    assert (
        answer["translatedText"]
        == send("POST", "/translate", text(german, source="de", target="en")).body["translatedText"]
    )
    assert "/translate" in send("GET", "/openapi.json").body["paths"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (text("a", source="\udfff"), "Invalid request: the body is not JSON in UTF-8"),
        ({"source": "en", "target": "de"}, "Invalid request: missing q parameter"),
        (text("a", source=""), "Invalid request: missing source parameter"),
        (text("a", target=""), "Invalid request: missing target parameter"),
        ({"q": 5, "source": "en", "target": "de"}, "Invalid request: q: Input should be a valid string"),
        (text("a", target="fr"), "en to fr is not supported. Supported directions: en to de."),
        (text("a", source="auto", target="fr"), "The target language fr is not supported. Supported languages: de."),
        (text("a", format="xml"), "Invalid request: format: expected text or html"),
        (text("a", alternatives=-1), "Invalid request: alternatives: Input should be greater than or equal to 0"),
        (text("a" * 101), "Invalid request: the text has 101 characters, more than 100"),
        (text(["a" * 60, "b" * 60]), "Invalid request: the text has 120 characters, more than 100"),
        ([1], "Invalid request: the body is not a JSON object"),
        (b"{", "Invalid request: the body is not JSON in UTF-8"),
        (b"\xef\xbb\xbf\xff", "Invalid request: the body is not JSON in UTF-8"),
        (text("\ud800"), "Invalid request: the body is not JSON in UTF-8"),
        (b"[" * 10_000, "Invalid request: the body is not JSON in UTF-8"),
    ],
)
def test_invalid_requests_are_explained(serve, body, message):
    answer = serve(max_characters=100)(
        "POST", "/translate", body, headers={"Content-Type": "application/json; charset=utf-8"}
    )
    assert answer.status == 400
    assert answer.body == {"error": message}


@pytest.mark.parametrize("page", [True, False])
def test_unknown_addresses_and_methods_are_errors_in_the_same_form(serve, page):
    send = serve(page=page)
    assert send("GET", "/nowhere")[:2] == (404, {"error": "Not Found"})
    assert send("GET", "/translate")[:2] == (405, {"error": "Method Not Allowed"})
    assert send("POST", "/languages")[:2] == (405, {"error": "Method Not Allowed"})
    assert send("HEAD", "/health").status == 200


def test_what_flask_answers_by_itself_is_answered_too(serve, alone):
    """LibreTranslate is written with Flask."""
    send = serve(root_path="/mt")
    for path in ("//translate", "///translate"):
        moved = send("POST", f"{path}?q=a", text(PHRASES[0]))
        assert moved.status == 308
        assert moved.headers["location"] == "/mt/translate?q=a"
    assert send("POST", "//nowhere", text(PHRASES[0])).status == 404
    assert send("GET", "//evil.org/languages").status == 404
    for path in ("/languages", "/frontend/settings", "/health", "/", "/openapi.json", "/metrics"):
        answer = send("HEAD", path)
        assert (answer.status, answer.body) == (200, "")
        assert int(answer.headers["content-length"]) > 0
        answer = send("OPTIONS", path)
        assert (answer.status, answer.body, answer.headers["allow"]) == (200, "", "GET, HEAD, OPTIONS")
    for path in ("/translate", "/detect", "/translate_file", "/suggest"):
        for method, status in (("OPTIONS", 200), ("HEAD", 405), ("GET", 405), ("PUT", 405)):
            answer = send(method, path)
            assert (answer.status, answer.headers["allow"]) == (status, "OPTIONS, POST")
    assert send("OPTIONS", "/nowhere").status == 404


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_json_in_every_encoding_of_python_is_read(serve, alone, encoding):
    body = json.dumps(text(PHRASES[0])).encode(encoding)
    answer = serve()("POST", "/translate", body, headers={"Content-Type": "application/json"})
    assert answer.body == {"translatedText": alone(PHRASES[0])}


def test_empty_parameters_are_missing_ones_and_an_empty_text_is_a_text(serve):
    send = serve()
    empty = {"format": "", "alternatives": "", "api_key": ""}
    assert send("POST", "/translate", text("", **empty)).body == {"translatedText": ""}
    assert send("POST", "/translate", text("", **empty), form=True).body == {"translatedText": ""}


@pytest.mark.parametrize("kind", ["application/ld+json", "APPLICATION/Problem+JSON; charset=utf-8"])
def test_json_types_with_a_suffix_are_json(serve, alone, kind):
    answer = serve()("POST", "/translate", json.dumps(text(PHRASES[0])), headers={"Content-Type": kind})
    assert answer.body == {"translatedText": alone(PHRASES[0])}


@pytest.mark.parametrize("kind", ["application/jsonp", "application/json-seq", "text/plain"])
def test_other_types_are_not_json(serve, kind):
    answer = serve()("POST", "/translate", json.dumps(text(PHRASES[0])), headers={"Content-Type": kind})
    assert answer[:2] == (400, {"error": "Invalid request: missing q parameter"})


def test_parameters_that_are_not_utf8_are_refused_everywhere(serve):
    send = serve()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    multipart = {"Content-Type": "multipart/form-data; boundary=x"}
    part = b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\nM\xfcller\r\n--x--\r\n'
    for answer, where in (
        (send("POST", "/translate", b"q=M%FCller&source=en&target=de", headers=form), "form"),
        (send("POST", "/translate", b"q=M\xfcller&source=en&target=de", headers=form), "form"),
        (send("POST", "/translate?source=en&target=de", part, headers=multipart), "form"),
        (send("POST", "/translate?q=M%FCller&source=en&target=de"), "address"),
        (send("POST", "/detect?q=%ff"), "address"),
    ):
        assert answer[:2] == (400, {"error": f"Invalid request: the {where} is not UTF-8"})


@pytest.mark.parametrize("charset", ["utf-7", "unicode_escape", "latin-1", "bogus", '"undefined"'])
def test_a_form_in_another_encoding_is_refused(serve, charset):
    part = '--x\r\nContent-Disposition: form-data; name="q"\r\n\r\nMüller\r\n--x--\r\n'.encode()
    headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
    answer = serve()("POST", "/translate?source=en&target=de", part, headers=headers)
    assert answer[:2] == (400, {"error": "Invalid request: the form is not UTF-8"})
    headers = {"Content-Type": "multipart/form-data; boundary=x; charset=UTF-8"}
    assert serve()("POST", "/translate?source=en&target=de", part, headers=headers).status == 200


def test_the_fields_of_a_form_are_read_once(serve, monkeypatch):
    monkeypatch.setattr("starlette.datastructures.FormData.getlist", lambda *_: 1 / 0)
    fields = {f"field{i}": "x" for i in range(100)}
    assert serve()("POST", "/translate", text("Hi.", **fields), form=True).status == 200


def test_an_address_with_a_slash_at_its_end_is_unknown_and_not_redirected(serve):
    answer = serve()("POST", "/translate/", text("Hi."))
    assert answer[:2] == (404, {"error": "Not Found"})
    assert "location" not in answer.headers


def test_the_documentation_names_the_path_below_which_a_proxy_shows_the_server(serve):
    send = serve(root_path="/mt")
    assert send("POST", "/translate", text("Hi.")).status == 200
    assert send("GET", "/openapi.json").body["servers"] == [{"url": "/mt"}]
    assert metric(send, 'requests_total{path="/translate",status="200"}') == 1


def test_frontend_settings_are_those_of_libretranslate(serve, model, save_model):
    expected = {
        "apiKeys": False,
        "charLimit": 10_000,
        "filesTranslation": True,
        "frontendTimeout": 500,
        "keyRequired": False,
        "language": {"source": {"code": "en", "name": "English"}, "target": {"code": "de", "name": "German"}},
        "suggestions": False,
        "supportedFilesFormat": list(ENDINGS),
    }
    assert serve()("GET", "/frontend/settings").body == expected
    other, _ = save_model(source_lang="de", target_lang="en")
    send = serve({"model": model, "other": other}, api_keys=["topsecret"], max_characters=500)
    found = send("GET", "/frontend/settings").body
    assert found["language"] == expected["language"] | {"source": {"code": "auto", "name": "Auto Detect"}}
    assert (found["apiKeys"], found["keyRequired"], found["charLimit"]) == (True, True, 500)


def test_keys_are_required_and_nothing_that_clients_write_is_logged(serve, caplog):
    caplog.set_level(logging.DEBUG)
    send = serve(api_keys=["topsecret", "confidential"])
    assert send("POST", "/translate", text("private", api_key="guess"))[:2] == (403, {"error": "Invalid API key"})
    assert send("POST", "/translate", text("private", api_key=None)).status == 403
    assert send("POST", "/detect", {"q": "private"}).status == 403
    assert send("GET", "/languages").status == 200
    for answer in (
        send("POST", "/translate", text("private", api_key="topsecret")),
        send("POST", "/translate?api_key=confidential", text("private"), form=True),
        send("POST", "/detect", {"q": "private", "api_key": "confidential"}),
    ):
        assert answer.status == 200
    send("GET", "/private?q=private")
    assert "/translate: 200 in" in caplog.text
    for secret in ("topsecret", "confidential", "guess", "private"):
        assert secret not in caplog.text


class PanicError(BaseException):
    """As a library that is not written in Python raises it."""


@pytest.mark.parametrize("kind", [RuntimeError, PanicError])
def test_a_failure_is_reported_without_the_text(serve, model, monkeypatch, caplog, kind):
    secret = "private"

    def fail(*args, **settings):
        raise kind(f"cannot translate {secret}")

    send = serve()
    with monkeypatch.context() as patch:
        patch.setattr(model, "generate", fail)
        assert send("POST", "/translate", text(secret))[:2] == (500, {"error": "The server failed."})
    assert f"A request failed: {kind.__name__}" in caplog.text
    assert secret not in caplog.text
    assert send("POST", "/translate", text(secret)).status == 200


def test_a_form_may_be_as_large_as_the_limit_allows(serve):
    send = serve(max_characters=400_000)
    assert send("POST", "/translate", text(" " * 100_000 + "\u00a0" * 200_000), form=True).status == 200
    assert send("POST", "/translate", text([" "] * 1200), form=True).status == 200


def test_a_sentence_beyond_the_limit_is_left_as_it_is_and_reported(serve, alone):
    long = "word " * 70
    answer = serve()("POST", "/translate", text(f"Who? {long}. I am.")).body
    assert answer["translatedText"] == f"{alone('Who?')} {long}. {alone('I am.')}"
    (warning,) = answer["warnings"]
    assert warning.startswith("Sentence 2 has ")
    assert warning.endswith("tokens, more than 64: it is not translated.")


def test_doubtful_translations_are_named_beside_the_answer(serve, model, alone):
    model.config.doubtful_score = 0.0
    send = serve()
    text = "A dog runs. Two men sit."
    answer = send("POST", "/translate", {"q": [text, ""], "source": "en", "target": "de"}).body
    assert answer["doubtful"] == [[alone("A dog runs."), alone("Two men sit.")], []]
    page = send(
        "POST", "/translate", {"q": "<p>A <b>dog</b> runs.</p>", "source": "en", "target": "de", "format": "html"}
    )
    assert page.body["doubtful"] == [alone("A dog runs.")]
    model.config.doubtful_score = -1e9
    assert set(send("POST", "/translate", {"q": text, "source": "en", "target": "de"}).body) == {"translatedText"}


def test_pages_of_other_sites_may_use_the_server_only_if_told(serve):
    headers = {"Origin": "https://example.org"}
    assert "access-control-allow-origin" not in serve()("GET", "/languages", headers=headers).headers
    send = serve(cors_origins=["https://example.org"])
    assert send("GET", "/languages", headers=headers).headers["access-control-allow-origin"] == "https://example.org"
    other = send("GET", "/languages", headers={"Origin": "https://elsewhere.org"})
    assert "access-control-allow-origin" not in other.headers


def test_two_models_of_one_direction_and_models_without_languages_are_errors(serve, model, save_model):
    with pytest.raises(ValueError, match="a and b both translate from en to de"):
        serve({"a": model, "b": model})
    nameless, _ = save_model(source_lang=None, target_lang="de")
    with pytest.raises(ValueError, match="nameless does not say which languages it translates"):
        serve({"nameless": nameless})


def test_text_in_the_target_language_is_detected_and_returned_as_it_is(serve):
    send, german = serve(), "Das ist ein deutscher Satz, ohne Zweifel."
    found = send("POST", "/detect", {"q": german}).body
    assert [item["language"] for item in found] == ["de", "en"]
    answer = send("POST", "/translate", text(german, source="auto")).body
    assert answer == {"translatedText": german, "detectedLanguage": found[0]}
    assert send("POST", "/translate", text(german, source="de")).body == {"translatedText": german}


def test_languages_with_a_region_are_detected(serve, save_model):
    several, _ = save_model(source_lang="pt-BR", target_lang="en")
    found = serve({"several": several})("POST", "/detect", {"q": "Onde moram os seus amigos? Isso fica longe."}).body
    assert found[0]["language"] == "pt-BR"
    assert found[0]["confidence"] > 90


def test_a_model_of_several_directions(serve, save_model, phrase_tokenizer, tmp_path, decoding):
    pairs = ["en-de", "en-fr"]
    several, folder = save_model(
        vocab_size=len(phrase_tokenizer) + 2, language_pairs=pairs, source_lang="en", target_lang=None
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    add_tags(tokenizer, ["<2de>", "<2fr>"])
    send = serve({"several": several}, tokenizer=tokenizer)
    for language in ("de", "fr"):
        expected = translate(several, tokenizer, [PHRASES[0]], target_lang=language, **decoding)[0]
        answer = send("POST", "/translate", text(PHRASES[0], target=language))
        assert answer.body == {"translatedText": " ".join(expected.splitlines())}


def test_codes_with_a_region_or_a_script(serve, save_model):
    other, _ = save_model(source_lang="zh-Hans", target_lang="pt-BR")
    send = serve({"other": other})
    assert [item["name"] for item in send("GET", "/languages").body] == ["Simplified Chinese", "Brazilian Portuguese"]
    assert send("POST", "/translate", text("a", source="zh-Hans", target="pt-BR")).status == 200


def test_a_single_source_language_needs_no_detection(serve, save_model):
    unknown, _ = save_model(source_lang="xx", target_lang="yy")
    answer = serve({"unknown": unknown})("POST", "/translate", text("a", source="auto", target="yy"))
    assert answer.body["detectedLanguage"] == {"confidence": 0.0, "language": "xx"}
