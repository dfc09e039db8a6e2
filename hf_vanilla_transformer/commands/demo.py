"""`vanilla-transformer demo`: serve a web page to try a model: translations, n-best lists, attention."""

import socket
from dataclasses import dataclass

from ..flags import option, positive
from .shared_flags import DtypeFlags, HostFlags, ModelFlags


@dataclass(kw_only=True)
class DemoArguments(ModelFlags, DtypeFlags, HostFlags):
    """The flags of `demo`."""

    port: int | None = option("port to listen on (default: the first free port from 7860)", None, parse=positive)


def run(args: DemoArguments) -> None:
    """Serve the page until Ctrl-C."""
    from ..inference.attention import Explorer
    from ..serving.explorer import build_page

    # Gradio would only report a used port after it has tried for most of a minute, and after the model is loaded
    listen(args.host, args.port).close()
    page = build_page(Explorer.load(args.model, args.dtype or "float32"))
    host = args.host.strip("[]")
    page.launch(server_name=f"[{host}]" if ":" in host else host, server_port=args.port)


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on an address, an IPv6 one with or without brackets; without a port, on any.

    Raises:
        OSError: if that is impossible; the message names the address.
    """
    try:
        # Python's own error for this is an OverflowError
        if port and port > 65_535:
            raise OSError("the highest port is 65535")
        family, *_, address = socket.getaddrinfo(host.strip("[]"), port or 0, type=socket.SOCK_STREAM)[0]
        # So many connections may wait to be accepted
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise OSError(f"Cannot listen on {host}, port {port or 'any'}: {error.strerror or error}.") from None
