"""Translate the sentences of concurrent requests together, in the one thread in which all models run.

One thread, because PyTorch's threads (OpenMP) are several times slower as soon as a second thread of Python uses them.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, TypeVar

MAX_RETRY_AFTER = 60  # seconds, so that clients are back when the queue has long been empty
Translate = Callable[[list[list[int]], int], list[list[str]]]
_Result = TypeVar("_Result")


class QueueFullError(Exception):
    """The queue has no room for more sentences; `retry_after` says in how many seconds it probably will."""

    def __init__(self, retry_after: int):
        super().__init__(f"The server is busy: try again in {retry_after} s.")
        self.retry_after = retry_after


@dataclass(eq=False)
class Sentence:
    """A sentence to translate, once.

    Args:
        translate: returns the best hypotheses of each source, at least the number given, if that many exist.
            Sentences with the same function are translated together.
        ids: token ids.
        nbest: number of hypotheses wanted.

    Attributes:
        answer: the hypotheses, best first.
        deadline: on the clock of `time.monotonic`, when it is translated even if its batch is not full.
    """

    translate: Translate
    ids: list[int]
    nbest: int = 1
    answer: "Future[list[Any]]" = field(default_factory=Future, init=False)
    deadline: float = field(default=0.0, init=False)


class Batcher:
    """A queue of sentences, which are translated in the order of their arrival.

    While a batch is translated, sentences gather for the next one. An idle batcher waits for more sentences until the
    batch is full, the first has waited long enough, or a sentence for another model arrives.

    Args:
        max_tokens: maximum number of source tokens per batch, padding included; a longer sentence forms a batch of its
            own.
        max_delay: maximum seconds for which a sentence waits for others while nothing is being translated.
        max_queue: maximum number of queued sentences.
    """

    def __init__(self, max_tokens: int = 2048, max_delay: float = 0.005, max_queue: int = 1024):
        self._max_tokens = max_tokens
        self._max_delay = max_delay
        self._max_queue = max_queue
        self._waiting: deque[Sentence] = deque()
        self._changed = Condition()
        self._closed = False
        # Of the last batch, to tell those whom a full queue refuses when to come back.
        self._seconds_per_sentence = 0.0
        self._thread = Thread(target=self._work, name="models", daemon=True)
        self._thread.start()

    def queue_length(self) -> int:
        """Return the number of queued sentences."""
        return sum(not item.answer.cancelled() for item in list(self._waiting))

    def check_room(self, sentences: int = 1) -> None:
        """Check that there is room for so many sentences.

        Raises:
            QueueFullError: if there is not.
        """
        # The lock of a Condition can be taken again by the thread that has it, such as that of `submit`.
        with self._changed:
            self._drop_settled()
            # An empty queue takes any number: a request longer than the queue would otherwise never be accepted.
            if self._waiting and len(self._waiting) + sentences > self._max_queue:
                seconds = math.ceil(len(self._waiting) * self._seconds_per_sentence)
                raise QueueFullError(min(max(1, seconds), MAX_RETRY_AFTER))

    def submit(self, sentences: Sequence[Sentence]) -> list["Future[list[str]]"]:
        """Queue the sentences of a request, all or none, and return a future for the hypotheses of each, best first.

        A request of any size is accepted if nothing waits. Cancelled sentences are dropped.

        Raises:
            QueueFullError: if there is no room for all of them.
            RuntimeError: if the batcher is closed.
        """
        with self._changed:
            if self._closed:
                raise RuntimeError("The batcher is closed.")
            self.check_room(len(sentences))
            for sentence in sentences:
                # Functions, which have no ids, do not wait for others to be run with them.
                sentence.deadline = time.monotonic() + (self._max_delay if sentence.ids else 0.0)
            self._waiting.extend(sentences)
            self._changed.notify()
        return [sentence.answer for sentence in sentences]

    def run(self, function: Callable[[], _Result]) -> _Result:
        """Call a function on the model thread, queued with the sentences, and return its result.

        Raises:
            QueueFullError: if too many sentences wait.
        """
        (answer,) = self.submit([Sentence(lambda *_: [[function()]], [])])
        return answer.result()[0]  # type: ignore[return-value]

    def close(self) -> None:
        """Translate what waits, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            start = time.monotonic()
            _answer(batch)
            # A function has no ids, and its time says nothing about sentences.
            if batch[0].ids:
                self._seconds_per_sentence = (time.monotonic() - start) / len(batch)

    def _next_batch(self) -> list[Sentence]:
        """Wait for sentences and return those to translate next, at least one; none once closed."""
        with self._changed:
            while True:
                self._drop_settled()
                batch = self._first_batch()
                delay = batch[0].deadline - time.monotonic() if batch else None
                if not self._closed and len(batch) == len(self._waiting) and (delay is None or delay > 0):
                    self._changed.wait(delay)
                    continue

                # From here on they cannot be cancelled; those that were since the line above are left out.
                running = [item for item in batch if item.answer.set_running_or_notify_cancel()]
                self._drop_settled()
                if running or not batch:
                    return running

    def _drop_settled(self) -> None:
        """Keep only sentences that are neither cancelled nor being translated."""
        waiting = (item for item in self._waiting if not (item.answer.cancelled() or item.answer.running()))
        self._waiting = deque(waiting)

    def _first_batch(self) -> list[Sentence]:
        """Return the first of the queued sentences, and those for the same model that fit into its batch."""
        batch: list[Sentence] = []
        longest = 0
        for item in self._waiting:
            # Another model's turn comes later; its sentences do not end this batch.
            if batch and item.translate != batch[0].translate:
                continue
            # Every row of a batch is padded to its longest.
            longest = max(longest, len(item.ids))
            if batch and (len(batch) + 1) * longest > self._max_tokens:
                break
            batch.append(item)
        return batch


def _answer(batch: list[Sentence]) -> None:
    """Translate a batch; if that fails, translate its sentences one by one, so that a bad one harms no other."""
    try:
        found = batch[0].translate([item.ids for item in batch], max(item.nbest for item in batch))
        answers = list(zip(batch, found, strict=True))
    # A panic of tokenizers, for example, is no Exception, and must not end the thread.
    except BaseException as error:
        if len(batch) == 1:
            batch[0].answer.set_exception(error)
        else:
            for item in batch:
                _answer([item])
        return
    for item, hypotheses in answers:
        item.answer.set_result(hypotheses[: item.nbest])
