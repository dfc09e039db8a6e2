"""`vanilla-transformer serve` in its own process."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from forked_python import forked_python
from live_server import request

from hf_vanilla_transformer import translate


class Process(NamedTuple):
    """A server's process, its port, and the file with its messages."""

    popen: subprocess.Popen
    port: int
    log: Path


@contextlib.contextmanager
def serving(
    folders: Path | list[Path],
    log: Path,
    *flags: str,
    before: Callable[[], object] | None = None,
    python: str | None = None,
) -> Iterator[Process]:
    """Run `vanilla-transformer serve` on a free port, in a forked process unless `python` names another.

    `before` is called in a process of `python` first. Skips the test if the plugin is not there.
    """
    pytest.importorskip("hf_vanilla_transformer.plugins.serving", reason="needs the plugin serving")
    models = [str(folder) for folder in (folders if isinstance(folders, list) else [folders])]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        python or forked_python(),
        "-m",
        "hf_vanilla_transformer",
        "serve",
        *models,
        "--port",
        str(port),
        *flags,
    ]
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=output, preexec_fn=before) as process,
    ):
        try:
            deadline = time.monotonic() + 120
            while not _answers(port):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.2)
            yield Process(process, port, log)
        finally:
            process.kill()


def wait_for_log(process: Process, text: str) -> None:
    """Wait until the server has logged a text, unless it ends before."""
    while text not in process.log.read_text():
        assert process.popen.poll() is None, process.log.read_text()
        time.sleep(0.01)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        return request(port, "GET", "/health").status == 200
    return False


def in_one_line(model, phrase: str) -> str:
    """Return the translation of a phrase alone; the random model also generates line breaks."""
    return " ".join(translate(*model[:2], [phrase])[0].splitlines())
