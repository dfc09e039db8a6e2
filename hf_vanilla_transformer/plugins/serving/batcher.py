"""Translate the sentences of concurrent requests together, in the one thread in which all models run.

One thread, because PyTorch's threads (OpenMP) are several times slower as soon as a second thread of Python uses them
too, unless each uses only one core.
"""

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from operator import attrgetter
from threading import Condition, Thread
from typing import Any, TypeVar

MAX_RETRY_AFTER = 60  # seconds, so that clients are back when the queue has long been empty
_TURN = attrgetter("turn")
Translate = Callable[[list[list[int]], int], list[list[str]]]
_Result = TypeVar("_Result")


class QueueFullError(Exception):
    """The queue has no room for more sentences; `retry_after` says in how many seconds it probably will."""

    def __init__(self, retry_after: int):
        super().__init__(f"The server is busy: try again in {retry_after} s.")
        self.retry_after = retry_after


class RequestTooLargeError(ValueError):
    """A request has more sentences than the queue can ever hold; the message says so to whoever asked."""


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
        turn: the place of the sentence in the queue, on the clock of `Batcher`.
    """

    translate: Translate
    ids: list[int]
    nbest: int = 1
    answer: "Future[list[Any]]" = field(default_factory=Future, init=False)
    deadline: float = field(default=0.0, init=False)
    turn: int = field(default=0, init=False)


class Batcher:
    """A queue of sentences, in which requests take turns: each has one sentence translated, then the next request has.

    The sentences of a request get the turns that follow the one that the queue has reached, one each, and sentences
    are translated in the order of their turns (start-time fair queueing, Goyal et al. 1996). So a short request waits
    for as many sentences of a long one as it has itself, and not for all of them.

    While a batch is translated, sentences gather for the next one. An idle batcher waits for more sentences until the
    batch is full, the first has waited long enough, or a sentence for another model arrives.

    Args:
        max_tokens: maximum number of source tokens per batch, padding included; a longer sentence forms a batch of its
            own.
        max_delay: maximum seconds for which a sentence waits for others while nothing is being translated.
        max_queue: maximum number of sentences before and in a request, and so of its own sentences.
    """

    def __init__(self, max_tokens: int = 2048, max_delay: float = 0.005, max_queue: int = 1024):
        self._max_tokens = max_tokens
        self._max_delay = max_delay
        self._max_queue = max_queue
        # Sorted by turn; equal turns in the order of arrival.
        self._waiting: list[Sentence] = []
        # The latest turn of which a sentence has been translated.
        self._turn = 0
        self._changed = Condition()
        self._closed = False
        # Of the last batch, to tell those whom a full queue refuses when to come back.
        self._seconds_per_token = 0.0
        self._thread = Thread(target=self._work, name="models", daemon=True)
        self._thread.start()

    def queue_length(self) -> int:
        """Return the number of queued sentences."""
        return sum(not item.answer.cancelled() for item in list(self._waiting))

    def check_room(self, sentences: int = 1) -> None:
        """Check that there is room for a request of so many sentences.

        Raises:
            QueueFullError: if too many sentences would be translated before and with them.
            RequestTooLargeError: if there are more than the queue holds.
        """
        if sentences > self._max_queue:
            raise RequestTooLargeError(f"The request has {sentences:,} sentences, more than {self._max_queue:,}.")
        # The lock of a Condition can be taken again by the thread that has it, such as that of `submit`.
        with self._changed:
            self._drop_settled()
            ahead = self._waiting[: bisect_right(self._waiting, self._turn + sentences, key=_TURN)]
            if len(ahead) + sentences > self._max_queue:
                seconds = math.ceil(sum(len(item.ids) for item in ahead) * self._seconds_per_token)
                raise QueueFullError(min(max(1, seconds), MAX_RETRY_AFTER))

    def submit(self, sentences: Sequence[Sentence]) -> list["Future[list[str]]"]:
        """Queue the sentences of a request, all or none, and return a future for the hypotheses of each, best first.

        Cancelled sentences are dropped.

        Raises:
            QueueFullError, RequestTooLargeError: if there is no room for all of them.
            RuntimeError: if the batcher is closed.
        """
        with self._changed:
            self.check_room(len(sentences))
            self._queue(sentences)
        return [sentence.answer for sentence in sentences]

    def _queue(self, sentences: Sequence[Sentence]) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError("The batcher is closed.")
            for turn, sentence in enumerate(sentences, start=self._turn + 1):
                # Functions, which have no ids, do not wait for others to be run with them.
                sentence.deadline = time.monotonic() + (self._max_delay if sentence.ids else 0.0)
                sentence.turn = turn
            # Both parts are sorted, so that this takes one pass over them.
            self._waiting = sorted([*self._waiting, *sentences], key=_TURN)
            self._changed.notify()

    def call(self, function: Callable[[], _Result]) -> "Future[list[_Result]]":
        """Queue a function for the model thread, and return a future for a list of its result.

        There is always room for it: it belongs to a request that has been accepted.
        """
        work = Sentence(lambda *_: [[function()]], [])
        self._queue([work])
        return work.answer

    def run(self, function: Callable[[], _Result]) -> _Result:
        """Call a function on the model thread, queued with the sentences, and return its result."""
        return self.call(function).result()[0]

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
            if tokens := sum(len(item.ids) for item in batch):
                self._seconds_per_token = (time.monotonic() - start) / tokens

    def _next_batch(self) -> list[Sentence]:
        """Wait for sentences and return those to translate next, at least one; none once closed."""
        with self._changed:
            while True:
                self._drop_settled()
                batch = self._first_batch()
                delay = min(item.deadline for item in batch) - time.monotonic() if batch else None
                if not self._closed and len(batch) == len(self._waiting) and (delay is None or delay > 0):
                    self._changed.wait(delay)
                    continue

                # From here on they cannot be cancelled; those that were since the line above are left out.
                running = [item for item in batch if item.answer.set_running_or_notify_cancel()]
                self._drop_settled()
                self._turn = max([self._turn, *map(_TURN, running)])
                if running or not batch:
                    return running

    def _drop_settled(self) -> None:
        """Keep only sentences that are neither cancelled nor being translated."""
        self._waiting = [item for item in self._waiting if not (item.answer.cancelled() or item.answer.running())]

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
        translations = batch[0].translate([item.ids for item in batch], max(item.nbest for item in batch))
        answers = list(zip(batch, translations, strict=True))
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
