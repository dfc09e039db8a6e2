"""`vanilla-transformer serve`: translate over HTTP, with LibreTranslate's API for programs and a page for people."""

import argparse
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from ..files import import_extra
from .console import UsageError, say
from .demo import listen
from .flags import add_backend, add_decoding, add_dtype, add_host, finite, positive
from .models import decoding_settings, load_models

HELP = "serve translations over HTTP, with LibreTranslate's API, and a page to try the models"
SHUTDOWN_MARGIN = 5  # seconds after the time limit of a request


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `serve`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="+",
        help="folder of a trained model, or its name on the Hub; several models serve several directions",
    )
    add_host(parser)
    parser.add_argument("--port", type=positive, default=5000, help="port to listen on (default: 5000)")
    for add in (add_backend, add_dtype, add_decoding):
        add(parser)
    parser.add_argument(
        "--max_delay_ms",
        type=finite,
        default=5.0,
        help="maximum time for which a sentence waits for others to be translated with it (default: 5)",
    )
    parser.add_argument(
        "--max_queue", type=positive, default=1024, help="maximum number of sentences that wait (default: 1024)"
    )
    parser.add_argument(
        "--max_characters", type=positive, default=10_000, help="maximum size of a request (default: 10000)"
    )
    parser.add_argument("--timeout", type=finite, default=30.0, help="maximum seconds for a request (default: 30)")
    parser.add_argument(
        "--api_key_file", type=Path, help="file with one key per line, of which requests must give one as api_key"
    )
    parser.add_argument(
        "--cors_origin", nargs="+", default=[], help="web sites whose pages may use the server (default: none)"
    )
    parser.add_argument("--no_page", action="store_true", help="leave out the page")


def run(args: argparse.Namespace) -> None:
    """Serve until SIGTERM, after which requests that were accepted are still answered, or Ctrl-C."""
    import_extra("fastapi", "serve")
    uvicorn: Any = import_extra("uvicorn", "serve")
    from ..serving.metrics import Metrics
    from ..serving.server import Server
    from ..serving.service import Limits, TranslationService, Translator

    if args.backend != "torch" and not args.no_page:
        raise UsageError(f"The page needs --backend torch; with {args.backend}, add --no_page.")
    keys = _read_keys(args.api_key_file) if args.api_key_file else []
    sock = listen(args.host, args.port)
    metrics = Metrics()
    limits = Limits(args.max_tokens, args.max_delay_ms / 1000, args.max_queue)
    loaded = {name: load_models([name], args.backend, args.dtype) for name in dict.fromkeys(args.model)}
    translators = [
        Translator(Path(name).name, *model, decoding_settings(args), limits, metrics) for name, model in loaded.items()
    ]
    service = TranslationService(translators)
    metrics.watch_queue(service.queue_length)
    app = Server(service, metrics, keys, args.max_characters, args.timeout).app(args.cors_origin)
    if not args.no_page:
        _mount_page(app, translators, keys)
    logging.basicConfig(format="%(asctime)s %(message)s", stream=sys.stderr)
    for name in ("hf_vanilla_transformer", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
    directions = ", ".join(f"{source} to {target}" for source, target in service.directions)
    say(f"Translating {directions} on http://{args.host}:{sock.getsockname()[1]}; Ctrl-C stops.")
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # would log addresses with what they ask for
        timeout_graceful_shutdown=round(args.timeout) + SHUTDOWN_MARGIN,
    )
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again when all requests are answered
    uvicorn.Server(config).run([sock])
    service.close()


def _mount_page(app: Any, translators: list[Any], keys: list[str]) -> None:
    """Add the page of `demo` to the server, behind a login if there are keys."""
    gradio = import_extra("gradio", "demo")
    from ..serving.page import Explorer, build_page

    page = build_page(*(Explorer(one.name, one.model, one.tokenizer, one.lock) for one in translators))
    login = (lambda user, password: password in keys) if keys else None
    message = "Any user name, with an API key as the password."
    gradio.mount_gradio_app(app, page, "/", auth=login, auth_message=message, max_file_size="1kb")


def _read_keys(file: Path) -> list[str]:
    """Return the API keys in a file.

    Raises:
        OSError: if it cannot be read.
        ValueError: if there are none.
    """
    keys = file.read_text(encoding="utf-8").split()
    if not keys:
        raise ValueError(f"{file} is empty: write one API key per line into it.")
    return keys
