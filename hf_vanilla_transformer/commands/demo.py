"""`vanilla-transformer demo`: a web page to try a model."""

import argparse
import socket

from .flags import add_dtype, add_model, positive

HELP = "serve a web page to try a model: translations, n-best lists, attention"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `demo`."""
    add_model(parser)
    add_dtype(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, only this machine)"
    )
    parser.add_argument("--port", type=positive, help="port to listen on (default: the first free port from 7860)")


def run(args: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C."""
    from ..serving.page import build_page

    try:  # check the address first, because Gradio would retry for most of a minute
        host = args.host.removeprefix("[").removesuffix("]")
        family, *_, address = socket.getaddrinfo(host, args.port or 0, type=socket.SOCK_STREAM)[0]
        with socket.create_server(address[:2], family=family):
            pass
    except OSError as error:
        raise OSError(f"Cannot listen on {args.host}, port {args.port or 'any'}: {error.strerror or error}.") from None
    page = build_page(args.model, args.dtype or "float32")
    page.launch(server_name=f"[{host}]" if ":" in host else host, server_port=args.port)
