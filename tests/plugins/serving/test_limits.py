"""The limits of the server, and the figures that it reports about itself."""

import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event, current_thread
from types import SimpleNamespace

import pytest
from live_server import metric, text

from hf_vanilla_transformer.plugins.serving import batcher
from hf_vanilla_transformer.plugins.serving.batcher import Batcher
from hf_vanilla_transformer.plugins.serving.service import TranslationService


def test_a_large_body_is_refused_before_it_is_read(serve):
    answer = serve(max_characters=100)("POST", "/translate", text("a" * 1_000_000))
    assert answer.status == 413
    assert "larger than 11,200 bytes" in answer.body["error"]


@pytest.fixture
def slow(model, monkeypatch):
    """A gate that keeps the model from translating, and an event that is set when it is about to."""
    gate, began, generate = Event(), Event(), model.generate

    def wait(*args, **settings):
        began.set()
        assert gate.wait(120)
        return generate(*args, **settings)

    monkeypatch.setattr(model, "generate", wait)
    yield SimpleNamespace(gate=gate, began=began)
    gate.set()


def send_slowly(port, body, missing=0):
    """Send a request without the last bytes, and return the connection without waiting for an answer."""
    content = json.dumps(body).encode()
    client = socket.create_connection(("127.0.0.1", port), timeout=120)
    head = "POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    client.sendall(head.format(len(content)).encode() + content[: len(content) - missing])
    return client


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def test_a_full_queue_is_503_with_retry_after(serve, slow):
    send = serve(batcher=Batcher(max_delay=0, max_queue=2))
    with send_slowly(send.port, text("One.")) as first:
        assert slow.began.wait(120)
        with send_slowly(send.port, text("Two.\nThree.")) as second:
            wait_until(lambda: metric(send, "queue_sentences") == 2)
            refused = send("POST", "/translate", text("Four.\nFive."))
            slow.gate.set()
            assert b" 200 " in first.recv(100)
            assert b" 200 " in second.recv(100)
    assert refused.status == 503
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert "busy" in refused.body["error"]


@pytest.mark.slow
def test_a_request_that_takes_too_long_is_504_and_dropped(serve, slow):
    send = serve(timeout=3)
    late = send("POST", "/translate", text("One."))
    assert late[:2] == (504, {"error": "The request took longer than 3 s."})
    assert send("POST", "/translate", text("Two.\nThree.")).status == 504
    slow.gate.set()
    assert send("POST", "/translate", text("Four.")).status == 200
    assert metric(send, "sentences_total") == 2  # the first was under way; the second and third were not


def test_a_body_that_does_not_arrive_is_408(serve):
    with send_slowly(serve(timeout=2).port, text("One."), missing=3) as client:
        assert b" 408 " in client.recv(100)


def test_the_work_of_clients_that_have_gone_is_dropped(serve, slow):
    send = serve()
    with send_slowly(send.port, text("One.")) as first:
        assert slow.began.wait(120)
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


def test_a_large_body_of_unknown_type_is_413(serve):
    send = serve(max_characters=100)
    headers = {"Content-Type": "text/plain"}
    answer = send("POST", "/translate?q=a&source=en&target=de", "x" * 1_000_000, headers=headers)
    assert answer.status == 413


@pytest.mark.parametrize("texts", [["Hi."] * 10, "Hi. Bye.\nHi. Bye."])
def test_more_sentences_than_the_queue_holds_are_413(serve, texts):
    send = serve(batcher=Batcher(max_delay=0, max_queue=3))
    answer = send("POST", "/translate", text(texts))
    assert answer.status == 413
    assert answer.body["error"].endswith("sentences, more than 3.")
    assert send("POST", "/translate", text(["Hi."] * 3)).status == 200


def test_short_requests_are_answered_while_a_long_one_is_translated(serve):
    send = serve(batcher=Batcher(max_tokens=15, max_delay=0, max_queue=300))
    with ThreadPoolExecutor(1) as client:
        long = client.submit(send, "POST", "/translate", text("Who are you?\n" * 300))
        wait_until(lambda: metric(send, "queue_sentences") > 100)
        for _ in range(5):
            assert send("POST", "/translate", text("I am.")).status == 200
        assert not long.done()
        assert metric(send, "queue_sentences") > 0
        assert long.result(120).status == 200


@pytest.mark.parametrize("path", ["/translate", "/detect"])
def test_long_texts_take_turns_with_the_model_and_have_no_thread_beside_it(serve, path, monkeypatch):
    threads = {}
    for name in ("_job", "detect"):
        work = getattr(TranslationService, name)

        def record(self, *words, work=work):
            threads[max(len(word) for word in words if isinstance(word, str))] = current_thread().name
            return work(self, *words)

        monkeypatch.setattr(TranslationService, name, record)
    send = serve()
    for content in ("I am. " * 5, "I am. " * 200):
        assert send("POST", path, text(content)).status == 200
    assert threads.pop(1200) == "models"
    assert list(threads) == [30]
    assert threads[30] != "models"


def test_a_client_that_goes_while_it_sends_is_no_failure_of_the_server(serve, caplog):
    send = serve()
    send_slowly(send.port, text("One."), missing=3).close()
    wait_until(lambda: metric(send, 'requests_total{path="/translate",status="499"}') == 1)
    assert "failed" not in caplog.text


def test_the_server_says_when_its_model_does_not_answer(serve, slow):
    send = serve(timeout=3)
    assert send("GET", "/ready")[:2] == (200, {"status": "ok"})
    assert send("POST", "/translate", text("One.")).status == 504
    wait_until(lambda: send("GET", "/ready").status == 503)
    # it still may; a supervisor need not start another one yet
    assert send("GET", "/health").status == 200
    wait_until(lambda: send("GET", "/health").status == 503)
    answer = send("GET", "/health").body["error"]
    assert re.fullmatch(r"The server ends: the model has been at work on one batch for \d+ s\.", answer)
    slow.gate.set()
    wait_until(lambda: send("GET", "/ready").status == 200)
    assert send("GET", "/health").body == {"status": "ok"}


def test_a_model_that_fails_for_good_is_neither_ready_nor_well(serve, model, monkeypatch):
    monkeypatch.setattr(batcher, "_SECONDS_BETWEEN_CHECKS", 0.0)
    send = serve()
    assert send("POST", "/translate", text("One.")).status == 200

    def fail(*args, **settings):
        raise RuntimeError("device-side assert triggered")

    monkeypatch.setattr(model, "generate", fail)
    for _ in range(2):
        assert send("POST", "/translate", text("One."))[:2] == (500, {"error": "The server failed."})
    assert send("GET", "/ready").status == send("GET", "/health").status == 503
    assert send("HEAD", "/ready").status == 503
    assert metric(send, "model_failures_total") == 1


def test_translations_do_not_depend_on_what_goes_before_the_end_of_a_long_search(serve, alone, model, monkeypatch):
    monkeypatch.setattr(batcher, "_SLICE", 0.0)
    monkeypatch.setattr(batcher, "_SHORT", 10)
    monkeypatch.setattr(batcher, "_SMALL", 1)
    long = "Who are you and " * 5 + "who am I?"
    phrases = ["Who?", "I am.", "Where are you?"]
    expected = [alone(long), *map(alone, phrases)]
    generate = model.generate
    sizes = []

    def generate_and_count(*args, **settings):
        sizes.append(len(settings["input_ids"]))
        output = generate(*args, **settings)
        sizes.append(-len(settings["input_ids"]))
        return output

    began, gate = Event(), Event()
    monkeypatch.setattr(model, "generate", generate_and_count)
    send = serve()
    give_way = model.before_step

    def wait(*_):
        began.set()
        assert gate.wait(120)
        give_way()

    model.before_step = wait
    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(send, "POST", "/translate", text(long, alternatives=1))
        assert began.wait(120)
        second = clients.submit(send, "POST", "/translate", text(phrases))
        wait_until(lambda: metric(send, "queue_sentences") == 3)
        gate.set()
        answers = [first.result(30).body["translatedText"], *second.result(30).body["translatedText"]]
    assert answers == expected
    # the short ones began after it, which takes a second call for its scores, and ended before it
    assert sizes == [1, 1, 3, -3, -1, -1]
