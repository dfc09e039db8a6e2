"""Real schedulers on this machine, which tests disturb: Slurm, and a Ray cluster of two nodes."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SLURM_COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
_SLURM_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=15
CryptoType=crypto/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobRequeue=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


def _daemon(name: str) -> str:
    """Return the path of a daemon, which is often not on a user's PATH."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or ""


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Start Slurm with one node of two CPUs, and yield the environment for its commands.

    A job that is queued again starts when the credentials of its first start have expired: here after 15 seconds, by
    default after two minutes. A job that is made to start sooner can be ended by a late message about its first start.
    """
    missing = [name for name in SLURM_COMMANDS if not _daemon(name)]
    if missing or os.geteuid():
        pytest.skip(f"Slurm cannot be started here: {' '.join(missing) + ' missing' if missing else 'not root'}")
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    shutil.chown(folder, "munge")
    shutil.chown(key, "munge")
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    configuration.write_text(_SLURM_CONFIGURATION.format(host=host, folder=folder, ports=_free_ports(2)))
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    munge = [_daemon("munged"), "--foreground", "--force", f"--socket={folder}/munge.sock", f"--key-file={key}"]
    munge += [f"--log-file={folder}/munged.log", f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munge.seed"]
    commands = [
        ["runuser", "-u", "munge", "--", *munge],
        [_daemon("slurmctld"), "-D", "-f", str(configuration)],
        [_daemon("slurmd"), "-D", "-f", str(configuration)],
    ]
    daemons = []
    try:
        for command in commands:
            output = (folder / f"{Path(command[0]).name}.out").open("wb")
            daemons.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
            output.close()
            time.sleep(1)
        wait_until(lambda: b"idle" in subprocess.run(["sinfo"], env=environment, capture_output=True).stdout, 300)
        yield environment
    finally:
        if len(daemons) == 3:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(["scancel", "--user=root", "--signal=KILL", "--full"], env=environment, timeout=60)
        for daemon in reversed(daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            daemon.wait()


class RayNodes:
    """A Ray cluster of a head and a second node with one CPU each, in a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ray_nodes.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]

    def remove_node(self) -> None:
        """Remove the second node, with everything that runs on it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("remove\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().split() == ["removed"]

    def stop(self) -> None:
        """Stop the cluster."""
        try:
            self.process.communicate("stop\n", timeout=300)
        finally:
            self.process.kill()


def find_processes(*texts: str) -> list[int]:
    """Return the processes whose command line contains all the given texts."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if all(text in line for text in texts):
                found.append(int(entry.name))
    return found


def wait_until(condition, seconds: float, describe=lambda: "") -> None:
    """Wait until a condition holds; if it does not within `seconds`, fail with what `describe` returns."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {seconds} seconds\n{describe()}"
        time.sleep(0.2)
