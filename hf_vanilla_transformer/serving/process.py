"""Run the server until it is stopped, and let it shut down gracefully (extra `serve`)."""

import signal
import socket

import uvicorn
from fastapi import FastAPI


def serve_until_stopped(app: FastAPI, sock: socket.socket, timeout: float) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that were accepted are still answered.

    Args:
        timeout: maximum seconds for a request.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        # With websockets, uvicorn would log the address of every attempt to open one.
        ws="none",
        # It would contain what clients write into addresses.
        access_log=False,
        # Some seconds more than a request may take, so that even one that has just arrived is answered.
        timeout_graceful_shutdown=round(timeout) + 5,
    )

    # When everything is answered, uvicorn raises the signal again, which must not end the process with an error.
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.Server(config).run([sock])
