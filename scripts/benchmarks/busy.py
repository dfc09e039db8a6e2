"""Measure how long one sentence takes beside busy processes, for several settings of OpenMP's spinning threads.

python scripts/benchmarks/busy.py                  about 10 minutes on 2 cores
python scripts/benchmarks/busy.py --spins 0 default --seconds 3

A sentence of 20 tokens is translated to 25 by a random model of the size of `base` with beam 4, on all cores: alone,
beside one and two processes that are always busy, and, as root, with half a core (a control group's quota). Each cell
is measured in a new process, because OpenMP reads its settings only once; the settings take turns. Medians and, in
brackets, the longest of each cell are printed in milliseconds as a Markdown table. "package" is what the command line
sets, "default" what OpenMP does if nobody sets anything.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hf_vanilla_transformer.data.cores import share_cores

SETTINGS = ("default", "package", "0", "1000", "10000", "100000")
NEIGHBOURS = {"alone": 0, "beside one busy process": 1, "beside two": 2}
HALF_CORE = "half a core"
SOURCE_LENGTH, TARGET_LENGTH = 20, 25
GROUP = Path("/sys/fs/cgroup/cpu/half_a_core" if Path("/sys/fs/cgroup/cpu").is_dir() else "/sys/fs/cgroup/half_a_core")


def measure(setting: str, seconds: float, name: str) -> list[float]:
    """Return the times of searches for some seconds, in milliseconds; this process has not imported torch."""
    if setting == "package":
        share_cores()
    elif setting != "default":
        os.environ["GOMP_SPINCOUNT"] = setting
    import torch
    from decoding import VOCAB_SIZE, random_model

    torch.manual_seed(0)
    model = random_model(name)
    source = torch.randint(4, VOCAB_SIZE, (1, SOURCE_LENGTH))
    times: list[float] = []
    end = None
    while end is None or time.monotonic() < end:
        start = time.perf_counter()
        model.generate(source, num_beams=4, max_new_tokens=TARGET_LENGTH)
        if end is None:
            end = time.monotonic() + seconds  # the first search is not timed
        else:
            times.append(1000 * (time.perf_counter() - start))
    return times


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run processes that are always busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def make_half_core() -> bool:
    """Make a control group with half a core, and return whether that was possible."""
    with suppress(OSError):
        GROUP.mkdir(exist_ok=True)
        if (GROUP / "cpu.max").is_file():
            (GROUP / "cpu.max").write_text("50000 100000")
        else:
            (GROUP / "cpu.cfs_quota_us").write_text("50000")
        return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spins", nargs="+", default=SETTINGS, help="settings (default: all)")
    parser.add_argument("--seconds", type=float, default=5, help="of each cell (default: 5)")
    parser.add_argument("--model", default="base", help="size of the model (default: base)")
    parser.add_argument("--measure", metavar="SETTING", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.seconds, args.model)))
        return

    conditions = [*NEIGHBOURS, *([HALF_CORE] if make_half_core() else [])]
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for condition in conditions:
        for setting in args.spins:
            words = [sys.executable, __file__, "--measure", setting, "--seconds", str(args.seconds)]
            enter = (lambda: (GROUP / "cgroup.procs").write_text(str(os.getpid()))) if condition == HALF_CORE else None
            with busy_processes(NEIGHBOURS.get(condition, 0)):
                output = subprocess.run(
                    [*words, "--model", args.model], check=True, stdout=subprocess.PIPE, preexec_fn=enter
                ).stdout
            times = json.loads(output)
            cells[setting][condition] = f"{statistics.median(times):.0f} ({max(times):.0f})"
            print(f"{setting}, {condition}: {cells[setting][condition]} ms", file=sys.stderr, flush=True)
    with suppress(OSError):
        GROUP.rmdir()

    print(f"| spins | {' | '.join(conditions)} |\n|{'---|' * (len(conditions) + 1)}")
    for setting, row in cells.items():
        print(f"| {setting} | {' | '.join(row.values())} |")


if __name__ == "__main__":
    main()
