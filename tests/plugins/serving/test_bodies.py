"""What strangers send takes a bounded amount of memory, and no room from those who have a key."""

import asyncio
import contextlib
import socket
import tempfile
import time

import pytest
from live_server import metric, text
from starlette.exceptions import HTTPException
from test_translated_files import form, send_file

from hf_vanilla_transformer.plugins.serving import bodies

KEY = "topsecret"
SECONDS = 30


def begin_upload(port: int, size: int, head: str = "", **fields: str) -> socket.socket:
    """Send all of a file but its end, and return the connection."""
    body, headers = form("a.txt", b"a" * size, **fields)
    client = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    lines = [f"{name}: {value}\r\n" for name, value in {"Content-Length": str(len(body)), **headers}.items()]
    client.sendall(f"POST /translate_file HTTP/1.1\r\nHost: localhost\r\n{''.join(lines)}{head}\r\n".encode())
    # the server may refuse it meanwhile
    with contextlib.suppress(OSError):
        client.sendall(body[:-50])
    return client


@pytest.fixture
def small(monkeypatch):
    """Let the bodies together have 1 MB."""
    monkeypatch.setattr(bodies, "MAX_BYTES", 1_000_000)


def test_uploads_that_are_left_unfinished_keep_no_key_holder_out(serve, small):
    send = serve(api_keys=[KEY])
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(begin_upload(send.port, 300_000)) for _ in range(8)]
        # the key comes last
        body, headers = form("a.txt", b"Hi.", source="en", target="de")
        for _ in range(3):
            assert send_file(send, "a.txt", b"Hi.", api_key=KEY).status == 200
            assert send("POST", "/translate", text("Hi.", api_key=KEY)).status == 200
        assert send("POST", f"/translate_file?api_key={KEY}", body, headers=headers).status == 200
        ended = 0
        for client in others:
            client.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                ended += b" 503 " in client.recv(100)
    assert ended >= 5
    assert metric(send, 'requests_total{path="/translate_file",status="503"}') == ended


def test_a_server_without_keys_has_one_limit_for_all(serve, small):
    send = serve()
    with begin_upload(send.port, 600_000), begin_upload(send.port, 500_000) as second:
        second.settimeout(SECONDS)
        # the largest has gone, whichever came first
        assert send_file(send, "a.txt", b"Hi.").status == 200
        second.settimeout(0.2)
        with pytest.raises(TimeoutError):
            second.recv(100)


def test_nothing_is_written_to_the_disk(serve, monkeypatch):
    monkeypatch.setattr(tempfile, "_TemporaryFileWrapper", None)
    monkeypatch.setattr(tempfile, "TemporaryFile", None)
    send = serve(max_characters=3_000_000)
    assert send_file(send, "a.txt", b"1" * 2_500_000).status == 200


@pytest.mark.parametrize(
    ("head", "fields"),
    [("", {"api_key": "guess"}), ("Authorization: Bearer guess\r\n", {})],
)
def test_a_wrong_key_is_refused_before_the_file_is_read(serve, head, fields):
    send = serve(api_keys=[KEY])
    with begin_upload(send.port, 300_000, head, **fields) as client:
        assert b" 403 " in client.recv(100)


def test_a_key_may_come_in_a_header(serve):
    send = serve(api_keys=[KEY])
    for given, status in ((f"Bearer {KEY}", 200), (f"bearer  {KEY}", 200), (f"Basic {KEY}", 403), ("Bearer x", 403)):
        assert send("POST", "/translate", text("Hi."), headers={"Authorization": given}).status == status
    # as in the body
    assert send("POST", f"/translate?api_key={KEY}", text("Hi.")).status == 200


def arrive(others: bodies.Bodies, size: int, is_last: bool = True) -> bodies.Body:
    """Return a body of which so many bytes have arrived."""
    body = bodies.Body(others, bodies.MAX_BYTES)

    async def receive():
        return {"type": "http.request", "body": bytes(size), "more_body": not is_last}

    asyncio.run(body.receive(receive))
    return body


def test_a_key_at_the_end_of_a_body_makes_no_room(small):
    others = bodies.Bodies()
    first, second = arrive(others, 600_000), arrive(others, 400_000)
    first.accept_key()
    second.accept_key()
    assert others.bytes == {False: 0, True: 1_000_000}
    with pytest.raises(HTTPException, match="503: The server is busy"):
        arrive(others, 1).accept_key()
    second.forget()
    # what arrives later has what is left, and nobody loses a body that is complete
    arrive(others, 350_000, is_last=False).accept_key()
    last = arrive(others, 300_000, is_last=False)
    last.accept_key()
    assert others.arriving == {last}
    assert others.bytes == {False: 0, True: 900_000}
    for body in (first, last):
        body.forget()
    assert others.arriving == set()
    assert others.bytes == {False: 0, True: 0}


def test_a_body_is_forgotten_with_its_request(serve, small):
    send = serve()
    for _ in range(5):
        assert send_file(send, "a.txt", b"1" * 500_000).status == 400
    begin_upload(send.port, 900_000).close()
    deadline = time.monotonic() + SECONDS
    while metric(send, 'requests_total{path="/translate_file",status="499"}') < 1:
        assert time.monotonic() < deadline
    with begin_upload(send.port, 900_000) as client:
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(100)
