"""Run the server until it is stopped, and let it shut down gracefully (extra `serve`)."""

import signal
import socket

import uvicorn
from fastapi import FastAPI

_SHUTDOWN_MARGIN = 5  # seconds after the time limit of a request


def serve_until_stopped(app: FastAPI, sock: socket.socket, timeout: float) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that were accepted are still answered.

    Args:
        timeout: maximum seconds for a request.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        # uvicorn would log the address of every attempt
        ws="none",
        # it would contain what clients write into addresses
        access_log=False,
        timeout_graceful_shutdown=round(timeout) + _SHUTDOWN_MARGIN,
    )

    # When everything is answered, uvicorn raises the signal again, which must not end the process with an error.
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.Server(config).run([sock])
