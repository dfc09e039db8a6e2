"""How many cores this process may use, and how its threads wait for each other.

On a machine with a busy neighbour, the default of OpenMP is slow: at each barrier, threads spin for milliseconds while
they wait for one that the system has paused, which keeps its core from the thread they wait for.
"""

import math
import os
import sys
from pathlib import Path, PurePosixPath

# Chosen by `python scripts/benchmarks/busy.py`: fewer cost time on a quiet machine, more cost time on a busy one
SPINS = 10_000


def available_cores() -> int:
    """Return the number of cores this process may use, which a scheduler or a container can limit.

    A quota of a control group, such as half a core, is rounded up.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _quota())))


def _quota(root: Path = Path("/")) -> float:
    """Return the smallest quota, in cores, of the control groups this process is in; infinity if there is none."""
    membership = root / "proc/self/cgroup"
    if not membership.is_file():
        return math.inf  # only Linux has control groups

    mount = root / "sys/fs/cgroup"
    quotas = [math.inf]
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        top = mount / "cpu" if "cpu" in controllers.split(",") else mount
        group = PurePosixPath(path)
        # In a container, the path may be that of the host, of which only the top is mounted
        for parent in (group, *group.parents):
            quotas.append(_quota_of(top / parent.relative_to("/")))
    return min(quotas)


def _quota_of(group: Path) -> float:
    """Return the quota of one control group, of version 2 or version 1."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text()
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def share_cores() -> None:
    """Make the threads of this process suit a machine that it shares with others; call it before torch is imported.

    The command line calls it. It sets environment variables that OpenMP reads when torch is imported: threads sleep
    soon while they wait, and there are no more of them than the quota of a container has cores. Variables that are
    already set stay as they are.
    """
    if "torch" in sys.modules:
        return
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(os.environ):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # for the OpenMP of LLVM and Intel
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)  # for that of GCC, in the wheels for Linux
    if math.isfinite(_quota()):
        os.environ.setdefault("OMP_NUM_THREADS", str(available_cores()))
