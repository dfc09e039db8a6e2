"""An application on a real port of this machine, and requests to it."""

import contextlib
import http.client
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What a server answered; `body` is decoded if it is JSON."""

    status: int
    body: Any
    headers: dict[str, str]


@contextlib.contextmanager
def live(app: Any, timeout: float = 30, **settings: Any) -> Iterator[int]:
    """Serve an application from a thread, and yield its port; the settings are those of `BoundedServer`."""
    from hf_vanilla_transformer.plugins.serving.process import BoundedServer

    sock = socket.create_server(("127.0.0.1", 0))
    server = BoundedServer(app, timeout, **settings)
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server does not start"
            time.sleep(0.01)
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def request(
    port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, form: bool = False
) -> Answer:
    """Send one request, with a JSON body or a form."""
    headers = dict(headers or {})
    if body is not None and not isinstance(body, (bytes, str)):
        kind = "application/x-www-form-urlencoded" if form else "application/json"
        headers.setdefault("Content-Type", kind)
        body = urllib.parse.urlencode(body) if form else json.dumps(body)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    found = {name.lower(): value for name, value in response.getheaders()}
    is_json = method != "HEAD" and found.get("content-type", "").startswith("application/json")
    return Answer(response.status, json.loads(content) if is_json else content.decode(errors="replace"), found)


def text(q: str | list[str], **others: Any) -> dict[str, Any]:
    """Return the body of a request for a translation from English to German."""
    return {"q": q, "source": "en", "target": "de", **others}


def metric(send: Callable[..., Answer], name: str) -> float:
    """Return a figure of the server, 0 if it has none yet; `send` is `request` without the port."""
    lines = send("GET", "/metrics").body.splitlines()
    found = [line.rpartition(" ") for line in lines if line.startswith(f"vanilla_transformer_{name}")]
    return float(found[0][2]) if found else 0
