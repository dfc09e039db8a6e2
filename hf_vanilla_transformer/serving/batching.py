"""Translate the sentences of concurrent requests together, in a thread of its own for each model."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Condition, Thread
from typing import NamedTuple

Translate = Callable[[list[list[int]], int], list[list[str]]]


class QueueFullError(Exception):
    """The queue has no room for more sentences; `retry_after` says in how many seconds it probably will."""

    def __init__(self, retry_after: int):
        super().__init__(f"The server is busy: try again in {retry_after} s.")
        self.retry_after = retry_after


class _Sentence(NamedTuple):
    """A sentence that waits: its token ids, the number of hypotheses wanted, and who waits for them."""

    ids: Sequence[int]
    nbest: int
    answer: Future[list[str]]
    arrival: float


class Batcher:
    """A queue of sentences, which are translated in the order of their arrival.

    While a batch is translated, sentences gather for the next one. A batch is complete when another sentence would not
    fit, or when its first sentence has waited long enough.

    Args:
        translate: returns the best hypotheses, at least as many as the number given if there are, of each source.
        max_tokens: maximum number of source tokens per batch, padding included; a longer sentence forms a batch of its
            own.
        max_delay: maximum seconds for which a sentence waits for others while nothing is being translated.
        max_queue: maximum number of sentences that wait.
    """

    def __init__(self, translate: Translate, max_tokens: int, max_delay: float, max_queue: int):
        self._translate = translate
        self._max_tokens, self._max_delay, self._max_queue = max_tokens, max_delay, max_queue
        self._waiting: deque[_Sentence] = deque()
        self._changed = Condition()
        self._closed = False
        self._seconds_per_sentence = 0.0  # of the last batch
        self._thread = Thread(target=self._work, name="batcher", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of sentences that wait."""
        return len(self._waiting)

    def submit(self, sources: Sequence[Sequence[int]], nbest: int = 1) -> list[Future[list[str]]]:
        """Queue the sentences of a request, all or none, and return a future for the hypotheses of each, best first.

        A request of any size is accepted if nothing waits. Cancelled sentences are dropped.

        Raises:
            QueueFullError: if there is no room for all of them.
        """
        with self._changed:
            if self._waiting and len(self._waiting) + len(sources) > self._max_queue:
                raise QueueFullError(max(1, math.ceil(len(self._waiting) * self._seconds_per_sentence)))
            now = time.monotonic()
            sentences = [_Sentence(ids, nbest, Future(), now) for ids in sources]
            self._waiting.extend(sentences)
            self._changed.notify()
        return [sentence.answer for sentence in sentences]

    def close(self) -> None:
        """Translate what waits, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            start = time.monotonic()
            self._answer(batch)
            self._seconds_per_sentence = (time.monotonic() - start) / len(batch)

    def _next_batch(self) -> list[_Sentence]:
        """Wait for sentences and return those to translate next, at least one; none once closed."""
        with self._changed:
            while True:
                self._waiting = deque(sentence for sentence in self._waiting if not sentence.answer.cancelled())
                size, delay = self._batch_size(), None
                if size:
                    delay = self._waiting[0].arrival + self._max_delay - time.monotonic()
                if not self._closed and size == len(self._waiting) and (delay is None or delay > 0):
                    self._changed.wait(delay)
                    continue
                batch = [self._waiting.popleft() for _ in range(size)]
                running = [sentence for sentence in batch if sentence.answer.set_running_or_notify_cancel()]
                if running or not batch:
                    return running

    def _batch_size(self) -> int:
        """Return how many of the sentences that wait form the next batch."""
        longest = 0
        for size, sentence in enumerate(self._waiting):
            longest = max(longest, len(sentence.ids))
            if size and (size + 1) * longest > self._max_tokens:
                return size
        return len(self._waiting)

    def _answer(self, batch: list[_Sentence]) -> None:
        """Translate a batch; if that fails, translate its sentences one by one, so that a bad one harms no other."""
        try:
            found = self._translate([list(s.ids) for s in batch], max(s.nbest for s in batch))
        except Exception as error:
            if len(batch) == 1:
                batch[0].answer.set_exception(error)
            else:
                for sentence in batch:
                    self._answer([sentence])
            return
        for sentence, hypotheses in zip(batch, found, strict=True):
            sentence.answer.set_result(hypotheses[: sentence.nbest])
