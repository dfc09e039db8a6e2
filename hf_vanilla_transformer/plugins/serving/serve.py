"""`vanilla-transformer serve`: serve translations over HTTP, with LibreTranslate's API, and a page for people."""

import ipaddress
import re
import socket
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...commands.console import say
from ...commands.models import decoding_settings, labels, load_translator
from ...commands.shared_flags import BatchFlags, DtypeFlags, GlossaryFlags, PlaceholderFlags, SearchFlags
from ...errors import UserError
from ...files import import_extra
from ...flags import number, option, positive, positive_number


@dataclass(kw_only=True)
class ServeArguments(GlossaryFlags, DtypeFlags, BatchFlags, SearchFlags, PlaceholderFlags):
    """The flags of `serve`.

    Args:
        model: folder of a trained model, or its name on the Hub; several models serve several directions
        host: address to listen on; by default, only from this machine
        port: port to listen on
        max_delay_ms: maximum time for which a sentence waits for others to be translated with it
        max_queue: maximum number of queued sentences
        max_characters: maximum size of a request
        timeout: maximum seconds for a request
        api_key_file: file with one API key per line; each request must pass one of them as api_key
        cors_origin: web sites whose pages may use the server (default: none)
        allowed_hosts: host names by which the server may be called, besides localhost (default: none if only this
            machine can connect, else any)
        root_path: path below which a proxy shows the server, such as /mt
        page: show the page
    """

    model: list[str] = option(metavar="MODEL", positional=True)
    host: str = option("127.0.0.1")
    port: int = option(5000, parse=number(int, "from 1 to 65535", low=1, below=65_536))
    max_delay_ms: float = option(5.0, parse=positive_number)
    max_queue: int = option(1024, parse=positive)
    max_characters: int = option(10_000, parse=positive)
    timeout: float = option(30.0, parse=positive_number)
    api_key_file: Path | None = option(None)
    cors_origin: list[str] = option([])
    allowed_hosts: list[str] = option([])
    root_path: str = option("")
    page: bool = option(True)

    def __post_init__(self):
        super().__post_init__()
        path = self.root_path.strip("/")
        self.root_path = f"/{path}" if path else ""
        for name in self.allowed_hosts:
            if not re.fullmatch(r"[\w.-]+", name):
                raise UserError(
                    f"--allowed_hosts {name}: give a host name alone, without a port, such as mt.example.org."
                )


def run(args: ServeArguments) -> None:
    """Serve until SIGTERM, after which requests that were accepted are still answered, or Ctrl-C."""
    import_extra("fastapi", "serve")
    from ...data.formats import read_lines
    from ...inference.glossary import read_glossary
    from .batcher import Batcher
    from .monitoring import Metrics
    from .process import interruptible, serve_until_stopped, start_log
    from .server import Server
    from .service import ServedModel, TranslationService

    # Whatever may be wrong with the flags is found before models are loaded, which can take minutes
    keys = []
    if args.api_key_file:
        keys = [line.strip() for line in read_lines(str(args.api_key_file)) if line.strip()]
        if not keys:
            raise UserError(f"{args.api_key_file} is empty: write one API key per line into it.")
    sock = _listen(args.host, args.port)

    # Closed even on Ctrl-C: Python aborts if its interpreter ends while a thread is in the middle of torch
    with interruptible(), closing(Batcher(args.max_tokens, args.max_delay_ms / 1000, args.max_queue)) as batcher:
        metrics = Metrics()
        metrics.queue.set_function(batcher.queue_length)
        models = []
        names = list(dict.fromkeys(args.model))
        for name, label in zip(names, labels(names), strict=True):
            # On the thread that will run it: PyTorch's threads are slow once a second thread of Python uses them
            load = partial(load_translator, [name], args.backend, args.dtype, batch_size=1, num_beams=args.num_beams)
            translator = batcher.run(load)
            # The clients see this name, but not the paths on this machine
            translator.name = label
            model = ServedModel(translator, decoding_settings(args), metrics)
            batcher.run(model.check)
            models.append(model)
        service = TranslationService(models, batcher, args.placeholders)
        if args.glossary:
            service.glossaries = read_glossary(args.glossary, list(service.directions))

        # From the socket, because the flag may be a name
        host, port = sock.getsockname()[:2]
        is_private = ipaddress.ip_address(host).is_loopback or bool(args.allowed_hosts)
        allowed_hosts = [name.lower() for name in args.allowed_hosts] if is_private else None
        server = Server(service, metrics, keys, args.max_characters, args.timeout)
        app = server.app(args.cors_origin, args.page, allowed_hosts)
        start_log()
        directions = ", ".join(f"{source} to {target}" for source, target in service.directions)
        say(f"Translating {directions} on http://{f'[{host}]' if ':' in host else host}:{port}; press Ctrl-C to stop.")
        serve_until_stopped(app, sock, args.timeout, args.root_path, batcher)


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address, an IPv6 one with or without brackets.

    Raises:
        OSError: if that is impossible; the message names the address.
    """
    try:
        family, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        # So many connections may wait to be accepted
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise OSError(f"Cannot listen on {host}, port {port}: {error.strerror or error}.") from None
