"""Run the server until it is stopped: its connections, signals and log (extra `serve`)."""

import logging
import math
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from operator import attrgetter
from types import FrameType
from typing import Any, NoReturn

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ...errors import UserError
from .batcher import Batcher

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 4096
_OTHER_DESCRIPTORS = 96  # those that are not connections: models, libraries, the log
_SECONDS_BETWEEN_EQUAL_MESSAGES = 60
_DIFFERENT_MESSAGES = 1000  # remembered at a time


class _Connection(H11Protocol):
    """A connection that knows since when it has been in its present state: waiting for a request, or answering one.

    Args:
        max_connections: the largest number of connections of the server at a time.
    """

    def __init__(self, max_connections: int, **settings: Any):
        super().__init__(**settings)
        self.max_connections = max_connections

    def connection_made(self, transport) -> None:
        self.since = time.monotonic()
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            # The one that has waited longest: if new ones were refused, half-open ones would keep everybody out.
            waiting = [other for other in _connections(self.server_state) if other.waits_for_client]
            oldest = min(waiting, key=attrgetter("since"))
            oldest.transport.abort()
            # now, and not when the loop gets to it, which may accept others before
            self.connections.discard(oldest)

    @property
    def is_waiting(self) -> bool:
        """Return whether no complete head of a request has arrived since the last answer."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def waits_for_client(self) -> bool:
        """Return whether the next to act is the client: to send the rest of its request, or to take its answer."""
        return self.is_waiting or self.cycle.more_body or self.flow.write_paused

    def handle_events(self) -> None:
        earlier = self.cycle
        super().handle_events()
        if self.cycle is not earlier:
            self.since = time.monotonic()

    def on_response_complete(self) -> None:
        self.since = time.monotonic()
        super().on_response_complete()


def _connections(state: ServerState) -> list[_Connection]:
    return [connection for connection in state.connections if isinstance(connection, _Connection)]


class BoundedServer(uvicorn.Server):
    """A uvicorn server that closes every connection in time.

    A connection is closed if no request arrives on it within `timeout`, however slowly it sends, and if it has not
    taken its answer within twice that. If there are too many, the one that has waited longest is closed.

    Args:
        timeout: maximum seconds for a request.
        max_connections: the largest number of connections at a time.
        root_path: path below which a proxy shows the server, such as /mt, for its documentation.
        find_problem: returns why the server should end, or None.

    Attributes:
        problem: why it ends, unless it was told to.
        end: when it ends at the latest, on the clock of `time.monotonic`, once it ends.
    """

    def __init__(
        self,
        app: FastAPI,
        timeout: float,
        max_connections: int = MAX_CONNECTIONS,
        root_path: str = "",
        find_problem: Callable[[], str | None] = lambda: None,
    ):
        self.timeout = timeout
        self.problem: str | None = None
        self.end = math.inf
        self._find_problem = find_problem
        # Some seconds more than a request may take, so that even one that has just arrived is answered.
        longest = math.ceil(timeout) + 5
        connection: Any = partial(_Connection, max_connections)
        config = uvicorn.Config(
            app,
            # Not uvloop, which uvicorn would take if another package has installed it.
            loop="asyncio",
            http=connection,
            root_path=root_path,
            log_config=None,
            # With websockets, uvicorn would log the address of every attempt to open one.
            ws="none",
            # It would contain what clients write into addresses.
            access_log=False,
            # There is nothing to start, and one line less in the log.
            lifespan="off",
            # So many connections are accepted at a time, fewer than the spare descriptors if these are few.
            backlog=2048 if max_connections == MAX_CONNECTIONS else _OTHER_DESCRIPTORS // 2,
            timeout_graceful_shutdown=longest,
            # `on_tick` closes idle connections, with all others.
            timeout_keep_alive=longest,
        )
        super().__init__(config)

    async def on_tick(self, counter: int) -> bool:
        # about once per second
        if counter % 10 == 0:
            now = time.monotonic()
            if not self.should_exit and (problem := self._find_problem()):
                # requests that were accepted are still answered, with an error
                logger.error("The server ends: %s.", problem)
                self.problem = problem
                self._begin_to_exit()
            for connection in _connections(self.server_state):
                # `abort`, because `close` would wait until the client has taken what was sent
                if now - connection.since > self.timeout * (1 if connection.is_waiting else 2):
                    connection.transport.abort()
        return await super().on_tick(counter)

    def _begin_to_exit(self) -> None:
        self.should_exit = True
        self.end = min(self.end, time.monotonic() + self.timeout)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            _exit_at_once(130, "interrupted")
        # first, because it takes Ctrl-C for the second one if the server ends already
        super().handle_exit(sig, frame)
        self._begin_to_exit()


def _exit_at_once(status: int, reason: str) -> NoReturn:
    """End this process now: the interpreter's own end would wait for the models' thread, or abort it in torch."""
    os.write(2, f"vanilla-transformer: {reason}\n".encode())
    os._exit(status)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise a KeyboardInterrupt, and a second one end the process at once."""
    presses = count()

    def on_interrupt(*_: object) -> None:
        if next(presses):
            _exit_at_once(130, "interrupted")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def raise_descriptor_limit() -> int:
    """Allow this process as many open files as the system does, and return how many connections leave room for others.

    Every connection is an open file. Without a free one, the server could not even accept a connection to refuse it.
    """
    try:
        import resource
    except ImportError:  # on Windows, which has no such limit
        return MAX_CONNECTIONS
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Without a limit of the system, a limit of our own: macOS refuses infinity.
    wanted = max(limit, 10_240) if hard == resource.RLIM_INFINITY else hard
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        limit = wanted
    return max(16, min(MAX_CONNECTIONS, limit - _OTHER_DESCRIPTORS))


class RepeatedMessages(logging.Filter):
    """Let a warning or an error into the log once per minute."""

    def __init__(self) -> None:
        super().__init__()
        # when each was last written
        self._written: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        # Without what differs in otherwise equal messages: numbers, addresses, and the lines after the first.
        first, _, _ = record.getMessage().partition("\n")
        key = (record.name, re.sub(r"<.*>|0x[0-9a-f]+|[0-9]+", "", first))
        if len(self._written) > _DIFFERENT_MESSAGES:
            self._written.clear()
        if record.created - self._written.get(key, -math.inf) < _SECONDS_BETWEEN_EQUAL_MESSAGES:
            return False
        self._written[key] = record.created
        return True


def start_log() -> None:
    """Write what this package and uvicorn log to stderr, with the time."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatedMessages())
    # The root logger stays at its level: other libraries would log every request that they make.
    logging.basicConfig(format="%(asctime)s %(message)s", handlers=[handler])
    for name in ("hf_vanilla_transformer", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)


def serve_until_stopped(app: FastAPI, sock: socket.socket, timeout: float, root_path: str, batcher: Batcher) -> None:
    """Serve until SIGTERM, SIGHUP or Ctrl-C, or a model fails; requests that were accepted are still answered.

    Args:
        timeout, root_path: as for `BoundedServer`.
        batcher: is closed.

    Raises:
        UserError: if a model has failed for good, so that another server should be started.
    """
    # A search gives up Python's lock at each of its many operations, and would wait up to 5 ms for it each time
    sys.setswitchinterval(0.0005)
    server = BoundedServer(app, timeout, raise_descriptor_limit(), root_path, partial(batcher.problem, timeout))
    # before uvicorn does so, and when everything is answered: it then raises the signal again
    signal.signal(signal.SIGTERM, server.handle_exit)
    # A terminal that is closed, which `nohup` ignores; Windows has no such signal.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        # uvicorn raises KeyboardInterrupt after Ctrl-C, when everything is answered
        server.run([sock])
    finally:
        # Every request has been answered, so nothing is lost if what is still being translated is cut short.
        if not batcher.close(max(1.0, min(timeout, server.end - time.monotonic()))):
            _exit_at_once(1, server.problem or "ended while the model was still at work on a batch")
    if server.problem:
        raise UserError(f"{server.problem}; start the server again.")
