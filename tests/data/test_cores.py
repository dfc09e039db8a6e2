"""How many cores a process may use, under faked control groups, and how its threads wait."""

import math
import os
import subprocess
import sys

import pytest

from hf_vanilla_transformer.data import cores
from hf_vanilla_transformer.data.cores import available_cores

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")


def write_files(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, math.inf),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, math.inf),
        # of a group above this one
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "300000 100000\n"}, 3),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n",
            },
            1.5,
        ),
        # version 1, in a container, where the path is that of the host
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/1234\n0::/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            math.inf,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense\n"}, math.inf),
        ({"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1),
    ],
)
def test_the_quota_is_the_smallest_of_the_control_groups(tmp_path, files, quota):
    write_files(tmp_path, files)
    assert cores._quota(tmp_path) == quota


@pytest.mark.parametrize(("quota", "expected"), [(math.inf, 4), (8, 4), (2.5, 3), (1, 1), (0.5, 1)])
def test_cores_are_those_of_the_affinity_within_the_quota(monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 5}, raising=False)
    monkeypatch.setattr(cores, "_quota", lambda: quota)
    assert available_cores() == expected


def variables_after_start(quota=math.inf, **environment):
    """Return the variables for OpenMP that a command line sees which starts under a quota, and torch's threads."""
    code = f"""
import os, sys
from hf_vanilla_transformer.data import cores
cores._quota = lambda: {"float('inf')" if quota == math.inf else quota}
os.sched_getaffinity = lambda process: range(4)
from hf_vanilla_transformer.cli import main
assert "torch" not in sys.modules
try:
    main(["--help"])
except SystemExit:
    pass
import torch
names = {VARIABLES}
print({{name: os.environ[name] for name in names if name in os.environ}}, torch.get_num_threads())
"""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    output = subprocess.run(
        [sys.executable, "-c", code], env={**kept, **environment}, capture_output=True, text=True, check=True
    )
    variables, _, threads = output.stdout.splitlines()[-1].rpartition(" ")
    return eval(variables), int(threads)


def test_the_command_line_bounds_how_long_threads_spin_before_torch_is_imported():
    spins = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": str(cores.SPINS)}
    assert variables_after_start()[0] == spins
    assert variables_after_start(quota=1.5)[0] == {**spins, "OMP_NUM_THREADS": "2"}
    assert variables_after_start(quota=0.5) == ({**spins, "OMP_NUM_THREADS": "1"}, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "own",
    [
        {"OMP_WAIT_POLICY": "ACTIVE"},
        {"GOMP_SPINCOUNT": "7"},
        {"KMP_BLOCKTIME": "1"},
        {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "3"},
    ],
)
def test_what_a_user_has_set_stays(own):
    assert variables_after_start(**own)[0] == own


def test_a_users_number_of_threads_stays_under_a_quota():
    assert variables_after_start(quota=1, OMP_NUM_THREADS="3")[0]["OMP_NUM_THREADS"] == "3"


def test_a_program_that_has_imported_torch_keeps_its_environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    cores.share_cores()
    assert not set(VARIABLES) & set(os.environ)
