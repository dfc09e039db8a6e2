"""Metrics of the server, for Prometheus (the extra `serve`)."""

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_NAMESPACE = "vanilla_transformer"
# Finer where a person notices the difference, up to the time limit of a request and beyond.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)
_BATCH_SIZES = [2**power for power in range(11)]


class Metrics:
    """Counters and histograms of one server, in a registry of its own."""

    def __init__(self) -> None:
        # Not the registry of the process, in which two servers could not both have a metric of the same name.
        registry = CollectorRegistry()
        self._registry = registry

        # Prometheus appends "_total" to the names of counters.
        self.requests = Counter("requests", "Requests answered.", ["path", "status"], _NAMESPACE, registry=registry)
        self.sentences = Counter("sentences", "Sentences translated.", (), _NAMESPACE, registry=registry)
        self.tokens = Counter("tokens", "Tokens read and generated.", ["side"], _NAMESPACE, registry=registry)
        self._queue = Gauge("queue_sentences", "Queued sentences.", (), _NAMESPACE, registry=registry)
        self.seconds = Histogram(
            "request_seconds", "Seconds per request.", ["path"], _NAMESPACE, registry=registry, buckets=_SECONDS
        )
        self.batches = Histogram(
            "batch_sentences", "Sentences per batch.", (), _NAMESPACE, registry=registry, buckets=_BATCH_SIZES
        )

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
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
