"""Tools shared by the benchmarks: interleaved timing, memory, the table of results and the machine's description."""

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

from hf_vanilla_transformer.inference.hardware import default_device, hardware, has_native_bfloat16


def log(*values: object) -> None:
    """Print to stderr."""
    print(*values, file=sys.stderr, flush=True)


class Report:
    """The measurements, each with an optional target ratio, and how often the peers' outputs were equal."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.agreements: dict[str, float] = {}

    def add(self, name: str, ours: float, peer: float | None, ratio: float, target: str = "", unit: str = "") -> None:
        """Add a measurement and log it."""
        self.rows.append(
            {"row": name, "unit": unit, "ours": ours, "peer": peer, "ratio": round(ratio, 3), "target": target}
        )
        log(f"{name}: {ours:.4g} {unit}, peer {peer if peer is None else round(peer, 3)}, ratio {ratio:.2f} {target}")

    def add_agreement(self, name: str, ours: list, theirs: list) -> None:
        """Add the share of outputs that are equal in `ours` and `theirs` and log it."""
        self.agreements[name] = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)
        log(f"{name}: {self.agreements[name]:.1%} equal")

    def disagreements(self) -> list[str]:
        """Return the names of the comparisons in which fewer than 99 % of the outputs are equal."""
        return [name for name, share in self.agreements.items() if share < 0.99]

    def table(self) -> str:
        """Return the report as Markdown."""
        lines = ["| measure | unit | ours | peer | ratio | target |", "|---|---|---|---|---|---|"]
        for row in self.rows:
            peer = "" if row["peer"] is None else f"{row['peer']:.4g}"
            cells = (row["row"], row["unit"], f"{row['ours']:.4g}", peer, f"{row['ratio']:.2f}", row["target"])
            lines.append(f"| {' | '.join(cells)} |")
        lines += [f"\n{name}: {share:.1%} of the outputs equal." for name, share in self.agreements.items()]
        return "\n".join(lines)


def synchronize() -> None:
    """Wait until the GPU, if there is one, has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_interleaved(
    repeats: int, clock: Callable[[], float] = time.perf_counter, /, **candidates: Callable[[], object]
) -> dict[str, float]:
    """Return the median time of each candidate in seconds.

    The candidates alternate in each of `repeats` rounds, after one untimed round. A short pause before each call lets
    the threads of the previous candidate go to sleep.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(repeats + 1):
        for name, function in candidates.items():
            time.sleep(0.3)
            start = clock()
            function()
            synchronize()
            if round_number:
                seconds[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def describe_machine() -> str:
    """Return the name of the GPU or processor, the processor's features, and the versions of what matters."""
    features = torch.backends.cpu.get_cpu_capability()
    if has_native_bfloat16(torch.device("cpu")):
        features += " with bfloat16"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{hardware(default_device())} ({features}); Python {platform.python_version()}, {versions}"


def gemm_rate() -> float:
    """Return the floating-point operations per second of a large float32 matrix product."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return 2 * 2048**3 / time_interleaved(10, product=lambda: a @ b)["product"]


def resident_memory(process: int | str = "self") -> float:
    """Return the resident memory of a process in megabytes (2^20 bytes), 0 if it no longer exists."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0.0)


def peak_memory_increase(function: Callable[[], object]) -> float:
    """Run `function` and return its peak memory in megabytes, beyond what was resident before, sampled every 2 ms."""
    gc.collect()
    with suppress(AttributeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)  # return freed memory to the system, so that using it again counts
    before, peak, done = resident_memory(), 0.0, threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, resident_memory())

    sampler = threading.Thread(target=sample)
    sampler.start()
    function()
    done.set()
    sampler.join()
    return max(peak, resident_memory()) - before
