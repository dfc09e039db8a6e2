"""`vanilla-transformer serve` in its own process, as clients, browsers and process managers meet it."""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
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
def serving(folder: Path, log: Path, *flags: str) -> Iterator[Process]:
    """Run `vanilla-transformer serve` on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hf_vanilla_transformer", "serve", str(folder), "--port", str(port), *flags]
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


def test_libretranslates_python_client(server, model):
    from libretranslatepy import LibreTranslateAPI

    client = LibreTranslateAPI(f"http://127.0.0.1:{server.port}")
    for phrase in PHRASES[:5]:
        assert client.translate(phrase, "en", "de") == translate(*model[:2], [phrase])[0]
    assert [language["code"] for language in client.languages()] == ["en", "de"]
    assert client.detect("This is a sentence.") == [{"confidence": 100.0, "language": "en"}]


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
        page = request(process.port, "GET", "/config")
        assert page.status == 401  # the page asks for a login
        log = process.log.read_text()
    assert "topsecret" not in log
    assert "guess" not in log


def test_sigterm_lets_accepted_requests_finish(model, tmp_path):
    """Clients send requests without pause; whatever was accepted when SIGTERM came gets its whole answer."""
    expected = translate(*model[:2], PHRASES)
    unanswered, answered, terminated = [], [0], threading.Event()

    with serving(model[2], tmp_path / "log", "--no_page") as process:

        def send_until_refused(first: int) -> None:
            i = first
            while True:
                i = (i + 1) % len(PHRASES)
                body = {"q": PHRASES[i], "source": "en", "target": "de"}
                try:
                    answer = request(process.port, "POST", "/translate", body)
                except ConnectionRefusedError:
                    return  # not accepted
                except (OSError, HTTPException) as error:
                    unanswered.append(error)
                    return
                assert answer.body == {"translatedText": expected[i]}
                answered[0] += 1

        with ThreadPoolExecutor(16) as clients:
            finished = [clients.submit(send_until_refused, 3 * i) for i in range(16)]
            time.sleep(2)
            process.popen.send_signal(signal.SIGTERM)
            terminated.set()
            for client in finished:
                client.result(60)
        assert process.popen.wait(30) == 0
        log = process.log.read_text()
    assert answered[0] > 16
    # A connection that the system had accepted, but the server had not seen, is reset; it never was a request.
    assert log.count("/translate: 200") == answered[0]
    assert all(isinstance(error, ConnectionResetError) for error in unanswered)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
LANGUAGES = st.sampled_from(["en", "de", "auto", "fr", ""]) | JSON
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "q": st.text(max_size=300) | st.lists(st.text(max_size=30), max_size=5) | JSON,
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
        if answer.status >= 400 and path in ("/translate", "/detect") and method == "POST":
            assert set(answer.body) == {"error"}

    send()
    assert request(server.port, "GET", "/health").status == 200
    assert "Traceback" not in server.log.read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium (apt install chromium)")
def test_the_page_is_at_the_address_of_the_server(server, model):
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.port}/")
        page.get_by_label("Source (en)").fill(PHRASES[0])
        page.get_by_role("button", name="Translate").click()
        expected = translate(*model[:2], [PHRASES[0]])[0]
        expect(page.get_by_label("Translation (de)")).to_have_value(expected, timeout=30_000)
        expect(page.locator("[data-testid=matplotlib] img, .matplotlib img").first).to_be_visible()
        browser.close()


def test_an_address_in_use_and_an_empty_file_of_keys_are_one_line(server, model, tmp_path):
    command = [sys.executable, "-m", "hf_vanilla_transformer", "serve", str(model[2])]
    taken = subprocess.run([*command, "--port", str(server.port)], capture_output=True, text=True)
    assert taken.returncode == 1
    assert f"Cannot listen on 127.0.0.1, port {server.port}: " in taken.stderr.splitlines()[-1]
    (tmp_path / "keys").touch()
    empty = subprocess.run([*command, "--api_key_file", str(tmp_path / "keys")], capture_output=True, text=True)
    assert empty.returncode == 1
    assert empty.stderr.splitlines()[-1].endswith("is empty: write one API key per line into it.")
