"""A terminal of 80 columns, for tests of what a person sees."""

import fcntl
import os
import pty
import struct
import termios
from types import TracebackType


class Terminal:
    """A terminal of 80 columns: write to `stream`; `read` returns what it has shown, after which it is closed."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
        self.stream = os.fdopen(slave, "w", encoding="utf-8")

    def read(self) -> str:
        self.stream.close()
        shown = b""
        # Linux reports the end of a terminal as an error
        try:
            while part := os.read(self._master, 65536):
                shown += part
        except OSError:
            pass
        return shown.decode().replace("\r\n", "\n")

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stream.close()
        os.close(self._master)
