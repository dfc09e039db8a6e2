"""`vanilla-transformer serve` in its own process, as clients, browsers and process managers meet it."""

import json
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from export_models import PHRASES
from forked_python import forked_python
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import metric, request
from server_process import in_one_line, serving

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.cli import main


def test_libretranslates_python_client(server, model):
    from libretranslatepy import LibreTranslateAPI

    client = LibreTranslateAPI(f"http://127.0.0.1:{server.port}")
    for phrase in PHRASES[:5]:
        assert client.translate(phrase, "en", "de") == in_one_line(model, phrase)
    assert [language["code"] for language in client.languages()] == ["en", "de"]
    assert [item["language"] for item in client.detect("Where do your friends live?")] == ["en", "de"]
    assert [item["language"] for item in client.detect("Wo wohnen eure Freunde?")] == ["de", "en"]


def test_a_key_is_needed_if_there_is_a_file_of_keys(model, tmp_path):
    from urllib.error import HTTPError

    from libretranslatepy import LibreTranslateAPI

    keys = tmp_path / "keys"
    keys.write_text("topsecret\n")
    with serving(model[2], tmp_path / "log", "--api_key_file", str(keys)) as process:
        address = f"http://127.0.0.1:{process.port}"
        client = LibreTranslateAPI(address, "topsecret")
        assert client.translate(PHRASES[0], "en", "de") == in_one_line(model, PHRASES[0])
        with pytest.raises(HTTPError, match="403"):
            LibreTranslateAPI(address, "guess").translate(PHRASES[0], "en", "de")
        log = process.log.read_text()
    assert "topsecret" not in log
    assert "guess" not in log


def test_sigterm_lets_accepted_requests_finish(model, tmp_path):
    """Clients send requests without pause, and a long one is under way, when SIGTERM comes."""
    expected = [in_one_line(model, phrase) for phrase in PHRASES]
    answered = [0]

    with serving(model[2], tmp_path / "log", "--no_page", "--max_tokens", "100") as process:

        def send_until_refused(first: int) -> None:
            i = first
            while True:
                i = (i + 1) % len(PHRASES)
                try:
                    answer = request(process.port, "POST", "/translate", body(PHRASES[i]))
                except ConnectionError:
                    return  # not accepted: the log, read below, has a line for each that was
                assert answer.body == {"translatedText": expected[i]}
                answered[0] += 1

        def body(text: str) -> dict[str, str]:
            return {"q": text, "source": "en", "target": "de"}

        with ThreadPoolExecutor(9) as clients:
            others = [clients.submit(send_until_refused, 3 * i) for i in range(8)]
            while answered[0] < 20:
                time.sleep(0.1)
            long = clients.submit(request, process.port, "POST", "/translate", body("\n".join(PHRASES * 3)))
            while metric(partial(request, process.port), "queue_sentences") <= len(others):
                assert not long.done()
                time.sleep(0.01)
            process.popen.send_signal(signal.SIGTERM)
            assert not long.done()
            assert long.result(300).body == {"translatedText": "\n".join(expected * 3)}
            for client in others:
                client.result(300)
        assert process.popen.wait(300) == 0
        log = process.log.read_text()
    assert log.count("/translate: 200") == log.count("/translate: ") == answered[0] + 1


SURROGATES = st.characters(categories=["Cs"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.text(SURROGATES, max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
LANGUAGES = st.sampled_from(["en", "de", "auto", "fr", ""]) | JSON
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "q": st.text(max_size=300)
        | st.text(SURROGATES, max_size=3)
        | st.lists(st.text(max_size=30), max_size=5)
        | JSON,
        "source": LANGUAGES,
        "target": LANGUAGES,
        "format": st.sampled_from(["text", "html"]) | JSON,
        "alternatives": st.integers(-5, 200) | JSON,
        "api_key": JSON,
    },
)
VALID = st.builds(
    lambda q, source, alternatives: {"q": q, "source": source, "target": "de", "alternatives": alternatives},
    st.text(max_size=300) | st.lists(st.text(max_size=50), max_size=5),
    st.sampled_from(["en", "auto"]),
    st.integers(0, 5),
)
BODIES = st.one_of(VALID, REQUEST, REQUEST, JSON).map(lambda value: json.dumps(value).encode()) | st.binary(
    max_size=300
)
KINDS = st.sampled_from(
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "multipart/form-data",
        "text/plain",
        "",
    ]
)
PATHS = st.sampled_from(
    [*["/translate"] * 3, "/", "/detect", "/languages", "/frontend/settings", "/health", "/metrics"]
)


def test_no_request_makes_the_server_fail(server):
    """2,000 requests, most of them wrong: never a 500, a traceback or a hang."""

    @settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.sampled_from(["POST", "POST", "POST", "GET", "PUT"]), PATHS, BODIES, KINDS)
    def send(method, path, body, kind):
        answer = request(server.port, method, path, body, headers={"Content-Type": kind})
        assert answer.status < 500
        if answer.status >= 400:
            assert set(answer.body) == {"error"}

    send()
    assert request(server.port, "GET", "/health").status == 200
    assert not {"Traceback", "failed:"} & set(server.log.read_text().split())


@pytest.mark.parametrize("backend", ["ctranslate2", "onnx"])
def test_exports_are_served(model, backend, tmp_path):
    folder = tmp_path / "export"
    assert main(["export", str(model[2]), str(folder), "--format", backend]) == 0
    with serving(folder, tmp_path / "log", "--backend", backend, "--num_beams", "1") as process:
        body = {"q": PHRASES[:5], "source": "en", "target": "de", "alternatives": 1}
        answer = request(process.port, "POST", "/translate", body)
        assert "<title>Translate</title>" in request(process.port, "GET", "/").body
    expected = [" ".join(text.splitlines()) for text in translate(*model[:2], PHRASES[:5], num_beams=1)]
    assert answer.body == {"translatedText": expected, "alternatives": [[]] * 5}


WITHOUT_GRADIO = """
import sys
sys.modules.update(gradio=None, matplotlib=None)  # as if they were not installed
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.plugins.serving import process
process.serve_until_stopped = lambda app, *_: print(*(route.path for route in app.routes))
sys.exit(main(sys.argv[1:]))
"""


def test_the_server_and_its_page_need_neither_gradio_nor_matplotlib(model):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", WITHOUT_GRADIO, "serve", str(model[2]), "--port", str(port)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"/", "/translate"} <= set(done.stdout.split())


def test_an_address_in_use_and_an_empty_file_of_keys_are_one_line(server, model, tmp_path):
    command = [forked_python(), "-m", "hf_vanilla_transformer", "serve", str(model[2])]
    taken = subprocess.run([*command, "--port", str(server.port)], capture_output=True, text=True)
    assert taken.returncode == 1
    assert f"Cannot listen on 127.0.0.1, port {server.port}: " in taken.stderr.splitlines()[-1]
    (tmp_path / "keys").touch()
    empty = subprocess.run([*command, "--api_key_file", str(tmp_path / "keys")], capture_output=True, text=True)
    assert empty.returncode == 1
    assert empty.stderr.splitlines()[-1].endswith("is empty: write one API key per line into it.")
