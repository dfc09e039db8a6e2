"""Send short requests to `vanilla-transformer serve` while other clients misbehave, and check every answer.

python scripts/benchmarks/attack.py --model runs/multi30k-average --text data/multi30k/val
python scripts/benchmarks/attack.py --model M --text T --seconds 1800 --half_open 20 --slow 10 --vanishing 10 --large 4

Half-open clients send a part of a head and then nothing; slow ones send a request byte by byte; vanishing ones close
their connection before the answer; large ones send a text of many sentences, or too many. Every one of them starts
again when its connection ends. Prints JSON: how many short requests were answered, within 2 seconds, with which
latencies, and the memory of the server over time.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
from measuring import describe_machine, resident_memory
from serving import expected_answers, wait_for
from tqdm import tqdm

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

    def request(self, text: str) -> bytes:
        """Return a request for a translation."""
        fields = {"q": text, "source": self.expected["source"], "target": self.expected["target"]}
        body = urllib.parse.urlencode(fields).encode()
        head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
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
            await reader.read()


async def repeat(client: Callable[[int], Awaitable[None]], first: int) -> None:
    """Start a client again and again, with another number each time."""
    number = first
    while True:
        # whatever the server does to a client that misbehaves
        with contextlib.suppress(OSError):
            await client(number)
        number += 7
        await asyncio.sleep(0.01)


async def run(attack: Attack, clients: dict[str, int], seconds: int, pid: int) -> list[int]:
    """Run the clients, and return the memory of the server in MB, about ten times."""
    tasks = [
        asyncio.create_task(repeat(getattr(attack, kind), i)) for kind, count in clients.items() for i in range(count)
    ]
    memory = []
    for second in tqdm(range(seconds), file=sys.stderr, unit=" s"):
        await asyncio.sleep(1)
        if second % max(1, seconds // 10) == 0:
            memory.append(round(resident_memory(pid)))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return memory


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
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 10_000), hard))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "hf_vanilla_transformer", "serve", args.model, "--port", str(port)]
    attack = Attack(port, expected_answers(args.model, "float32", args.text, 200))
    clients = {kind: getattr(args, kind) for kind in ("short", "half_open", "slow", "vanishing", "large")}
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w+") as log:
        with subprocess.Popen(command, stderr=log) as server:
            try:
                wait_for(f"http://127.0.0.1:{port}", server)
                memory = asyncio.run(run(attack, clients, args.seconds, server.pid))
            finally:
                server.terminate()
        size = Path(folder, "log").stat().st_size
    times = np.array(attack.seconds)
    summary = {
        "machine": describe_machine(),
        "clients": clients,
        "short requests": dict(attack.counts),
        f"share within {SECONDS} s": round(float((times <= SECONDS).mean()), 4),
        **{f"p{share}, ms": round(1000 * float(np.percentile(times, share))) for share in (50, 95, 99)},
        "memory of the server, MB": memory,
        "log, kB": round(size / 1000),
    }
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
