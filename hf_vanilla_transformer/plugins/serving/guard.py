"""Refuse requests by what their headers say about where they come from (extra `serve`).

A web page can send requests to a server on its reader's own machine: to its address, as a foreign page, or, after its
name has been made to point to that machine (DNS rebinding), as a page of the same site, which may read the answers.
"""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send


@dataclass
class Guard:
    """Refuse requests to foreign host names and from foreign pages.

    Args:
        app: the application behind it.
        hosts: host names, besides those of this machine, by which the server may be called; None for any.
        origins: the web sites whose pages may use the server; "*" for all.
    """

    app: ASGIApp
    hosts: Collection[str] | None = None
    origins: Collection[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        origin = headers.get("origin")
        problem = None
        if self.hosts is not None and not _is_local(host) and _name(host) not in self.hosts:
            problem = "The server is not known by this host name; --allowed_hosts names others."
        # A browser names the origin of the page in requests to other sites, and to its own unless they only read.
        elif origin and "*" not in self.origins and origin not in self.origins and not _is_own_page(headers):
            problem = "Pages of this site may not use the server; --cors_origin names those that may."
        if problem:
            return await JSONResponse({"error": problem}, 403)(scope, receive, send)
        await self.app(scope, receive, send)


def _is_own_page(headers: Headers) -> bool:
    """Return whether a request comes from a page of the server, as its browser says or as its names show.

    No script can set the first header, but older browsers do not send it. A proxy may change the host name.
    """
    if headers.get("sec-fetch-site") == "same-origin":
        return True
    own = headers.get("host", "").removesuffix(":80").removesuffix(":443")
    # an origin has no path
    return headers.get("origin", "").partition("://")[2] == own


def _name(host: str) -> str:
    """Return the name in a Host header without its port, or an empty text if there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # unmatched brackets
        return host


def _is_local(host: str) -> bool:
    """Return whether a Host header has the name or an address of this machine, or is empty.

    Any IP address counts: a page can make its own name point anywhere, but the browser then still sends the name.
    """
    name = _name(host)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in ("", "localhost") or name.endswith(".localhost")
    return True
