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


@dataclass(eq=False)
class Body:
    """The body of a request, of which parts may still arrive.

    Args:
        others: all bodies, including this one while the request is answered.
        max_bytes: its largest size.

    Attributes:
        size: the bytes that have arrived.
        has_key: whether the client has shown a key.
    """

    others: "set[Body]"
    max_bytes: int
    size: int = field(default=0, init=False)
    has_key: bool = field(default=False, init=False)
    _is_complete: bool = field(default=False, init=False)
    _is_dropped: bool = field(default=False, init=False)
    _next: "asyncio.Future[Message] | None" = field(default=None, init=False)

    async def receive(self, receive: Receive) -> Message:
        """Return the next message of a request.

        Raises:
            HTTPException: if the body is too large, alone or together with the others.
        """
        self._check_room()
        self._next = asyncio.ensure_future(receive())
        try:
            message = await self._next
        except asyncio.CancelledError:
            self._check_room()
            raise
        # The size is counted as the body arrives: Content-Length may be absent or wrong.
        self.size += len(message.get("body", b""))
        if self.size > self.max_bytes:
            raise HTTPException(413, f"Invalid request: it is larger than {self.max_bytes:,} bytes")
        if not self._is_complete:
            self._make_room()
        self._is_complete = not message.get("more_body")
        return message

    def accept_key(self) -> None:
        """Count this body among those of clients with a key.

        Raises:
            HTTPException: if they have no room for it.
        """
        self.has_key = True
        self._make_room()

    def _make_room(self) -> None:
        """Drop the largest of this body and those that still arrive, while all of them together take too much."""
        equals = [body for body in self.others if body.has_key == self.has_key and not body._is_dropped]
        while sum(body.size for body in equals) > MAX_BYTES:
            unfinished = [body for body in equals if body is self or not body._is_complete]
            largest = max(unfinished, key=attrgetter("size"))
            equals.remove(largest)
            largest._is_dropped = True
            if largest._next:
                largest._next.cancel()
        self._check_room()

    def _check_room(self) -> None:
        if self._is_dropped:
            message = "The server is busy with other large requests: try again later."
            raise HTTPException(503, message, {"Retry-After": _RETRY_AFTER})
