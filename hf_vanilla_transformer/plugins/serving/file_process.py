"""Read an uploaded file, and write its translation, in a process of its own that can be killed (extra `serve`).

Parsers of office files are the largest code that a stranger reaches. Here they can neither keep the server from
answering, nor take more time and memory than they are given.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ...data.foreign_files import ExchangeError, TooLargeError
from .. import DOCUMENTS, load

MAX_MEMORY = 1 << 30  # bytes of a process
_AT_ONCE = 2


class FileProcesses:
    """Run the functions of a `DocumentFormat`, each call in a new process, which ends when the call is cancelled.

    Args:
        seconds: the largest processor time of a process, even if the server is killed meanwhile.
    """

    def __init__(self, seconds: int):
        self._seconds = seconds
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def texts_of(self, content: bytes, name: str, max_bytes: int) -> list[str]:
        """Return the texts of a file, as `DocumentFormat.texts_of`."""
        texts, _ = await self._run(content, name=name, max_bytes=max_bytes)
        return texts

    async def with_texts(self, content: bytes, name: str, texts: Sequence[str], language: str | None = None) -> bytes:
        """Return a file with other texts, as `DocumentFormat.with_texts`."""
        _, translated = await self._run(content, name=name, texts=texts, language=language)
        return translated

    async def _run(self, content: bytes, **asked: object) -> tuple[list[str], bytes]:
        # others go first, where the system has priorities, even before its own modules: those of this process
        first = "import os, sys; hasattr(os, 'nice') and os.nice(10)"
        code = f"{first}; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
        # the name of a file is nothing for the list of processes
        head = json.dumps({**asked, "seconds": self._seconds}).encode() + b"\n"
        async with self._free:
            # what it prints could quote the file
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
            )
            try:
                output, _ = await process.communicate(head + content)
            finally:
                # unless the call is cancelled, it has ended
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        assert process.returncode is not None
        if process.returncode < 0:
            # by a signal: too much time or memory, or an error in compiled code
            raise TooLargeError(f"{asked['name']}: damaged, or too large to be read in time; split it.")
        if process.returncode:
            raise RuntimeError("the process of a file failed")
        line, _, content = output.partition(b"\n")
        answer = json.loads(line)
        if "problem" in answer:
            raise (TooLargeError if answer["too_large"] else ExchangeError)(answer["problem"])
        return answer["texts"], content


def main() -> None:
    """Answer one request on standard input: a line of JSON, then the file."""
    asked = json.loads(sys.stdin.buffer.readline())
    content = sys.stdin.buffer.read()
    _limit(asked["seconds"])
    answer, output = _answer(asked, content)
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + output)


def _answer(asked: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the line of JSON of an answer, and what follows it."""
    name = asked["name"]
    format = load(DOCUMENTS, os.path.splitext(name)[1].lower().removeprefix("."))
    try:
        if "texts" in asked:
            return {"texts": []}, format.with_texts(content, name, asked["texts"], asked["language"])
        return {"texts": format.texts_of(content, name, asked["max_bytes"])}, b""
    except ExchangeError as error:
        return {"problem": str(error), "too_large": isinstance(error, TooLargeError)}, b""


def _limit(seconds: int) -> None:
    """Limit the time and the memory of this process, where the system can."""
    try:
        import resource
    except ImportError:  # on Windows
        return
    for kind, limit in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, MAX_MEMORY),
        (resource.RLIMIT_CORE, 0),
    ):
        # not above the limit that is there already
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))
