"""Load `vanilla-transformer serve` with more and more clients over real connections (Locust), and check every answer.

python scripts/benchmarks/serving.py --model runs/multi30k-average --text data/multi30k/val
python scripts/benchmarks/serving.py --model M --text P --backend torch ctranslate2 --libretranslate PYTHON

The second command measures both backends and LibreTranslate's own server, one after the other. PYTHON is that of an
environment with libretranslate, and M as argos.py needs it.

Every client sends one sentence after the other. The clients run on the same machine as the server and take a part of
its time. Prints JSON with, for each number of clients, sentences per second, latencies, answers that differ from the
translation of the sentence alone, refusals (503), errors, and the memory of the server.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from argos import write_package
from measuring import describe_machine, resident_memory

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.inference.segments import Document

# Without what splits text into sentences, which it would download; every request is a single sentence
LIBRETRANSLATE = """
from argostranslate.sbd import MiniSBDSentencizer
from libretranslate.main import main

MiniSBDSentencizer.split_sentences = lambda self, text: [text]
main()
"""


def expected_answers(model: str, dtype: str, text: str, sentences: int) -> dict[str, Any]:
    """Return sentences with their translations, each translated alone, and the languages."""
    translator = Translator.load(model, dtype=dtype)
    source, target = translator.directions.pairs[0]
    lines = Path(f"{text}.{source}").read_text("utf-8").splitlines()
    single = [line.strip() for line in lines if Document(line.strip(), source).sentences == [line.strip()]]
    pairs = [(line, translator.translate([line])[0].text) for line in single[:sentences]]
    return {"source": source, "target": target, "pairs": pairs}


def percentiles(times: dict[str, int]) -> dict[str, float]:
    """Return the median, the 95th and the 99th percentile of milliseconds, given as a histogram."""
    ordered = sorted((float(ms), count) for ms, count in times.items())
    total, results = sum(times.values()), {}
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        seen = 0
        for ms, count in ordered:
            seen += count
            if seen >= share * total:
                results[f"{name}, ms"] = ms
                break
    return results


def load(clients: int, seconds: int, address: str, expected: Path) -> dict[str, Any]:
    """Let `clients` send requests for `seconds`, and return what they measured."""
    command = [sys.executable, "-m", "locust", "-f", str(Path(__file__).with_name("serving_clients.py")), "--headless"]
    command += ["-u", str(clients), "-r", str(clients), "-t", f"{seconds}s", "--stop-timeout", "60", "-H", address]
    run = subprocess.run(
        [*command, "--json", "--skip-log-setup"],
        env={**os.environ, "SERVING_EXPECTED": str(expected)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stats = {entry["name"]: entry for entry in json.loads(run.stdout)}
    counts = {name: entry["num_requests"] for name, entry in stats.items()}
    errors = sum(entry["num_failures"] for entry in stats.values())
    answered = [stats[name] for name in ("equal", "different") if name in stats]
    times: dict[str, int] = {}
    for entry in answered:
        for ms, count in entry["response_times"].items():
            times[ms] = times.get(ms, 0) + count
    if not answered:
        sys.exit(f"None of {clients} clients got an answer: {counts}, {errors} errors.")
    total = sum(entry["num_requests"] for entry in answered)
    span = max(e["last_request_timestamp"] for e in answered) - min(e["start_time"] for e in answered)
    return {
        "clients": clients,
        "sentences/s": round(total / span, 1),
        **percentiles(times),
        "answers": total,
        "different from the sentence alone": counts.get("different", 0),
        "busy (503)": counts.get("busy", 0),
        "errors": errors,
    }


def measure(
    name: str, command: list[str], variables: dict[str, str], args: argparse.Namespace, expected: Path
) -> dict:
    """Return what the clients of a server measure, for each number of clients, with its memory."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [*command, "--port", str(port)]
    environment = {**os.environ, **variables}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(address, server)
            before = resident_memory(server.pid)
            rows = []
            for clients in args.clients:
                row = load(clients, args.seconds, address, expected)
                rows.append({**row, "memory of the server, MB": round(resident_memory(server.pid))})
        finally:
            server.terminate()
    one = rows[0]["sentences/s"]
    growth = {f"{row['clients']} clients / {args.clients[0]}": round(row["sentences/s"] / one, 2) for row in rows[1:]}
    return {"server": name, "memory of the server before, MB": round(before), "load": rows, **growth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model to serve")
    parser.add_argument("--text", required=True, help="Moses prefix of text in the model's languages")
    parser.add_argument("--dtype", default="float32", help="number format (default: float32)")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64, 256], help="(default: 1 8 64 256)")
    parser.add_argument("--seconds", type=int, default=30, help="for each number of clients (default: 30)")
    parser.add_argument("--max_queue", default="1024", help="as for serve (default: 1024)")
    parser.add_argument("--sentences", type=int, default=500, help="different sentences to send (default: 500)")
    parser.add_argument("--backend", nargs="+", default=["torch"], help="as for serve; several, one after the other")
    parser.add_argument("--libretranslate", help="Python with libretranslate, whose server is measured too")
    args = parser.parse_args()
    ours = [sys.executable, "-m", "hf_vanilla_transformer", "serve", args.model, "--no_page"]
    ours += ["--max_queue", args.max_queue]
    with tempfile.TemporaryDirectory() as folder:
        expected = Path(folder, "expected.json")
        answers = expected_answers(args.model, args.dtype, args.text, args.sentences)
        expected.write_text(json.dumps(answers), encoding="utf-8")
        results = []
        for backend in args.backend:
            flags = ["--dtype", args.dtype] if backend == "torch" else ["--backend", backend]
            results.append(measure(backend, [*ours, *flags], {}, args, expected))
        if args.libretranslate:
            packages = Path(folder, "packages")
            write_package(args.model, packages)
            variables = {"ARGOS_PACKAGES_DIR": str(packages)}
            theirs = [args.libretranslate, "-c", LIBRETRANSLATE, "--disable-web-ui"]
            results.append(measure("libretranslate", theirs, variables, args, expected))
    print(json.dumps({"machine": describe_machine(), "dtype": args.dtype, "servers": results}, indent=2))


def wait_for(address: str, server: subprocess.Popen) -> None:
    """Wait until the server answers.

    Raises:
        SystemExit: if it has stopped.
    """
    while True:
        try:
            with urllib.request.urlopen(f"{address}/health"):
                return
        except OSError:
            if server.poll() is not None:
                sys.exit("The server has stopped: start it by hand to see why.")
            time.sleep(0.2)


if __name__ == "__main__":
    main()
