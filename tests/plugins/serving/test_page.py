"""The server's page as a file: what it may load and run, before any browser opens it."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest


class Page(HTMLParser):
    """The addresses, the inline code and the attributes with code of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.addresses: list[str] = []
        self.code: dict[str, str] = {}
        self.attributes: set[str] = set()
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self._open = tag
        self.attributes.update(name for name, _ in attributes)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "action")]

    def handle_data(self, data):
        if self._open in ("script", "style"):
            assert self._open not in self.code
            self.code[self._open] = data

    def handle_endtag(self, tag):
        self._open = ""


def policy(headers: dict[str, str]) -> dict[str, str]:
    """Return the directives of a Content-Security-Policy."""
    directives = headers["content-security-policy"].split("; ")
    return dict(directive.partition(" ")[::2] for directive in directives)


def test_the_page_may_run_its_own_code_and_talk_to_its_server_and_nothing_else(serve):
    answer = serve()("GET", "/")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    page = Page(answer.body)
    allowed = policy(answer.headers)
    assert allowed["default-src"] == allowed["base-uri"] == allowed["form-action"] == "'none'"
    assert allowed["frame-ancestors"] == "'none'"
    assert allowed["connect-src"] == "'self'"
    for element in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(page.code[element].encode()).digest()).decode()
        assert allowed[f"{element}-src"] == f"'sha256-{digest}'"
    assert set(allowed) == {
        *("default-src", "script-src", "style-src", "img-src", "connect-src"),
        *("base-uri", "form-action", "frame-ancestors", "require-trusted-types-for"),
    }
    assert [address.partition(":")[0] for address in page.addresses] == ["data"]  # the icon
    assert not {name for name in page.attributes if name == "style" or name.startswith("on")}


def test_the_head_of_the_page_is_that_of_the_page(serve):
    send = serve()
    page = send("GET", "/")
    head = send("HEAD", "/")
    assert (head.status, head.body) == (200, "")
    for name in ("content-security-policy", "content-length", "content-type"):
        assert head.headers[name] == page.headers[name]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_without_the_page_its_address_is_unknown(serve, method):
    assert serve(page=False)(method, "/").status == 404


# FastAPI has pages about the API at two of these
@pytest.mark.parametrize("path", ["/", "/docs", "/docs/oauth2-redirect", "/redoc", "/health"])
def test_no_page_of_the_server_loads_anything_from_elsewhere(serve, path):
    assert not re.search("(src|href) *= *[\"']?(https?:)?//", str(serve()("GET", path).body))
