"""`vanilla-transformer demo`: serve a web page to try a model: translations, n-best lists, attention."""

from dataclasses import dataclass

from ...commands.shared_flags import DtypeFlags, ModelFlags
from ...flags import option, positive


@dataclass(kw_only=True)
class DemoArguments(ModelFlags, DtypeFlags):
    """The flags of `demo`.

    Args:
        host: address to listen on; by default, only from this machine
        port: port to listen on (default: the first free port from 7860)
    """

    host: str = option("127.0.0.1")
    port: int | None = option(None, parse=positive)


def run(args: DemoArguments) -> None:
    """Serve the page until Ctrl-C."""
    from ...inference.attention import Explorer
    from .gradio_page import build_page

    page = build_page(Explorer.load(args.model, args.dtype or "float32"))
    host = args.host.strip("[]")
    page.launch(server_name=f"[{host}]" if ":" in host else host, server_port=args.port)


def push_space(repo_id: str, private: bool | None = None) -> str:
    """Create a Space with the page for a model on the Hub, and return its URL; `push --space` calls this."""
    from .space import create_space

    return create_space(repo_id, private)
