"""Metrics of the server, for Prometheus (the extra `serve`)."""

from fastapi import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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
