"""Serve the page, one static file, with headers that let it talk to its server and to nothing else (extra `serve`)."""

import base64
import hashlib
import re
from pathlib import Path

from fastapi import Response
from fastapi.responses import HTMLResponse


def page_response() -> Response:
    """Return the page."""
    page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    policy = [
        "default-src 'none'",
        f"script-src {_source(page, 'script')}",
        f"style-src {_source(page, 'style')}",
        # its icon
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        # The script sends what is in the form, which may contain a key. The browser itself never does.
        "form-action 'none'",
        "frame-ancestors 'none'",
        # What the API answers never becomes HTML.
        "require-trusted-types-for 'script'",
    ]
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": "; ".join(policy),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(page, headers=headers)


def _source(page: str, element: str) -> str:
    """Return the source expression that allows the page's only script or style by its hash."""
    (content,) = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
