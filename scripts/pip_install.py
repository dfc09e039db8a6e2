"""Run `pip install` with one line of progress instead of a line or two per package.

    python scripts/pip_install.py LOG ARGUMENT ...

pip's whole output is written to LOG; if pip fails, its last lines are shown. On a terminal the line is rewritten;
elsewhere only large downloads are named. Needs nothing but Python and pip, as it runs before anything is installed.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
import threading
import time

LARGE = 50e6  # bytes
TAIL = 15  # lines
UNITS = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}


class Progress:
    """Follow what pip is doing by the lines that it prints."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.interactive = sys.stdout.isatty()
        self.activity = "Checking what is installed"
        self.percentage = ""
        self.files = 0
        self.bytes = 0.0
        self.installed: list[str] = []

    def read(self, line: str) -> None:
        """Take in one line of pip's output."""
        if match := re.match(r"Progress (\d+) of ([1-9]\d*)$", line):
            self.percentage = f" {100 * int(match[1]) // int(match[2])} %"
            return
        if match := re.match(r"\s*Downloading (\S+)(?<!\.metadata) \(([\d.]+) (\w+)\)", line):
            self.download(match[1], float(match[2]) * UNITS[match[3]], f"{match[2]} {match[3]}")
        elif match := re.match(r"Installing collected packages: (.*)", line):
            packages = match[1].count(",") + 1
            self.show(f"Installing {packages} package{'s' * (packages > 1)}", milestone=packages > 1)
        elif match := re.match(r"Successfully installed (.*)", line):
            self.installed = match[1].split()
        elif re.match(r"WARNING: Retrying", line):
            self.show("Trying again, as the network or the index does not answer", milestone=True)
        elif match := re.match(r"Collecting ([\w.-]+)", line):
            self.show(f"Looking up {match[1]}")

    def download(self, file: str, size: float, text: str) -> None:
        """Count a file that pip begins to download."""
        self.files += 1
        self.bytes += size
        name = file.rpartition("/")[2].partition("-")[0]
        self.show(f"Downloading {name}, {text}", milestone=size >= LARGE)

    def show(self, activity: str, milestone: bool = False) -> None:
        """Change the line of progress; without a terminal, print milestones only."""
        self.activity, self.percentage = activity, ""
        if milestone and not self.interactive:
            print(f"{activity} ...", flush=True)

    def draw(self) -> None:
        """Rewrite the line of progress, on a terminal."""
        details = [self.elapsed()]
        if self.files:
            details.insert(0, f"{self.files} files, {self.bytes / 1e6:.0f} MB")
        line = f"{self.activity}{self.percentage} ({'; '.join(details)})"
        # a line as wide as the terminal would wrap, and stay
        print(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)

    def elapsed(self) -> str:
        """Return the time since the start as minutes and seconds."""
        minutes, seconds = divmod(int(time.monotonic() - self.start), 60)
        return f"{minutes}:{seconds:02}"


def pip_install(log_path: str, arguments: list[str]) -> int:
    """Run pip, and return its exit status."""
    # since 24.1, pip also says how far a download is
    version = tuple(int(number) for number in re.findall(r"\d+", importlib.metadata.version("pip"))[:2])
    bar = "raw" if version >= (24, 1) else "off"
    command = [sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", bar, *arguments]
    progress = Progress()
    done = threading.Event()

    def tick() -> None:
        while not done.wait(0.5):
            progress.draw()

    ticker = threading.Thread(target=tick, daemon=True)
    tail: list[str] = []
    with (
        open(log_path, "a", buffering=1, encoding="utf-8") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
        ) as process,
    ):
        assert process.stdout is not None
        if progress.interactive:
            ticker.start()
        for line in process.stdout:
            progress.read(line.rstrip())
            if not line.startswith("Progress "):
                log.write(line)
                tail = [*tail, line][-TAIL:]
        status = process.wait()
    done.set()
    if progress.interactive:
        ticker.join()
        print("\r\033[K", end="", flush=True)
    if status:
        print("".join(tail) + f"pip failed; its whole output is in {log_path}", file=sys.stderr)
    elif len(progress.installed) > 1:
        size = f", {progress.bytes / 1e6:.0f} MB downloaded" if progress.files else ""
        print(f"Installed {len(progress.installed)} packages in {progress.elapsed()}{size}.", flush=True)
    # as a shell reports a signal
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    try:
        sys.exit(pip_install(sys.argv[1], sys.argv[2:]))
    except KeyboardInterrupt:
        print("\nInterrupted; run the same command again to go on.", file=sys.stderr)
        sys.exit(130)
