"""Run the server: mount the page beside the API, and shut down gracefully (extra `serve`)."""

import re
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from ..files import import_extra
from ..inference.translator import Translator
from .batcher import Batcher
from .page import MAX_CHARACTERS, Explorer, build_page

_SHUTDOWN_MARGIN = 5  # seconds after the time limit of a request
_MAX_WAITING_EVENTS = 64  # clicks on the page
# What the page in a browser asks Gradio for. All else is closed: uploads, calls past Gradio's queue, a proxy.
_PAGE_PATHS = re.compile(
    "/|/(config|login|logout|theme.css|favicon.ico|manifest.json|robots.txt|(static|assets|svelte)/.*)"
    "|/gradio_api/(queue/(join|data)|heartbeat/[^/]*|startup-events|info|app_id|login_check|user|token|cancel|reset)/?"
)


def mount_page(
    app: FastAPI,
    translators: Sequence[Translator],
    batcher: Batcher,
    max_characters: int,
    is_key: Callable[[str], bool] | None,
) -> Callable[[], None]:
    """Add the page of `demo` for some models at the address /, and return a function that ends its connections.

    Args:
        batcher: runs the models.
        max_characters: limit for each text, if it is lower than that of the page.
        is_key: if given, the page asks for a login with a password for which this is true.
    """
    gradio = import_extra("gradio", "serve")
    limit = min(max_characters, MAX_CHARACTERS)
    page = build_page(*(Explorer(each, batcher.run, limit) for each in translators))
    page.queue(max_size=_MAX_WAITING_EVENTS, api_open=False)
    # Gradio prints errors with the text that a visitor has typed
    sys.modules["gradio.queueing"].traceback = SimpleNamespace(print_exc=_print_error)  # type: ignore[attr-defined]
    gradio.mount_gradio_app(
        app,
        page,
        "/",
        auth=None if is_key is None else lambda user, password: is_key(password),
        auth_message="Any user name, with an API key as the password.",
        show_error=False,
        footer_links=[],  # they lead to what is closed
        run_history=False,
    )
    mounted = app.routes[-1]
    inner = mounted.app  # type: ignore[attr-defined]

    async def guarded(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if _PAGE_PATHS.fullmatch(scope["path"]):
            # without an origin, no version of Gradio allows other sites to use the page
            headers = [header for header in scope["headers"] if header[0] != b"origin"]
            await inner({**scope, "headers": headers}, receive, send)
        else:
            await JSONResponse({"error": "Not Found"}, 404)(scope, receive, send)

    mounted.app = guarded  # type: ignore[attr-defined]
    return inner.stop_event.set


def _print_error() -> None:
    """Print where the current error was raised, without its message."""
    kind, _, where = sys.exc_info()
    print(*traceback.format_tb(where), kind, sep="", file=sys.stderr)


class _Server(uvicorn.Server):
    """A server that calls a function as soon as it is told to stop."""

    on_stop: Callable[[], None] | None = None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.on_stop is not None:
            self.on_stop()
        await super().shutdown(sockets)


def serve_until_stopped(app: FastAPI, sock: socket.socket, timeout: float, on_stop: Callable[[], None] | None) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that were accepted are still answered.

    Args:
        timeout: maximum seconds for a request.
        on_stop: called when no new requests are accepted.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        ws="none",  # uvicorn would log the address of every attempt
        access_log=False,  # it would contain what clients write into addresses
        timeout_graceful_shutdown=round(timeout) + _SHUTDOWN_MARGIN,
    )
    server = _Server(config)
    server.on_stop = on_stop
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again when everything is answered
    server.run([sock])
