"""Metrics of the server, for Prometheus (the extra `serve`)."""

from collections.abc import Callable
from typing import Any

from ..files import import_extra


class Metrics:
    """Counters and histograms of one server, in a registry of its own."""

    def __init__(self) -> None:
        prometheus = import_extra("prometheus_client", "serve")
        self._registry = prometheus.CollectorRegistry()
        self._prometheus = prometheus
        settings: dict[str, Any] = {"namespace": "vanilla_transformer", "registry": self._registry}
        self.requests = prometheus.Counter("requests", "Requests answered.", ["path", "status"], **settings)
        seconds = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)
        self.seconds = prometheus.Histogram(
            "request_seconds", "Seconds per request.", ["path"], buckets=seconds, **settings
        )
        self.sentences = prometheus.Counter("sentences", "Sentences translated.", **settings)
        self.tokens = prometheus.Counter("tokens", "Tokens read and generated.", ["side"], **settings)
        sizes = [2**power for power in range(11)]
        self.batches = prometheus.Histogram("batch_sentences", "Sentences per batch.", buckets=sizes, **settings)
        self._queue = prometheus.Gauge("queue_sentences", "Queued sentences.", **settings)

    def watch_queue(self, length: Callable[[], float]) -> None:
        """Report what `length` returns as the length of the queue."""
        self._queue.set_function(length)

    def count_batch(self, sources: list[list[int]], target_tokens: int) -> None:
        """Count a batch that was translated."""
        self.batches.observe(len(sources))
        self.sentences.inc(len(sources))
        self.tokens.labels("source").inc(sum(map(len, sources)))
        self.tokens.labels("target").inc(target_tokens)

    def render(self) -> tuple[bytes, str]:
        """Return all metrics in Prometheus' text format, and its media type."""
        return self._prometheus.generate_latest(self._registry), self._prometheus.CONTENT_TYPE_LATEST
