"""A terminal of 80 columns, for tests of what a person sees."""

import contextlib
import fcntl
import os
import pty
import struct
import termios
import threading
from types import TracebackType

_END = b"\x1a"


class Terminal:
    """A terminal of 80 columns: write to `stream`; `read` returns what it has shown, after which it is closed."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        self._shown = b""
        self._reader = threading.Thread(target=self._read_all, daemon=True)
        self._reader.start()

    def _read_all(self) -> None:
        # Linux reports the end of a terminal as an error
        with contextlib.suppress(OSError):
            while not self._shown.endswith(_END) and (part := os.read(self._master, 65536)):
                self._shown += part

    def read(self) -> str:
        # a mark, because the system may report the end before it has passed on all that was written
        self.stream.write(_END.decode())
        self.stream.flush()
        self._reader.join()
        self.stream.close()
        return self._shown.removesuffix(_END).decode().replace("\r\n", "\n")

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stream.close()
        self._reader.join()
        os.close(self._master)
