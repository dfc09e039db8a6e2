"""The HTTP API, over real connections: translations, errors, limits, and what is logged."""

import contextlib
import json
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from types import SimpleNamespace

import pytest
from export_models import PHRASES
from live_server import live, request
from search_models import with_varied_lengths
from transformers import AutoTokenizer

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.data.tags import add_tags
from hf_vanilla_transformer.serving.batcher import Batcher
from hf_vanilla_transformer.serving.metrics import Metrics
from hf_vanilla_transformer.serving.server import Server
from hf_vanilla_transformer.serving.service import TranslationService, Translator

DECODING = {"num_beams": 3, "max_new_tokens": 20}


@pytest.fixture
def model(save_model):
    return with_varied_lengths(save_model(source_lang="en", target_lang="de")[0])


@pytest.fixture
def serve(model, phrase_tokenizer):
    """A function that serves models by their names, by default one; returns a function to send requests."""
    with contextlib.ExitStack() as stack:

        def start(models=None, cors_origins=(), batcher=None, tokenizer=phrase_tokenizer, **settings):
            batcher, metrics = batcher or Batcher(max_delay=0), Metrics()
            stack.callback(batcher.close)
            metrics.watch_queue(batcher.queue_length)
            models = models or {"model": model}
            translators = [Translator(name, each, tokenizer, DECODING, metrics) for name, each in models.items()]
            server = Server(TranslationService(translators, batcher), metrics, **settings)
            port = stack.enter_context(live(server.app(cors_origins)))
            send = partial(request, port)
            send.port = port
            return send

        yield start


@pytest.fixture
def alone(model, phrase_tokenizer):
    """A function that translates a sentence in a batch of its own."""
    return lambda sentence: translate(model, phrase_tokenizer, [sentence], **DECODING)[0]


def text(q, **others):
    return {"q": q, "source": "en", "target": "de", **others}


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


def test_alternatives_are_other_translations_of_the_n_best_list(serve, model, phrase_tokenizer):
    send = serve()
    found = model.generate(**phrase_tokenizer(PHRASES[0], return_tensors="pt"), **DECODING, num_return_sequences=3)
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
    assert send("GET", "/docs").status == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (text("a", source="\udfff"), "Invalid request: the body is not JSON in UTF-8"),
        ({"source": "en", "target": "de"}, "Invalid request: missing q parameter"),
        ({"q": 5, "source": "en", "target": "de"}, "Invalid request: q: Input should be a valid string"),
        (text("a", target="fr"), "en to fr is not supported. Supported directions: en to de."),
        (text("a", source="auto", target="fr"), "The target language fr is not supported. Supported languages: de."),
        (text("a", format="html"), "Invalid request: format: only text is supported"),
        (text("a", alternatives=-1), "Invalid request: alternatives: Input should be greater than or equal to 0"),
        (text("a" * 101), "Invalid request: the text has 101 characters, more than 100"),
        (text(["a" * 60, "b" * 60]), "Invalid request: the text has 120 characters, more than 100"),
        ([1], "Invalid request: the body is not a JSON object"),
        (b"{", "Invalid request: the body is not JSON in UTF-8"),
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


def test_unknown_addresses_and_methods_are_errors_in_the_same_form(serve):
    send = serve()
    assert send("GET", "/nowhere")[:2] == (404, {"error": "Not Found"})
    assert send("GET", "/translate")[:2] == (405, {"error": "Method Not Allowed"})


def test_a_large_body_is_refused_before_it_is_read(serve):
    answer = serve(max_characters=100)("POST", "/translate", text("a" * 1_000_000))
    assert answer.status == 413
    assert "larger than 11,200 bytes" in answer.body["error"]


def test_keys_are_required_and_nothing_that_clients_write_is_logged(serve, caplog):
    caplog.set_level(logging.DEBUG)
    send = serve(api_keys=["topsecret", "other"])
    assert send("POST", "/translate", text("private", api_key="guess"))[:2] == (403, {"error": "Invalid API key"})
    assert send("POST", "/detect", {"q": "private"}).status == 403
    assert send("GET", "/languages").status == 200
    for answer in (
        send("POST", "/translate", text("private", api_key="topsecret")),
        send("POST", "/translate?api_key=other", text("private"), form=True),
        send("POST", "/detect", {"q": "private", "api_key": "other"}),
    ):
        assert answer.status == 200
    send("GET", "/private?q=private")
    assert "/translate: 200 in" in caplog.text
    for secret in ("topsecret", "other", "guess", "private"):
        assert secret not in caplog.text


def test_a_failure_is_reported_without_the_text(serve, model, monkeypatch, caplog):
    secret = "private"

    def fail(*args, **settings):
        raise RuntimeError(f"cannot translate {secret}")

    send = serve()
    monkeypatch.setattr(model, "generate", fail)
    assert send("POST", "/translate", text(secret))[:2] == (500, {"error": "The server failed."})
    assert "A request failed: RuntimeError" in caplog.text
    assert secret not in caplog.text


def test_a_sentence_beyond_the_limit_is_left_as_it_is_and_reported(serve, alone):
    long = "word " * 70
    answer = serve()("POST", "/translate", text(f"Who? {long}. I am.")).body
    assert answer["translatedText"] == f"{alone('Who?')} {long}. {alone('I am.')}"
    (warning,) = answer["warnings"]
    assert warning.startswith("Sentence 2 has ")
    assert warning.endswith("tokens, more than 64: it is not translated.")


@pytest.fixture
def slow(model, monkeypatch):
    """A gate that keeps the model from translating, and an event that is set when it is about to."""
    gate, began, generate = Event(), Event(), model.generate

    def wait(*args, **settings):
        began.set()
        assert gate.wait(30)
        return generate(*args, **settings)

    monkeypatch.setattr(model, "generate", wait)
    yield SimpleNamespace(gate=gate, began=began)
    gate.set()


def send_slowly(port, body, missing=0):
    """Send a request without the last bytes, and return the connection without waiting for an answer."""
    content = json.dumps(body).encode()
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    head = "POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    client.sendall(head.format(len(content)).encode() + content[: len(content) - missing])
    return client


def metric(send, name):
    """Return a figure of the server, 0 if it has none yet."""
    lines = send("GET", "/metrics").body.splitlines()
    found = [line.rpartition(" ") for line in lines if line.startswith(f"vanilla_transformer_{name}")]
    return float(found[0][2]) if found else 0


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def test_a_full_queue_is_503_with_retry_after(serve, slow):
    send = serve(batcher=Batcher(max_delay=0, max_queue=2))
    with send_slowly(send.port, text("One.")) as first:
        assert slow.began.wait(20)
        with send_slowly(send.port, text("Two.\nThree.")) as second:
            wait_until(lambda: metric(send, "queue_sentences") == 2)
            refused = send("POST", "/translate", text("Four."))
            slow.gate.set()
            assert b" 200 " in first.recv(100)
            assert b" 200 " in second.recv(100)
    assert refused.status == 503
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert "busy" in refused.body["error"]


def test_a_request_that_takes_too_long_is_504_and_dropped(serve, slow):
    send = serve(timeout=5)
    late = send("POST", "/translate", text("One."))
    assert late[:2] == (504, {"error": "The request took longer than 5 s."})
    assert send("POST", "/translate", text("Two.\nThree.")).status == 504
    slow.gate.set()
    assert send("POST", "/translate", text("Four.")).status == 200
    assert metric(send, "sentences_total") == 2  # the first was under way; the second and third were not


def test_a_body_that_does_not_arrive_is_408(serve):
    with send_slowly(serve(timeout=0.3).port, text("One."), missing=3) as client:
        assert b" 408 " in client.recv(100)


def test_the_work_of_clients_that_have_gone_is_dropped(serve, slow):
    send = serve()
    with send_slowly(send.port, text("One.")) as first:
        assert slow.began.wait(20)
        with send_slowly(send.port, text("Two.\nThree.")):
            wait_until(lambda: metric(send, "queue_sentences") == 2)
        wait_until(lambda: metric(send, 'requests_total{path="/translate",status="499"}') == 1)
        slow.gate.set()
        assert b" 200 " in first.recv(100)
    assert send("POST", "/translate", text("Four.")).status == 200
    assert metric(send, "sentences_total") == 2


def test_figures_for_prometheus(serve, phrase_tokenizer):
    send = serve()
    send("POST", "/translate", text(["Who?", "I am."], api_key="x"))
    send("POST", "/translate", text("Who?", target="fr"))
    assert metric(send, 'requests_total{path="/translate",status="200"}') == 1
    assert metric(send, 'requests_total{path="/translate",status="400"}') == 1
    assert metric(send, 'request_seconds_count{path="/translate"}') == 2
    assert metric(send, "sentences_total") == metric(send, "batch_sentences_sum") == 2
    source = sum(map(len, phrase_tokenizer(["Who?", "I am."])["input_ids"]))
    assert metric(send, 'tokens_total{side="source"}') == source
    assert metric(send, 'tokens_total{side="target"}') >= 2


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


def test_a_model_of_several_directions(serve, save_model, phrase_tokenizer, tmp_path):
    pairs = ["en-de", "en-fr"]
    several, folder = save_model(
        vocab_size=len(phrase_tokenizer) + 2, language_pairs=pairs, source_lang="en", target_lang=None
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    add_tags(tokenizer, ["<2de>", "<2fr>"])
    send = serve({"several": several}, tokenizer=tokenizer)
    for language in ("de", "fr"):
        expected = translate(several, tokenizer, [PHRASES[0]], target_lang=language, **DECODING)[0]
        answer = send("POST", "/translate", text(PHRASES[0], target=language))
        assert answer.body == {"translatedText": " ".join(expected.splitlines())}


def test_codes_with_a_region_or_a_script(serve, save_model):
    other, _ = save_model(source_lang="zh-Hans", target_lang="pt-BR")
    send = serve({"other": other})
    assert [item["name"] for item in send("GET", "/languages").body] == ["Simplified Chinese", "Brazilian Portuguese"]
    assert send("POST", "/translate", text("a", source="zh-Hans", target="pt-BR")).status == 200


def test_a_large_body_of_unknown_type_is_413(serve):
    send = serve(max_characters=100)
    headers = {"Content-Type": "text/plain"}
    answer = send("POST", "/translate?q=a&source=en&target=de", "x" * 1_000_000, headers=headers)
    assert answer.status == 413


def test_a_list_longer_than_the_queue_is_accepted_when_nothing_waits(serve):
    answer = serve(batcher=Batcher(max_delay=0, max_queue=3))("POST", "/translate", text(["Hi."] * 10))
    assert answer.status == 200
    assert len(answer.body["translatedText"]) == 10


def test_a_client_that_goes_while_it_sends_is_no_failure_of_the_server(serve, caplog):
    send = serve()
    send_slowly(send.port, text("One."), missing=3).close()
    wait_until(lambda: metric(send, 'requests_total{path="/translate",status="499"}') == 1)
    assert "failed" not in caplog.text
