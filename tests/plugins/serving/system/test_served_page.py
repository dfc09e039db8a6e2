"""The page of `vanilla-transformer serve`, in a browser and beside the API."""

import contextlib
import json
import re
import shutil
import signal
import socket

import pytest
from export_models import PHRASES
from live_server import request, text
from server_process import in_one_line, serving


@pytest.fixture
def open_page(browser):
    """A function that opens an address; at the end, the browser has asked no other server and run into no error."""
    contexts = []
    outside = []
    failures = []

    def start(port: int, path: str = "/", **settings):
        origin = f"http://127.0.0.1:{port}"

        def check_address(sent) -> None:
            if not sent.url.startswith((f"{origin}{path}", "data:")):
                outside.append(sent.url)

        def check_message(message) -> None:
            # Chromium also logs every answer with an error, which some tests provoke.
            if message.type == "error" and "Failed to load resource" not in message.text:
                failures.append(message.text)

        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.on("request", check_address)
        page.on("console", check_message)  # violations of the content security policy, for example
        page.on("pageerror", lambda error: failures.append(str(error)))
        if path != "/":
            context.route(f"**{path}**", lambda route: route.fulfill(response=route.fetch(url=direct(route, path))))
        page.goto(f"{origin}{path}")
        return page

    yield start
    for context in contexts:
        context.close()
    assert outside == []
    assert failures == []


def direct(route, path: str) -> str:
    """Return the address behind a proxy that serves the page below `path`."""
    return route.request.url.replace(path, "/", 1)


def normal(text: str) -> str:
    return " ".join(text.split())


def test_the_page_marks_doubtful_translations(server, open_page):
    from playwright.sync_api import expect

    answers = [{"doubtful": ["Ein <b>Hund</b>."]}, {}]
    page = open_page(server.port)
    page.route("**/translate", lambda route: route.fulfill(json={"translatedText": "Ein Hund.", **answers.pop(0)}))
    expect(page.get_by_role("button", name="Translate")).to_be_enabled()
    page.get_by_label("Text", exact=True).fill("A dog.")
    page.get_by_role("button", name="Translate").click()
    doubts = page.get_by_role("list", name="Doubtful sentences")
    expect(doubts.get_by_role("listitem")).to_have_text(["Ein <b>Hund</b>."])
    expect(page.get_by_role("status")).to_contain_text("Doubtful sentences: 1.")
    translation = page.get_by_label("Translation", exact=True)
    assert translation.get_attribute("title") == "Doubtful: check the sentences below"
    assert translation.get_attribute("aria-describedby") == "status doubt-note"
    # the next one is not
    page.get_by_role("button", name="Translate").click()
    expect(doubts).to_be_hidden()
    assert translation.get_attribute("title") == ""
    assert translation.get_attribute("aria-describedby") == "status"
    assert translation.get_attribute("class") == ""


def test_the_page_shows_the_translation_and_the_alternatives_of_the_api(server, model, open_page):
    from playwright.sync_api import expect

    def ask(phrase: str) -> list[str]:
        return request(server.port, "POST", "/translate", text(phrase, alternatives=2)).body["alternatives"]

    # The model is random, and not all of its hypotheses are different texts.
    phrase = next(phrase for phrase in PHRASES if len(ask(phrase)) == 2)
    page = open_page(server.port)
    expect(page.get_by_role("button", name="Translate")).to_be_enabled()
    assert page.get_by_label("From").locator("option").all_text_contents() == ["Detect", "English"]
    assert page.get_by_label("To", exact=True).locator("option").all_text_contents() == ["German"]
    page.get_by_label("Text", exact=True).fill(phrase)
    page.get_by_label("Alternatives").fill("2")
    page.get_by_role("button", name="Translate").click()
    expect(page.get_by_role("status")).to_contain_text("Translated from English to German.")
    translation = page.get_by_label("Translation")
    assert normal(translation.input_value()) == normal(in_one_line(model, phrase))
    assert translation.get_attribute("lang") == "de"
    assert page.get_by_role("listitem").all_text_contents() == ask(phrase)


def test_a_detected_language_and_a_sentence_without_translation_are_named(server, open_page):
    from playwright.sync_api import expect

    page = open_page(server.port)
    page.get_by_label("From").select_option("Detect")
    page.get_by_label("Text", exact=True).fill("This is an English sentence.\n" + "the house " * 600)
    page.get_by_role("button", name="Translate").click()
    expect(page.get_by_role("status")).to_contain_text("Detected English")
    expect(page.get_by_role("status")).to_contain_text("Warnings: 1.")
    (warning,) = page.locator("#warnings li").all_text_contents()
    assert re.fullmatch(r"Sentence 2 has [\d,]+ tokens, more than [\d,]+: it is not translated.", warning)
    page.get_by_label("Text", exact=True).fill("Das ist ein deutscher Satz, ohne Zweifel.")
    page.get_by_role("button", name="Translate").click()
    expect(page.get_by_role("status")).to_contain_text("The text is in German already.")
    expect(page.locator("#warnings")).to_be_hidden()


def test_a_key_is_asked_for_and_checked(model, open_page, tmp_path):
    from playwright.sync_api import expect

    other = shutil.copytree(model[2], tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"source_lang": "de", "target_lang": "en"}))
    keys = tmp_path / "keys"
    keys.write_text("topsecret\n")
    with serving([model[2], other], tmp_path / "log", "--api_key_file", str(keys)) as process:
        page = open_page(process.port)
        page.get_by_label("From").select_option("German")
        page.get_by_label("Text", exact=True).fill("Wer?")
        button = page.get_by_role("button", name="Translate")
        button.click()
        expect(page.get_by_role("alert")).to_have_text("Error: Please provide an API key (api_key)")
        key = page.get_by_label("API key")
        expect(key).to_be_focused()
        key.fill("guess")
        button.click()
        expect(page.get_by_role("alert")).to_have_text("Error: Invalid API key")
        expect(key).to_have_attribute("aria-invalid", "true")
        key.fill("topsecret")
        key.press("Enter")
        expect(page.get_by_role("status")).to_contain_text("Translated from German to English.")
        expect(page.get_by_role("alert")).to_be_hidden()
        expect(key).to_have_attribute("aria-invalid", "false")
        log = process.log.read_text()
    assert "topsecret" not in log
    assert "guess" not in log


def test_a_server_without_keys_asks_for_none(server, open_page):
    page = open_page(server.port)
    page.get_by_role("button", name="Translate").and_(page.locator(":enabled")).wait_for()
    assert page.get_by_label("API key").is_hidden()


def test_errors_are_said_in_words_and_the_next_translation_clears_them(server, open_page):
    from playwright.sync_api import expect

    page = open_page(server.port)
    error = page.get_by_role("alert")
    button = page.get_by_role("button", name="Translate")
    source = page.get_by_label("Text", exact=True)
    button.click()
    expect(error).to_have_text("Error: Type a text first.")
    expect(source).to_be_focused()
    expect(page.get_by_label("Translation", exact=True)).to_have_attribute("lang", "")
    source.fill("a" * 10_001)
    expect(page.get_by_text("10,001 of 10,000 characters: too long")).to_be_visible()
    button.click()
    expect(error).to_have_text("Error: Invalid request: the text has 10,001 characters, more than 10,000")
    source.fill("Who?")

    page.route("**/translate", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    button.click()
    expect(error).to_have_text("Error: The server answered with status 502.")
    page.unroute("**/translate")
    page.route("**/translate", lambda route: route.abort())
    button.click()
    expect(error).to_have_text("Error: The server cannot be reached.")
    page.unroute("**/translate")
    button.click()
    expect(page.get_by_role("status")).to_contain_text("Translated")
    expect(error).to_be_hidden()

    # nothing of it stays beside a text that is not translated
    expect(page.locator("#others")).to_be_visible()
    source.fill("a" * 10_001)
    button.click()
    expect(error).to_contain_text("10,001")
    expect(page.get_by_label("Translation")).to_have_value("")
    expect(page.locator("#others")).to_be_hidden()


def test_a_file_is_translated_and_downloaded(server, model, open_page, tmp_path):
    from playwright.sync_api import expect

    page = open_page(server.port)
    button = page.get_by_role("button", name="Translate")
    expect(button).to_be_enabled()
    field = page.get_by_label("Or a file")
    assert ".docx" in field.get_attribute("accept")
    (tmp_path / "a.txt").write_text("Who?\n")
    field.set_input_files(tmp_path / "a.txt")
    button.click()
    expect(page.get_by_role("status")).to_contain_text("Translated from English to German.")
    link = page.get_by_role("link", name="Download the translation")
    # relative, for a proxy
    assert link.get_attribute("href").startswith("download_file/")
    with page.expect_download() as download:
        link.click()
    assert download.value.path().read_text() == f"{in_one_line(model, 'Who?')}\n"
    (tmp_path / "a.xyz").write_text("Who?")
    field.set_input_files(tmp_path / "a.xyz")
    button.click()
    expect(page.get_by_role("alert")).to_contain_text("Invalid request: file: expected one of")
    expect(page.get_by_role("link")).to_be_hidden()
    # typing a text takes the file back
    page.get_by_label("Text", exact=True).fill("Who?")
    button.click()
    expect(page.get_by_role("status")).to_contain_text("Translated")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_translation_needs_no_mouse(server, open_page):
    """The focus starts in the text; Tab visits every control, each with a name and a visible outline."""
    from playwright.sync_api import expect

    page = open_page(server.port)
    expect(page.get_by_role("button", name="Translate")).to_be_enabled()
    expect(page.get_by_label("Text", exact=True)).to_be_focused()
    page.keyboard.type("Who?")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("status")).to_contain_text("Translated")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    named = [
        ("combobox", "From"),
        ("combobox", "To"),
        ("textbox", "Text"),
        ("button", "Or a file"),
        ("spinbutton", "Alternatives"),
        ("button", "Translate"),
        ("textbox", "Translation"),
    ]
    for role, name in named:
        control = page.get_by_role(role, name=name, exact=True)
        expect(control).to_be_focused()
        assert control.evaluate("element => parseFloat(getComputedStyle(element).outlineWidth)") >= 2
        page.keyboard.press("Tab")


def luminance(colour: str) -> float:
    """Return the relative luminance of a CSS colour such as "rgb(0, 0, 0)", as WCAG 2 defines it."""
    channels = [int(channel) / 255 for channel in re.findall(r"\d+", colour)[:3]]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


COLOURS = """element => {
  let behind = element;
  while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  return [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390, 320])
def test_the_page_is_legible_in_both_schemes_at_every_width(server, open_page, scheme, width):
    page = open_page(server.port, color_scheme=scheme, viewport={"width": width, "height": 800})
    page.get_by_role("button", name="Translate").and_(page.locator(":enabled")).click()
    page.get_by_role("alert").get_by_text("Type a text first").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for selector in ("h1", "header p", "label", "#count", "#text", "#source", "#submit", "#error", "#translation"):
        front, back = map(luminance, page.locator(selector).first.evaluate(COLOURS))
        assert (max(front, back) + 0.05) / (min(front, back) + 0.05) >= 4.5, selector
    background = luminance(page.locator("body").evaluate(COLOURS)[1])
    assert (background > 0.5) == (scheme == "light")


def test_the_page_works_behind_the_path_of_a_proxy(server, open_page):
    from playwright.sync_api import expect

    page = open_page(server.port, "/tools/mt/")
    page.get_by_label("Text", exact=True).fill("Who?")
    page.get_by_role("button", name="Translate").click()
    expect(page.get_by_role("status")).to_contain_text("Translated")


def test_the_page_allows_no_other_sites(server):
    headers = {"Origin": "https://evil.org", "Host": "mt.example.com", "Access-Control-Request-Method": "POST"}
    for method, path in (
        ("GET", "/"),
        ("OPTIONS", "/translate"),
        ("GET", "/languages"),
        ("GET", "/frontend/settings"),
    ):
        answer = request(server.port, method, path, headers=headers)
        assert "access-control-allow-origin" not in answer.headers


WEBSOCKET = (
    b"GET /translate?q=private HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def test_an_attempt_to_open_a_websocket_is_logged_without_the_text(server):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=30) as websocket:
        websocket.sendall(WEBSOCKET)
        assert b" 405 " in websocket.recv(100)
    assert "private" not in server.log.read_text()


def test_an_open_page_does_not_delay_the_end(model, tmp_path):
    """A browser keeps its connection to the server open."""
    with (
        serving(model[2], tmp_path / "log") as process,
        socket.create_connection(("127.0.0.1", process.port), timeout=30) as page,
    ):
        page.sendall(b"HEAD / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b" 200 " in page.recv(2000)
        process.popen.send_signal(signal.SIGTERM)
        assert process.popen.wait(30) == 0  # less than the time limit of a request, for which it waits at most
        assert not {"Traceback", "failed:"} & set(process.log.read_text().split())
