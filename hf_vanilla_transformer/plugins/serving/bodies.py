"""Bound the memory that the bodies of all requests take together (extra `serve`).

Strangers and holders of a key have each a limit of their own, so that strangers, who may leave any number of uploads
unfinished, take no room from the others. Where the server is open to all, everyone is a stranger.
"""

import asyncio
from dataclasses import dataclass, field
from operator import attrgetter

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

MAX_BYTES = 64 << 20  # of the bodies of strangers, and again of those with a key
_RETRY_AFTER = "5"  # seconds


class Bodies:
    """The bodies of all requests that are being answered."""

    def __init__(self) -> None:
        self.arriving: set[Body] = set()
        # the size of those of strangers (False) and of those with a key (True)
        self.bytes = {False: 0, True: 0}


@dataclass(eq=False)
class Body:
    """The body of a request, of which parts may still arrive.

    Args:
        others: all bodies, including this one until it is forgotten.
        max_bytes: its largest size.

    Attributes:
        size: the bytes that have arrived and are kept.
        has_key: whether the client has shown a key.
    """

    others: Bodies
    max_bytes: int
    size: int = field(default=0, init=False)
    has_key: bool = field(default=False, init=False)
    _is_dropped: bool = field(default=False, init=False)
    _next: "asyncio.Future[Message] | None" = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.others.arriving.add(self)

    async def receive(self, receive: Receive) -> Message:
        """Return the next message of a request.

        Raises:
            HTTPException: if the body is too large, alone or together with the others.
        """
        self._check_room()
        self._next = asyncio.ensure_future(receive())
        try:
            message = await self._next
        finally:
            # it may have been dropped, and so cancelled, meanwhile
            self._check_room()
        # The size is counted as the body arrives: Content-Length may be absent or wrong.
        self._count(len(message.get("body", b"")))
        if self.size > self.max_bytes:
            raise HTTPException(413, f"Invalid request: it is larger than {self.max_bytes:,} bytes")
        self._make_room()
        if not message.get("more_body"):
            self.others.arriving.discard(self)
        return message

    def accept_key(self) -> None:
        """Count this body among those of clients with a key.

        Raises:
            HTTPException: if they have no room for it.
        """
        size = self.size
        self._count(-size)
        self.has_key = True
        self._count(size)
        self._make_room()

    def forget(self) -> None:
        """Leave its room to others, when its request is answered."""
        self._count(-self.size)
        self.others.arriving.discard(self)

    def _count(self, size: int) -> None:
        self.size += size
        self.others.bytes[self.has_key] += size

    def _make_room(self) -> None:
        """Drop the largest of this body and those that still arrive, while all of them together take too much."""
        while self.others.bytes[self.has_key] > MAX_BYTES:
            unfinished = [body for body in {self, *self.others.arriving} if body.has_key == self.has_key]
            largest = max(unfinished, key=attrgetter("size"))
            largest._is_dropped = True
            largest.forget()
            if largest._next:
                largest._next.cancel()
        self._check_room()

    def _check_room(self) -> None:
        if self._is_dropped:
            message = "The server is busy with other large requests: try again later."
            raise HTTPException(503, message, {"Retry-After": _RETRY_AFTER})
