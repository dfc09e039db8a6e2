"""Metrics of the server, for Prometheus (the extra `serve`)."""

from collections.abc import Callable
from functools import partial

from ..files import import_extra

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)
_BATCH_SIZES = [2**power for power in range(11)]


class Metrics:
    """Counters and histograms of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._prometheus = import_extra("prometheus_client", "serve")

        # Not the registry of the process, in which two servers could not both have a metric of the same name.
        self._registry = self._prometheus.CollectorRegistry()
        settings = {"namespace": "vanilla_transformer", "registry": self._registry}
        counter = partial(self._prometheus.Counter, **settings)
        gauge = partial(self._prometheus.Gauge, **settings)
        histogram = partial(self._prometheus.Histogram, **settings)

        self.requests = counter("requests", "Requests answered.", ["path", "status"])
        self.seconds = histogram("request_seconds", "Seconds per request.", ["path"], buckets=_SECONDS)
        self.sentences = counter("sentences", "Sentences translated.")
        self.tokens = counter("tokens", "Tokens read and generated.", ["side"])
        self.batches = histogram("batch_sentences", "Sentences per batch.", buckets=_BATCH_SIZES)
        self._queue = gauge("queue_sentences", "Queued sentences.")

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
