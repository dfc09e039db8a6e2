"""The table of LibreTranslate's API in the guide, and requests as its clients send them."""

import re

import pytest
from export_models import PHRASES
from guide_pages import GUIDE
from live_server import text
from test_translated_files import path_of, send_file

from hf_vanilla_transformer.plugins.serving.server import ENDINGS

KEY = "topsecret"


def translated(answer):
    assert answer.status == 200, answer.body
    return answer.body["translatedText"]


def check_texts(send, alone):
    assert translated(send("POST", "/translate", text(PHRASES[0], api_key=KEY))) == alone(PHRASES[0])
    assert translated(send("POST", "/translate", text(PHRASES[:2], api_key=KEY))) == [*map(alone, PHRASES[:2])]


def check_forms(send, alone):
    assert translated(send("POST", "/translate", text(PHRASES[0], api_key=KEY), form=True)) == alone(PHRASES[0])
    assert translated(send("POST", f"/translate?q=Who%3F&source=en&target=de&api_key={KEY}")) == alone("Who?")


def check_codes(send, alone):
    assert translated(send("POST", "/translate", text("Who?", source="EN", target="De", api_key=KEY))) == alone("Who?")


def check_auto(send, alone):
    answer = send("POST", "/translate", text(PHRASES[:2], source="auto", api_key=KEY)).body
    assert [each["language"] for each in answer["detectedLanguage"]] == ["en", "en"]


def check_slashes(send, alone):
    moved = send("POST", "//translate", text("Who?", api_key=KEY))
    assert (moved.status, moved.headers["location"]) == (308, "/translate")


def check_methods(send, alone):
    assert send("HEAD", "/languages").status == 200
    assert send("OPTIONS", "/translate").headers["allow"] == "OPTIONS, POST"


def check_formats(send, alone):
    assert translated(send("POST", "/translate", text("Who?", format="text", api_key=KEY))) == alone("Who?")
    page = send("POST", "/translate", text("<p>Who?</p>", format="html", api_key=KEY))
    assert translated(page) == f"<p>{alone('Who?')}</p>"


def check_alternatives(send, alone):
    for kind in ("text", "html"):
        answer = send("POST", "/translate", text(PHRASES[0], alternatives=2, format=kind, api_key=KEY)).body
        assert len({answer["translatedText"], *answer["alternatives"]}) == 3


def check_key(send, alone):
    assert send("POST", "/translate", text("Who?")).status == 403
    assert send("POST", "/translate", text("Who?", api_key="guess")).status == 403
    assert send("POST", "/translate", text("Who?", api_key=KEY)).status == 200


def check_file(send, alone):
    assert send_file(send, "a.txt", b"Who?").status == 403
    assert send("GET", path_of(send_file(send, "a.txt", b"Who?", api_key=KEY))).body == alone("Who?")


def check_detection(send, alone):
    assert send("POST", "/detect", {"q": PHRASES[0], "api_key": KEY}).body[0]["language"] == "en"


def check_key_of_detection(send, alone):
    assert send("POST", "/detect", {"q": PHRASES[0]}).status == 403


def check_languages(send, alone):
    assert send("GET", "/languages").body[0] == {"code": "en", "name": "English", "targets": ["de"]}


def check_settings(send, alone):
    settings = send("GET", "/frontend/settings").body
    assert settings["supportedFilesFormat"] == list(ENDINGS)
    assert (settings["filesTranslation"], settings["keyRequired"], settings["suggestions"]) == (True, True, False)


def check_health(send, alone):
    assert send("GET", "/health").body == {"status": "ok"}


def check_metrics(send, alone):
    assert "requests_total" in send("GET", "/metrics").body


# in the order of the lines of the table that work
CHECKS = [
    check_texts,
    check_forms,
    check_codes,
    check_auto,
    check_formats,
    check_alternatives,
    check_key,
    check_file,
    check_file,
    check_detection,
    check_key_of_detection,
    check_languages,
    check_settings,
    check_health,
    check_metrics,
    check_slashes,
    check_methods,
]


def test_each_line_of_the_table_is_true(serve, alone):
    table = re.findall(r"^\| (.+?) \| (.+?) \|$", (GUIDE / "libretranslate.md").read_text(), re.MULTILINE)
    working = [name for name, state in table if state.startswith("works")]
    send = serve(api_keys=[KEY])
    for _, check in zip(working, CHECKS, strict=True):
        check(send, alone)
    for name, state in table:
        match = re.match(r"`(GET|POST) (/\w+)`", name)
        if match and state[0] == "4":
            body = text(["Who?"], api_key=KEY) if match[1] == "POST" else None
            assert send(match[1], match[2], body).status == int(state[:3]), name


def test_mastodons_requests(serve, alone):
    """It sends the paragraphs of a post as a list of HTML, and a null for a missing key or language."""
    body = {"q": ["<p>Who?</p>", "Who?"], "source": "auto", "target": "de", "format": "html", "api_key": None}
    answer = serve()("POST", "/translate", body).body
    assert answer["translatedText"] == [f"<p>{alone('Who?')}</p>", alone("Who?")]
    assert [each["language"] for each in answer["detectedLanguage"]] == ["en", "en"]


def test_akkomas_requests(serve, alone):
    body = {"q": "<p>Who?</p>", "source": "auto", "target": "de", "format": "html", "api_key": ""}
    answer = serve()("POST", "/translate", body).body
    assert (answer["translatedText"], answer["detectedLanguage"]["language"]) == (f"<p>{alone('Who?')}</p>", "en")


def test_wagtail_localizes_requests(serve, alone):
    """Strings with inline tags whose ids it needs back."""
    body = {"q": ['<a id="a1">Who?</a>', "Who?"], "source": "en", "target": "de", "api_key": KEY, "format": "html"}
    answer = serve(api_keys=[KEY])("POST", "/translate", body).body
    assert answer["translatedText"] == [f'<a id="a1">{alone("Who?")}</a>', alone("Who?")]


@pytest.mark.parametrize("origin", ["moz-extension://0a1b", "chrome-extension://abcd"])
def test_a_browser_extensions_requests(serve, alone, origin):
    headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
    send = serve(cors_origins=[origin])
    body = text("Who?", format="text", api_key=KEY)
    answer = send("POST", "/translate", body, headers=headers, form=True)
    assert translated(answer) == alone("Who?")
    assert answer.headers["access-control-allow-origin"] == origin
    # LibreTranslate's own page and extensions for pages send JSON
    answer = send("POST", "/translate", {**body, "alternatives": 3}, headers=headers)
    assert translated(answer) == alone("Who?")
