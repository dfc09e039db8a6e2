"""`vanilla-transformer serve` in its own process, as clients, browsers and process managers meet it."""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from export_models import PHRASES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import request

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
    translate,
)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Process(NamedTuple):
    """A server's process, its port, and the file with its messages."""

    popen: subprocess.Popen
    port: int
    log: Path


@contextlib.contextmanager
def serving(folders: Path | list[Path], log: Path, *flags: str) -> Iterator[Process]:
    """Run `vanilla-transformer serve` on a free port."""
    models = [str(folder) for folder in (folders if isinstance(folders, list) else [folders])]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hf_vanilla_transformer", "serve", *models, "--port", str(port), *flags]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            deadline = time.monotonic() + 120
            while not _answers(port):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.2)
            yield Process(process, port, log)
        finally:
            process.kill()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        return request(port, "GET", "/health").status == 200
    return False


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model from English to German whose translations end soon, its tokenizer, and its folder."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(PHRASES, 350)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), d_model=32, num_heads=4, d_ff=64, num_encoder_layers=2, num_decoder_layers=2,
        source_lang="en", target_lang="de", lm_head_bias=True, tie_word_embeddings=False,
    )  # fmt: skip
    model = VanillaTransformerForConditionalGeneration(config).eval()
    model.lm_head.weight.data.normal_()
    model.lm_head.bias.data[2] += 5.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer, folder


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    with serving(model[2], tmp_path_factory.mktemp("server") / "log") as process:
        yield process


def in_one_line(model, phrase: str) -> str:
    """Return the translation of a phrase alone; the random model also generates line breaks."""
    return " ".join(translate(*model[:2], [phrase])[0].splitlines())


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
        assert LibreTranslateAPI(address, "topsecret").translate(PHRASES[0], "en", "de")
        with pytest.raises(HTTPError, match="403"):
            LibreTranslateAPI(address, "guess").translate(PHRASES[0], "en", "de")
        assert request(process.port, "GET", "/config").status == 401  # the page asks for a login
        login = {"username": "anyone", "password": "guess"}
        assert request(process.port, "POST", "/login", login, form=True).status == 400
        answer = request(process.port, "POST", "/login", login | {"password": "topsecret"}, form=True)
        cookie = answer.headers["set-cookie"].partition(";")[0]
        assert request(process.port, "GET", "/config", headers={"Cookie": cookie}).status == 200
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
            while queue_length(process.port) <= len(others):
                time.sleep(0.01)
            process.popen.send_signal(signal.SIGTERM)
            assert not long.done()
            assert long.result(60).body == {"translatedText": "\n".join(expected * 3)}
            for client in others:
                client.result(60)
        assert process.popen.wait(30) == 0
        log = process.log.read_text()
    assert log.count("/translate: 200") == log.count("/translate: ") == answered[0] + 1


def queue_length(port: int) -> float:
    """Return how many sentences wait."""
    lines = request(port, "GET", "/metrics").body.splitlines()
    return float(next(line for line in lines if line.startswith("vanilla_transformer_queue_sentences")).split()[-1])


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
PATHS = st.sampled_from(["/translate", "/translate", "/translate", "/detect", "/languages", "/health", "/metrics"])


@pytest.mark.timeout(600)
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
    assert "Traceback" not in server.log.read_text()


@contextlib.contextmanager
def browser_page(port: int):
    """Open the page of a server, and check that nothing that the browser asks for is an error."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, errors = browser.new_page(), []
        page.on("response", lambda response: response.status >= 400 and errors.append((response.status, response.url)))
        page.goto(f"http://127.0.0.1:{port}/")
        yield page
        browser.close()
    assert [(status, url) for status, url in errors if status != 401] == []  # 401 asks for the login


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium (apt install chromium)")
def test_the_page_is_at_the_address_of_the_server(server, model):
    from playwright.sync_api import expect

    with browser_page(server.port) as page:
        page.get_by_label("Source (en)").fill(PHRASES[0])
        page.get_by_role("button", name="Translate").click()
        translation = page.get_by_label("Translation (de)")
        expect(translation).not_to_have_value("", timeout=30_000)
        assert " ".join(translation.input_value().split()) == " ".join(in_one_line(model, PHRASES[0]).split())
        expect(page.locator("[data-testid=matplotlib] img, .matplotlib img").first).to_be_visible()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium (apt install chromium)")
def test_the_page_of_two_models_behind_a_login(model, tmp_path):
    from playwright.sync_api import expect

    other = shutil.copytree(model[2], tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"source_lang": "de", "target_lang": "en"}))
    keys = tmp_path / "keys"
    keys.write_text("topsecret\n")
    flags = ("--api_key_file", str(keys))
    with serving([model[2], other], tmp_path / "log", *flags) as process, browser_page(process.port) as page:
        page.get_by_label("username").fill("anyone")
        page.get_by_label("password").fill("topsecret")
        page.get_by_role("button", name="Login").click()
        page.get_by_role("tab", name="other").click()
        page.get_by_label("Source (de)").fill("Wer?")
        page.get_by_role("button", name="Translate").last.click()
        expect(page.get_by_label("Translation (en)")).not_to_have_value("", timeout=30_000)
        assert "other" in page.title()


@pytest.mark.parametrize("path", ["run/translate", "call/translate", "api/translate", "upload", "file=/etc/passwd"])
def test_the_page_opens_no_way_around_the_limits(server, path):
    assert request(server.port, "GET", "/").status == 200
    answer = request(server.port, "POST", f"/gradio_api/{path}", {"data": ["private"]})
    assert answer[:2] == (404, {"error": "Not Found"})


def test_errors_have_the_form_of_the_api_beside_the_page(server):
    assert request(server.port, "GET", "/nowhere")[:2] == (404, {"error": "Not Found"})
    assert request(server.port, "GET", "/translate")[:2] == (405, {"error": "Method Not Allowed"})
    assert request(server.port, "POST", "/languages")[:2] == (405, {"error": "Method Not Allowed"})
    assert request(server.port, "HEAD", "/health").status == 200


def test_the_page_allows_no_other_sites(server):
    headers = {"Origin": "https://evil.org", "Host": "mt.example.com", "Access-Control-Request-Method": "POST"}
    for method, path in (("GET", "/config"), ("OPTIONS", "/translate"), ("GET", "/languages")):
        answer = request(server.port, method, path, headers=headers)
        assert "access-control-allow-origin" not in answer.headers


WEBSOCKET = (
    b"GET /translate?q=private HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def test_errors_of_the_page_are_logged_without_the_text(server):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port)) as websocket:
        websocket.sendall(WEBSOCKET)
        websocket.recv(100)
    event = {"fn_index": 0, "session_hash": "s", "data": ["private", 4, 0.6, "no such language"]}
    assert request(server.port, "POST", "/gradio_api/queue/join", event).status == 200
    stream = request(server.port, "GET", "/gradio_api/queue/data?session_hash=s")
    assert '"success":false' in stream.body.replace(" ", "")
    log = server.log.read_text()
    assert "gradio" in log  # where it was
    assert "private" not in log


def test_an_open_page_does_not_delay_the_end(model, tmp_path):
    with serving(model[2], tmp_path / "log") as process:
        page = socket.create_connection(("127.0.0.1", process.port), timeout=30)
        page.sendall(b"GET /gradio_api/heartbeat/s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        received = b""
        while b"ALIVE" not in received:
            data = page.recv(1000)
            assert data
            received += data
        start = time.monotonic()
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(30) == 0
        assert time.monotonic() - start < 15
        page.close()
        assert "Traceback" not in process.log.read_text()


@pytest.mark.parametrize("backend", ["ctranslate2", "onnx"])
def test_exports_are_served(model, backend, tmp_path):
    folder = tmp_path / "export"
    export = [
        sys.executable,
        "-m",
        "hf_vanilla_transformer",
        "export",
        str(model[2]),
        str(folder),
        "--format",
        backend,
    ]
    subprocess.run(export, check=True, capture_output=True)
    with serving(folder, tmp_path / "log", "--backend", backend, "--no_page", "--num_beams", "1") as process:
        body = {"q": PHRASES[:5], "source": "en", "target": "de"}
        answer = request(process.port, "POST", "/translate", body)
    expected = [" ".join(text.splitlines()) for text in translate(*model[:2], PHRASES[:5], num_beams=1)]
    assert answer.body == {"translatedText": expected}


def test_page_and_programs_use_one_model_at_once(server, model):
    """Ten clicks on the page and a hundred requests together: all get the right answers."""
    expected = [in_one_line(model, phrase) for phrase in PHRASES[:20]]

    def click(i: int) -> str:
        event = {"fn_index": 0, "session_hash": f"s{i}", "data": [PHRASES[i], 4, 0.6, None]}
        assert request(server.port, "POST", "/gradio_api/queue/join", event).status == 200
        stream = request(server.port, "GET", f"/gradio_api/queue/data?session_hash=s{i}").body
        lines = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
        (output,) = (line["output"]["data"][0] for line in lines if line["msg"] == "process_completed")
        return " ".join(output.splitlines())

    def ask(i: int) -> str:
        body = {"q": PHRASES[i % 20], "source": "en", "target": "de"}
        return request(server.port, "POST", "/translate", body).body["translatedText"]

    with ThreadPoolExecutor(16) as clients:
        clicks, answers = clients.map(click, range(10)), clients.map(ask, range(100))
        assert list(clicks) == expected[:10]
        assert list(answers) == expected * 5


def test_an_address_in_use_and_an_empty_file_of_keys_are_one_line(server, model, tmp_path):
    command = [sys.executable, "-m", "hf_vanilla_transformer", "serve", str(model[2])]
    taken = subprocess.run([*command, "--port", str(server.port)], capture_output=True, text=True)
    assert taken.returncode == 1
    assert f"Cannot listen on 127.0.0.1, port {server.port}: " in taken.stderr.splitlines()[-1]
    (tmp_path / "keys").touch()
    empty = subprocess.run([*command, "--api_key_file", str(tmp_path / "keys")], capture_output=True, text=True)
    assert empty.returncode == 1
    assert empty.stderr.splitlines()[-1].endswith("is empty: write one API key per line into it.")
