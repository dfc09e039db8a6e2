"""The page of `vanilla-transformer serve`, in a browser and beside the API."""

import contextlib
import json
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from export_models import PHRASES
from live_server import request
from server_process import in_one_line, serving

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


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
        assert not {"Traceback", "failed:"} & set(process.log.read_text().split())


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
