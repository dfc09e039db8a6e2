"""Send short requests to `vanilla-transformer serve` while other clients misbehave, and check every answer.

python scripts/benchmarks/attack.py --model runs/multi30k-average --text data/multi30k/val
python scripts/benchmarks/attack.py --model M --text T --seconds 1800 --half_open 20 --slow 10 --vanishing 10 --large 4

Half-open clients send a part of a head and then nothing; slow ones send a request byte by byte; vanishing ones close
their connection before the answer; large ones send a text of many sentences, or too many; those of tokens send one
sentence as long as the model takes; those of quotes send what is slow to split into sentences; those of documents send
small files that take long to read, or that unpack to large ones; those of uploads send a large file without a key and
without its end. Every one of them starts again when its connection ends. They run in a process of their own, so that
they delay no client with short requests; with `--nice 19`, they hardly take time from a server on the same machine
either, as if they were on others. Prints JSON: how many short requests were answered, within 2 seconds, with which
latencies, what the others got, and the memory of the server, that of the processes in which it reads files, and its
temporary files.
"""

import argparse
import asyncio
import contextlib
import io
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import zipfile
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from measuring import describe_machine, resident_memory
from serving import expected_answers, wait_for
from tqdm import tqdm

KEY = "benchmark"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
SLIDE = "http://schemas.openxmlformats.org/drawingml/2006/main"
SECONDS = 2  # within which a short request should be answered


class Attack:
    """The clients of one server.

    Args:
        expected: sentences with their translations, and the languages, as `serving.expected_answers` returns them.
    """

    def __init__(self, port: int, expected: dict[str, Any]):
        self.port = port
        self.expected = expected
        self.counts = Counter[str]()
        self.seconds: list[float] = []
        self.unfinished = self.upload("a.txt", b"a" * 9_000_000, key="")[:-100]

    def request(self, text: str) -> bytes:
        """Return a request for a translation."""
        fields = {"q": text, "source": self.expected["source"], "target": self.expected["target"], "api_key": KEY}
        body = urllib.parse.urlencode(fields).encode()
        head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def upload(self, name: str, content: bytes, key: str = KEY) -> bytes:
        """Return a request for the translation of a file."""
        fields = {"source": self.expected["source"], "target": self.expected["target"], "api_key": key}
        part = 'Content-Disposition: form-data; name="{}"'
        parts = [f'{part.format("file")}; filename="{name}"\r\n\r\n'.encode() + content]
        parts += [f"{part.format(field)}\r\n\r\n{value}".encode() for field, value in fields.items()]
        body = b"".join(b"--b\r\n" + item + b"\r\n" for item in parts) + b"--b--\r\n"
        head = "POST /translate_file HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    @contextlib.asynccontextmanager
    async def connection(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def short(self, number: int) -> None:
        """Send one sentence, and compare the answer with its translation alone."""
        source, target = self.expected["pairs"][number % len(self.expected["pairs"])]
        start = time.perf_counter()
        async with self.connection() as (reader, writer):
            writer.write(self.request(source))
            answer = await reader.read()
        self.seconds.append(time.perf_counter() - start)
        head, _, body = answer.partition(b"\r\n\r\n")
        status = head.split()[1].decode() if head else "no answer"
        right = status == "200" and json.loads(body)["translatedText"] == target
        self.counts["answered" if right else "wrong" if status == "200" else status] += 1

    async def half_open(self, number: int) -> None:
        async with self.connection() as (reader, writer):
            writer.write(self.request("")[: number % 40])
            await reader.read()

    async def slow(self, number: int) -> None:
        async with self.connection() as (_, writer):
            for byte in self.request("a" * 40):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(1)

    async def vanishing(self, number: int) -> None:
        async with self.connection() as (_, writer):
            source, _ = self.expected["pairs"][number % len(self.expected["pairs"])]
            writer.write(self.request(source))
            await asyncio.sleep(0.01 * (number % 30))

    async def large(self, number: int) -> None:
        lines = [source for source, _ in self.expected["pairs"]]
        text = "\n".join(lines[: 50 * (1 + number % 4)]) if number % 3 else "a" * 10_000_000
        async with self.connection() as (reader, writer):
            writer.write(self.request(text))
            await self.note("large", reader)

    async def tokens(self, number: int) -> None:
        words = " ".join(source for source, _ in self.expected["pairs"]).replace(".", "").split()
        async with self.connection() as (reader, writer):
            writer.write(self.request(" ".join(words[number % 50 :][:700])))
            await self.note("tokens", reader)

    async def quotes(self, number: int) -> None:
        texts = ["`" * 5000 + "\u2039" * 4900, '"\u300a' * 4900, "<!-- a>" * 1400, "a. " * 3300]
        async with self.connection() as (reader, writer):
            writer.write(self.request(texts[number % len(texts)]))
            await self.note("quotes", reader)

    async def documents(self, number: int) -> None:
        files = hostile_files()
        name, content = files[number % len(files)]
        async with self.connection() as (reader, writer):
            writer.write(self.upload(name, content))
            await self.note(f"documents, {number % len(files)}", reader)

    async def uploads(self, number: int) -> None:
        async with self.connection() as (reader, writer):
            answer = asyncio.create_task(self.note("uploads", reader))
            try:
                # not all at once, which would keep the machine busy with copying
                for start in range(0, len(self.unfinished), 500_000):
                    writer.write(self.unfinished[start : start + 500_000])
                    await writer.drain()
                    await asyncio.sleep(1 + number % 3)
                await answer
            finally:
                answer.cancel()

    async def note(self, kind: str, reader: asyncio.StreamReader) -> None:
        """Count the status of an answer."""
        head = await reader.readline()
        self.counts[f"{kind}: {head.split()[1].decode() if head else 'no answer'}"] += 1


@cache
def hostile_files() -> list[tuple[str, bytes]]:
    """Return files of at most some hundred kB that are slow to read, or large once they are unpacked."""
    run = "<x:r><x:t>w</x:t></x:r>"
    breaks = "".join(['<x:p xmlns:x="{}">', f"{run}<x:r><x:br/></x:r>" * 4000, "</x:p>"])
    among = f'<x:p xmlns:x="{WORD}">{(run * 200 + "<x:br/>") * 100}</x:p>'
    return [
        ("a.docx", packed([("word/document.xml", breaks.format(WORD))])),
        ("a.pptx", packed([("ppt/slides/slide1.xml", breaks.format(SLIDE))])),
        ("a.docx", packed([("word/document.xml", among)])),
        ("a.docx", packed([(f"a{i}", "") for i in range(90_000)])),
        ("a.epub", packed([("a.xhtml", "<p>" * 20_000_000)])),
        ("a.docx", packed([("a", "0" * (60 << 20)), ("word/document.xml", f'<x:p xmlns:x="{WORD}">{run}</x:p>')])),
    ]


def packed(files: list[tuple[str, str]]) -> bytes:
    """Return an archive."""
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return output.getvalue()


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder, some of which may go meanwhile."""
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            size += file.stat().st_size
    return size


async def repeat(client: Callable[[int], Awaitable[None]], first: int) -> None:
    """Start a client again and again, with another number each time."""
    number = first
    while True:
        # whatever the server does to a client that misbehaves
        with contextlib.suppress(OSError):
            await client(number)
        number += 7
        await asyncio.sleep(0.01)


async def run_clients(attack: Attack, clients: dict[str, int], duration: Awaitable[Any]) -> Any:
    """Run some clients of each kind while `duration` lasts, and return its result."""
    tasks = [
        asyncio.create_task(repeat(getattr(attack, kind), i)) for kind, count in clients.items() for i in range(count)
    ]
    result = await duration
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return result


def misbehave(attack: Attack, clients: dict[str, int], seconds: int) -> Counter[str]:
    """Run clients for so many seconds, and return how often they got which answers."""
    asyncio.run(run_clients(attack, clients, asyncio.sleep(seconds)))
    return attack.counts


async def watch_memory(seconds: int, server: int, folder: Path) -> dict[str, list]:
    """Return the memory of the server and its processes, and its temporary files, in MB.

    The figures are the largest of each tenth of the time.

    Args:
        server: the number of its process.
        folder: where it writes temporary files.
    """
    figures: dict[str, list] = {"server": [], "file processes": [], "temporary files": []}
    for second in tqdm(range(seconds), file=sys.stderr, unit=" s"):
        await asyncio.sleep(1)
        of_files = 0.0
        for child in psutil.Process(server).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                of_files += child.memory_info().rss / 1e6
        now = {"server": resident_memory(server), "file processes": of_files, "temporary files": size_of(folder) / 1e6}
        for name, value in now.items():
            if second % max(1, seconds // 10) == 0:
                figures[name].append(0)
            figures[name][-1] = max(figures[name][-1], round(value))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model to serve")
    parser.add_argument("--text", required=True, help="Moses prefix of text in the model's languages")
    parser.add_argument("--seconds", type=int, default=60, help="(default: 60)")
    parser.add_argument("--short", type=int, default=4, help="clients with short requests (default: 4)")
    parser.add_argument("--half_open", type=int, default=1000, help="(default: 1000)")
    parser.add_argument("--slow", type=int, default=0, help="(default: 0)")
    parser.add_argument("--vanishing", type=int, default=0, help="(default: 0)")
    parser.add_argument("--large", type=int, default=1, help="(default: 1)")
    for kind in ("tokens", "quotes", "documents", "uploads"):
        parser.add_argument(f"--{kind}", type=int, default=0, help="(default: 0)")
    parser.add_argument("--nice", type=int, default=0, help="niceness of all but the short ones (default: 0)")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 10_000), hard))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hf_vanilla_transformer", "serve", args.model, "--port", str(port)]
    attack = Attack(port, expected_answers(args.model, "float32", args.text, 200))
    others = {kind: getattr(args, kind) for kind in ("half_open", "slow", "vanishing", "large")}
    others |= {kind: getattr(args, kind) for kind in ("tokens", "quotes", "documents", "uploads")}
    with (
        tempfile.TemporaryDirectory() as folder,
        Path(folder, "log").open("w+") as log,
        ProcessPoolExecutor(1, get_context("spawn"), os.nice, (args.nice,)) as process,
    ):
        # before the server starts: they take seconds to pack
        process.submit(hostile_files).result()
        keys, temporary = Path(folder, "keys"), Path(folder, "tmp")
        keys.write_text(KEY)
        temporary.mkdir()
        command += ["--api_key_file", str(keys)]
        with subprocess.Popen(command, stderr=log, env={**os.environ, "TMPDIR": str(temporary)}) as server:
            try:
                wait_for(f"http://127.0.0.1:{port}", server)
                counts = process.submit(misbehave, attack, others, args.seconds)
                watch = watch_memory(args.seconds, server.pid, temporary)
                memory = asyncio.run(run_clients(attack, {"short": args.short}, watch))
                attack.counts += counts.result()
                start = time.perf_counter()
            finally:
                server.terminate()
            status = server.wait()
            end = time.perf_counter() - start
        size = Path(folder, "log").stat().st_size
    times = np.array(attack.seconds)
    summary = {
        "machine": describe_machine(),
        "clients": {"short": args.short, **others},
        "niceness of the others": args.nice,
        "answers": dict(sorted(attack.counts.items())),
        f"share within {SECONDS} s": round(float((times <= SECONDS).mean()), 4),
        **{f"p{share}, ms": round(1000 * float(np.percentile(times, share))) for share in (50, 95, 99)},
        "memory, MB": memory,
        "log, kB": round(size / 1000),
        "status after SIGTERM": status,
        "end after SIGTERM, s": round(end, 1),
    }
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
