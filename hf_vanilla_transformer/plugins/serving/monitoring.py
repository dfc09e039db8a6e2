"""Metrics for Prometheus, and a log of the requests (extra `serve`)."""

import asyncio
import time
import traceback
from dataclasses import dataclass, field
from functools import partial

from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from transformers.utils import logging

from .bodies import Bodies, Body
from .parameters import WITH_FILE, media_type

logger = logging.get_logger(__name__)

DOWNLOADS = "/download_file/"

# nginx's status for a client that has gone. It appears only in the log and the metrics.
CLIENT_CLOSED_REQUEST = 499

_NAME = "vanilla_transformer"
# Finer where a person notices the difference, up to the time limit of a request and beyond.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)
_SIZES = [2**power for power in range(11)]


class Metrics:
    """Counters and histograms of one server, in a registry of its own."""

    def __init__(self) -> None:
        # Not the registry of the process, in which two servers could not both have a metric of the same name.
        self._registry = registry = CollectorRegistry()

        # Prometheus appends "_total" to the names of counters.
        self.requests = Counter(f"{_NAME}_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.seconds = Histogram(f"{_NAME}_request_seconds", "Seconds.", ["path"], registry=registry, buckets=_SECONDS)
        self.sentences = Counter(f"{_NAME}_sentences", "Sentences translated.", registry=registry)
        self.tokens = Counter(f"{_NAME}_tokens", "Tokens read and generated.", ["side"], registry=registry)
        self.batches = Histogram(f"{_NAME}_batch_sentences", "Sentences per batch.", registry=registry, buckets=_SIZES)
        self.failures = Counter(f"{_NAME}_model_failures", "Batches that failed.", registry=registry)
        self.queue = Gauge(f"{_NAME}_queue_sentences", "Queued sentences.", registry=registry)

    async def response(self) -> Response:
        """Return all metrics in Prometheus' text format."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


@dataclass
class Watch:
    """Refuse bodies that are too large, measure requests, and log them without anything that their clients wrote.

    Args:
        app: the application behind it.
        max_bytes: the largest size of a body.
        max_file_bytes: that of a file in it.
    """

    app: ASGIApp
    metrics: Metrics
    max_bytes: int
    max_file_bytes: int
    bodies: Bodies = field(default_factory=Bodies, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        # Unless an answer begins, the client has gone.
        status = CLIENT_CLOSED_REQUEST
        # Every address that answers GET answers HEAD, too; the server leaves out the body
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        path = scope["path"].removeprefix(scope["root_path"])
        # Not other forms, whose fields could be too many to read.
        has_file = path == "/translate_file" and media_type(Headers(scope=scope)) == WITH_FILE
        max_bytes = self.max_bytes + (self.max_file_bytes if has_file else 0)
        start = time.perf_counter()

        body = scope.setdefault("state", {})["body"] = Body(self.bodies, max_bytes)

        async def send_watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, partial(body.receive, receive), send_watched)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        # Also a panic of tokenizers, which is no Exception. The message is left out, because it may quote a text.
        except BaseException as error:
            where = "".join(traceback.format_tb(error.__traceback__))
            logger.error("A request failed: %s\n%s", type(error).__name__, where)
            # An answer that has begun cannot be replaced by another.
            if status == CLIENT_CLOSED_REQUEST:
                await JSONResponse({"error": "The server failed."}, 500)(scope, receive, send_watched)
        finally:
            body.forget()
            seconds = time.perf_counter() - start
            # Clients write what they like into addresses, so only those of the API are logged and counted.
            path = f"{DOWNLOADS}{{name}}" if path.startswith(DOWNLOADS) else path
            if path not in {route.path for route in scope["app"].routes}:
                path = "other"
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(seconds)
            logger.info("%s: %d in %.0f ms", path, status, 1000 * seconds)
