"""What the benchmark measures with: turns, the table of results, memory, the machine and its ceiling."""

import ctypes
import gc
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers

from hf_vanilla_transformer.sharing.card import hardware


def say(*words: Any) -> None:
    print(*words, file=sys.stderr, flush=True)


class Report:
    """Rows of what was measured, each with its target where there is one."""

    def __init__(self):
        self.rows: list[dict[str, Any]] = []
        self.agreements: dict[str, float] = {}

    def add(self, what: str, ours: float, peer: float | None, ratio: float, target: str = "", unit: str = "") -> None:
        self.rows.append(
            {"row": what, "unit": unit, "ours": ours, "peer": peer, "ratio": round(ratio, 3), "target": target}
        )
        say(f"{what}: {ours:.4g} {unit}, peer {peer if peer is None else round(peer, 3)}, ratio {ratio:.2f} {target}")

    def agree(self, what: str, ours: list, theirs: list) -> None:
        self.agreements[what] = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)
        say(f"{what}: {self.agreements[what]:.1%} equal")

    def disagreeing(self) -> list[str]:
        return [what for what, share in self.agreements.items() if share < 0.99]

    def table(self) -> str:
        lines = ["| measure | unit | ours | peer | ratio | to reach |", "|---|---|---|---|---|---|"]
        for row in self.rows:
            peer = "" if row["peer"] is None else f"{row['peer']:.4g}"
            cells = (row["row"], row["unit"], f"{row['ours']:.4g}", peer, f"{row['ratio']:.2f}", row["target"])
            lines.append(f"| {' | '.join(cells)} |")
        lines += [f"\n{what}: {share:.1%} of the outputs equal." for what, share in self.agreements.items()]
        return "\n".join(lines)


def take_turns(repeats: int, **contenders: Callable[[], Any]) -> dict[str, float]:
    """The median seconds of each, after one untimed turn. A short rest lets the last one's threads go to sleep."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, act in contenders.items():
            time.sleep(0.3)
            start = time.perf_counter()
            act()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def machine() -> str:
    """The GPU or the processor's threads, and the versions."""
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{hardware()}; Python {platform.python_version()}, {versions}"


def ceiling() -> float:
    """Floating-point operations a second of a large float32 matrix product."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return 2 * 2048**3 / take_turns(10, product=lambda: a @ b)["product"]


def resident(process: int | str = "self") -> float:
    """Megabytes of a process, 0 if it has gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0.0)


def peak_during(act: Callable[[], Any]) -> float:
    """Megabytes that `act` needs at its peak beyond what is there before, looked at every 2 ms."""
    gc.collect()
    with suppress(AttributeError):  # glibc's own
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before counts as new when it is used again
    before, peak, done = resident(), 0.0, threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    act()
    done.set()
    watcher.join()
    return max(peak, resident()) - before
