"""Connections that never become requests, and what the server writes about them."""

import contextlib
import logging
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import ModuleType

import pytest
from fastapi import FastAPI
from live_server import live, request, text

from hf_vanilla_transformer.plugins.serving.process import BoundedServer, RepeatedMessages

SECONDS = 120  # for what comes soon unless something hangs
HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=SECONDS)


def ended(client: socket.socket) -> bool:
    """Wait until the server ends a connection, and return whether it sent nothing before."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", b"G", HEAD, HEAD + b"X-Long: " + b"a" * 1000])
def test_a_connection_without_a_complete_request_ends(serve, sent):
    send = serve(timeout=1)
    with connect(send.port) as client:
        client.sendall(sent)
        assert ended(client)
    assert send("GET", "/health").status == 200


def test_a_head_that_arrives_byte_by_byte_does_not_extend_the_time(serve):
    with connect(serve(timeout=1).port) as client:
        client.sendall(HEAD)
        client.settimeout(0.1)
        for _ in range(10 * SECONDS):
            try:
                assert client.recv(1) == b""
                break
            except TimeoutError:
                client.sendall(b"x")
            except OSError:
                break
        else:
            pytest.fail("the connection is still open")


def test_an_idle_connection_ends_after_its_last_answer(serve):
    with connect(serve(timeout=1).port) as client:
        for _ in range(2):
            client.sendall(HEAD + b"\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                part = client.recv(1000)
                assert part
                answer += part
            assert b" 200 " in answer
        assert ended(client)


def test_another_event_loop_that_is_installed_is_not_used(monkeypatch):
    # without the functions that uvicorn would call
    monkeypatch.setitem(sys.modules, "uvloop", ModuleType("uvloop"))
    app = FastAPI()
    app.get("/answer")(lambda: "yes")
    with live(app, timeout=1) as port:
        assert request(port, "GET", "/answer").body == "yes"


@pytest.mark.slow
def test_a_client_that_does_not_take_its_answers_is_left():
    app = FastAPI()
    app.get("/large")(lambda: "a" * 1_000_000)
    with live(app, timeout=1) as port, connect(port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        # more than all buffers hold
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10)
        with contextlib.suppress(ConnectionError):
            for _ in range(10 * SECONDS):
                client.sendall(b"G")
                Event().wait(0.1)
            pytest.fail("the connection is still open")
        assert request(port, "GET", "/openapi.json").status == 200


def test_only_a_second_ctrl_c_cuts_short_what_is_being_answered():
    server = BoundedServer(FastAPI(), timeout=1)
    server.handle_exit(signal.SIGINT, None)
    # uvicorn's own flag for the second one
    assert (server.should_exit, server.force_exit) == (True, False)


def test_with_too_many_connections_the_one_that_has_waited_longest_ends(serve):
    send = serve(max_connections=3)
    clients = [connect(send.port) for _ in range(3)]
    for _ in range(3):
        # each of these is one too many
        assert send("GET", "/health").status == 200
    assert ended(clients[0])
    for client in clients:
        client.close()


@pytest.mark.parametrize("others", [b"", HEAD, HEAD.replace(b"GET", b"POST") + b"Content-Length: 99\r\n\r\n"])
def test_a_crowd_of_connections_that_arrives_at_once_keeps_nobody_out(serve, others):
    send = serve(max_connections=8)
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            client = stack.enter_context(connect(send.port))
            with contextlib.suppress(OSError):
                client.sendall(others)
        for _ in range(5):
            assert send("POST", "/translate", text("Hi.")).status == 200


def test_a_connection_with_a_request_under_way_is_never_the_one_that_ends(serve, model, monkeypatch):
    began, gate, generate = Event(), Event(), model.generate

    def wait(*args, **settings):
        began.set()
        gate.wait(SECONDS)
        return generate(*args, **settings)

    monkeypatch.setattr(model, "generate", wait)
    send = serve(max_connections=2)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(send, "POST", "/translate", text("Hi."))
        assert began.wait(SECONDS)
        others = [connect(send.port) for _ in range(5)]
        assert send("GET", "/health").status == 200
        gate.set()
        assert answer.result(SECONDS).status == 200
    for other in others:
        other.close()


def test_an_equal_message_is_written_once_per_minute():
    repeated = RepeatedMessages()
    now = [1000.0]
    written = []

    def log(level, message, *values, name="asyncio"):
        record = logging.LogRecord(name, level, "", 0, message, values, None)
        record.created = now[0]
        if repeated.filter(record):
            written.append(record.getMessage())

    for i in range(500):
        log(logging.ERROR, "failed: %d", i)
        log(logging.INFO, "served")
    assert written == ["failed: 0", *["served"] * 500]
    log(logging.WARNING, "something else")
    log(logging.ERROR, "failed: %d", 1, name="another logger")
    assert written[-2:] == ["something else", "failed: 1"]
    now[0] += 61
    log(logging.ERROR, "failed: %d", 7)
    log(logging.ERROR, "failed: %d", 8)
    assert written[-1] == "failed: 7"
    assert len(written) == 504
    for i in range(50):
        log(logging.ERROR, f"Exception in callback f({i})\nhandle: <Handle {i} at 0x7f{i}>")
    assert len(written) == 505
