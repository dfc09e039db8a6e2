"""A server in its own process under half-open connections and long requests, and how it ends."""

import contextlib
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from export_models import PHRASES
from live_server import metric, request, text
from server_process import in_one_line, serving, wait_for_log

from hf_vanilla_transformer.cli import main

HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\n"


@contextlib.contextmanager
def half_open(port: int, count: int):
    """Hold so many connections that have sent a part of a request's head, or nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * count)), hard))
    with contextlib.ExitStack() as stack:
        for i in range(count):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            client.sendall(HEAD if i % 2 else b"")
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("descriptors", "connections"), [(256, 300), (None, 1000)])
def test_half_open_connections_keep_nobody_out(model, tmp_path, descriptors, connections):
    before = descriptors and partial(resource.setrlimit, resource.RLIMIT_NOFILE, (descriptors, descriptors))
    with serving(model[2], tmp_path / "log", "--no_page", before=before, python=sys.executable) as process:
        with half_open(process.port, connections):
            for phrase in PHRASES[:20]:
                answer = request(process.port, "POST", "/translate", text(phrase))
                assert answer.body == {"translatedText": in_one_line(model, phrase)}
        assert request(process.port, "GET", "/health").status == 200
        assert len(process.log.read_text()) < 10_000


def test_the_soft_limit_on_descriptors_is_raised(model, tmp_path):
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    with (
        serving(model[2], tmp_path / "log", "--no_page", before=lower, python=sys.executable) as process,
        half_open(process.port, 400),
    ):
        assert request(process.port, "GET", "/health").status == 200
        limits = Path(f"/proc/{process.popen.pid}/limits").read_text()
        soft, hard = next(line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files"))
        assert soft == hard


def begin_long_request(process) -> ThreadPoolExecutor:
    """Send a request of 1,000 sentences, and return when they are being translated."""
    client = ThreadPoolExecutor(1)
    long = text("\n".join(PHRASES[0] for _ in range(1000)))
    answer = client.submit(request, process.port, "POST", "/translate", long)
    while metric(partial(request, process.port), "queue_sentences") < 100:
        assert not answer.done(), answer.result()
        time.sleep(0.01)
    return client


LONG = ("--no_page", "--max_characters", "100000", "--timeout", "300", "--max_tokens", "100")


def test_short_requests_are_answered_beside_a_long_one(model, tmp_path):
    with serving(model[2], tmp_path / "log", *LONG) as process:
        begin_long_request(process)
        send = partial(request, process.port)
        for phrase in PHRASES[:10]:
            assert send("POST", "/translate", text(phrase)).body == {"translatedText": in_one_line(model, phrase)}
        # the long one is still waiting, so that all of them have overtaken it
        assert metric(send, "queue_sentences") > 0


def test_a_second_ctrl_c_ends_the_server_at_once_with_one_line(model, tmp_path):
    with serving(model[2], tmp_path / "log", *LONG, python=sys.executable) as process:
        begin_long_request(process)
        process.popen.send_signal(signal.SIGINT)
        # the first lets accepted requests finish
        wait_for_log(process, "Waiting for")
        before = process.log.read_text()
        process.popen.send_signal(signal.SIGINT)
        assert process.popen.wait(300) == 130
        assert process.log.read_text().removeprefix(before) == "vanilla-transformer: interrupted\n"


def test_a_second_ctrl_c_while_the_models_end_their_batch_is_no_abort(model, tmp_path):
    with serving(model[2], tmp_path / "log", *LONG, python=sys.executable) as process:
        body = urllib.parse.urlencode(text("\n".join(PHRASES[0] for _ in range(1000)))).encode()
        head = "Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        with socket.create_connection(("127.0.0.1", process.port)) as client:
            client.sendall(f"POST /translate HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            while metric(partial(request, process.port), "queue_sentences") < 100:
                time.sleep(0.01)
        # its client has left, so that nothing keeps the server from ending but the batch under way
        process.popen.send_signal(signal.SIGINT)
        wait_for_log(process, "Shutting down")
        process.popen.send_signal(signal.SIGINT)
        assert process.popen.wait(300) == 130
        log = process.log.read_text()
        assert "Traceback" not in log
        assert "terminate" not in log


@pytest.mark.parametrize("name", ["*", "*.example.org", "mt.example.org:80", "https://mt.example.org"])
def test_an_allowed_host_is_a_name(name, capsys):
    assert main(["serve", "model", "--allowed_hosts", name]) == 2
    assert f"--allowed_hosts {name}: give a host name" in capsys.readouterr().err


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGHUP, 0), (signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_every_request_to_end_is_one_without_a_traceback(model, tmp_path, sent, status):
    # which may be ignored here, and so in the server, where the tests run under nohup
    heed = partial(signal.signal, sent, signal.SIG_DFL)
    with serving(model[2], tmp_path / "log", "--no_page", before=heed, python=sys.executable) as process:
        process.popen.send_signal(sent)
        assert process.popen.wait(300) == status
        assert "Traceback" not in process.log.read_text()


def test_nohup_keeps_the_server_running_when_the_terminal_closes(model, tmp_path):
    ignore = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    with serving(model[2], tmp_path / "log", "--no_page", before=ignore, python=sys.executable) as process:
        process.popen.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.popen.wait(2)
        assert request(process.port, "GET", "/health").status == 200
