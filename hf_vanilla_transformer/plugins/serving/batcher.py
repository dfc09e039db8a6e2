"""Translate the sentences of concurrent requests together, in the one thread in which all models run.

One thread, because PyTorch's threads (OpenMP) are several times slower as soon as a second thread of Python uses them
too, unless each uses only one core.
"""

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from operator import attrgetter
from threading import Condition, Thread
from typing import Any, TypeVar

from ...inference.hardware import BusyCores

MAX_RETRY_AFTER = 60  # seconds, so that clients are back when the queue has long been empty
_SHORT = 100  # tokens up to which sentences may share a batch, whatever their lengths
_SLICE = 0.25  # seconds of a batch, after which small ones go first, for as long
_SMALL = 4  # how many times fewer tokens than the batch under way a small one has
_MAX_SMALL = 100  # tokens of a small batch; more would keep short requests waiting, with sentences of long ones
_BATCH_SECONDS = 1.0  # of a batch, as far as is known, for which the short ones in it wait
_FORGETTING = 0.9  # what is left of the time of a token, with each batch that says little about it
_MOST_FORGOTTEN = _BATCH_SECONDS / (4 * _MAX_SMALL)  # seconds per token: the next batch of short ones says enough
_CHECKS = 3  # of a model, that it works, after one of its sentences has failed
_SECONDS_BETWEEN_CHECKS = 1.0
_TURN = attrgetter("turn")
Translate = Callable[[list[list[int]], int], list[list[Any]]]
_Result = TypeVar("_Result")


class QueueFullError(Exception):
    """The queue has no room for more sentences; `retry_after` says in how many seconds it probably will."""

    def __init__(self, retry_after: int):
        super().__init__(f"The server is busy: try again in {retry_after} s.")
        self.retry_after = retry_after


class ModelError(Exception):
    """A model has failed for good, and nothing is translated any more."""


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
        check: raises an error if the model does not work, whatever the sentence is.

    Attributes:
        answer: the hypotheses, best first.
        deadline: on the clock of `time.monotonic`, when it is translated even if its batch is not full.
        turn: the place of the sentence in the queue, on the clock of `Batcher`, which counts tokens.
    """

    translate: Translate
    ids: list[int]
    nbest: int = 1
    check: Callable[[], object] | None = None
    answer: "Future[list[Any]]" = field(default_factory=Future, init=False)
    deadline: float = field(default=0.0, init=False)
    turn: int = field(default=0, init=False)


class Batcher:
    """A queue of sentences, in which requests take turns: of each, as many tokens are translated as of any other.

    The turn of a sentence is that which the queue has reached when its request arrives, and the number of tokens of
    the request up to its end. Sentences are translated in the order of their turns (self-clocked fair queueing,
    Golestani 1994). So a short request waits for as many tokens of a long one as it has itself, and not for all of
    them. A batch has at most as many tokens as are translated in a second, for which the short requests in it wait. No
    sentence of more than 100 tokens shares a batch with those of less than half its length, which would wait until its
    search ends. Small batches and functions go before the end of a large one, if the model calls `give_way` before
    each step.

    While a batch is translated, sentences gather for the next one. An idle batcher waits for more sentences until the
    batch is full, the first has waited long enough, or a sentence for another model arrives.

    So there are three clocks: turns, which count tokens and order the queue; deadlines of sentences, until which an
    idle batcher waits; and the time of the present step, from which follow when small batches go first and whether the
    model hangs.

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
        self._cores = BusyCores()
        self._closed = False
        # When the present step of a search began, or the batch, if the model does not report its steps
        self._began: float | None = None
        # When small batches may go before the next step, and of how many tokens; none go before those
        self._gives_way_at = math.inf
        self._small = 0
        # Whether a model has failed and not worked since then, and why it is given up
        self._is_doubted = False
        self._failure: str | None = None
        # Of the last batch, which tells those whom a full queue refuses when to come back
        self._seconds_per_token = 0.0
        # Of a batch of many short sentences, which limits the next ones
        self._seconds_per_short_token = 0.0
        # For how many seconds the batch under way has given way to small ones
        self._given = 0.0
        self._thread = Thread(target=self._work, name="models", daemon=True)
        self._thread.start()

    def queue_length(self) -> int:
        """Return the number of queued sentences."""
        return sum(not item.answer.cancelled() for item in list(self._waiting))

    def problem(self, timeout: float) -> str | None:
        """Return why nothing is translated any more, or None.

        Args:
            timeout: maximum seconds for a request; a step of a model that takes twice as long will never end.
        """
        seconds = self._seconds_at_work()
        if seconds > 2 * timeout:
            return f"the model has been at work on one batch for {seconds:.0f} s"
        return self._failure

    def is_ready(self, timeout: float) -> bool:
        """Return whether sentences are translated within so many seconds, as far as is known."""
        return not self._is_doubted and self._seconds_at_work() <= timeout

    def _seconds_at_work(self) -> float:
        """Return for how long the model has been at work on its present step."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def check_room(self, sentences: int, tokens: int | None = None) -> None:
        """Check that there is room for a request of so many sentences, which have so many tokens, by default one each.

        Raises:
            QueueFullError: if too many sentences would be translated before and with them.
            RequestTooLargeError: if there are more than the queue holds.
        """
        if sentences > self._max_queue:
            raise RequestTooLargeError(f"The request has {sentences:,} sentences, more than {self._max_queue:,}.")
        # The lock of a Condition can be taken again by the thread that has it, such as that of `submit`.
        with self._changed:
            self._drop_settled()
            ahead = self._waiting[: bisect_right(self._waiting, self._turn + (tokens or sentences), key=_TURN)]
            if len(ahead) + sentences > self._max_queue:
                seconds = math.ceil(sum(len(item.ids) for item in ahead) * self._seconds_per_token)
                raise QueueFullError(min(max(1, seconds), MAX_RETRY_AFTER))

    def submit(self, sentences: Sequence[Sentence]) -> list["Future[list[Any]]"]:
        """Queue the sentences of a request, all or none, and return a future for the hypotheses of each, best first.

        Cancelled sentences are dropped.

        Raises:
            QueueFullError, RequestTooLargeError: if there is no room for all of them.
            RuntimeError: if the batcher is closed.
        """
        with self._changed:
            self.check_room(len(sentences), sum(len(sentence.ids) for sentence in sentences))
            self._queue(sentences)
        return [sentence.answer for sentence in sentences]

    def _queue(self, sentences: Sequence[Sentence], tokens: int = 0) -> None:
        with self._changed:
            if self._closed:
                raise RuntimeError("The batcher is closed.")
            turn = self._turn + tokens
            for sentence in sentences:
                turn += len(sentence.ids)
                # Functions, which have no ids, do not wait for others to be run with them.
                sentence.deadline = time.monotonic() + (self._max_delay if sentence.ids else 0.0)
                sentence.turn = turn
            # Both parts are sorted, so that this takes one pass over them.
            self._waiting = sorted([*self._waiting, *sentences], key=_TURN)
            self._changed.notify()

    def call(self, function: Callable[[], _Result], tokens: int = 0) -> "Future[list[_Result]]":
        """Queue a function for the model thread, and return a future for a list of its result.

        There is always room for it: it belongs to a request that has been accepted.

        Args:
            tokens: as many as are translated in the time of the function; its turn comes after these.
        """
        work = Sentence(lambda *_: [[function()]], [])
        self._queue([work], tokens)
        return work.answer

    def run(self, function: Callable[[], _Result]) -> _Result:
        """Call a function on the model thread, queued with the sentences, and return its result."""
        return self.call(function).result()[0]

    def close(self, seconds: float | None = None) -> bool:
        """Translate what waits, then stop; return whether that took no longer than so many seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while batch := self._next_batch():
            tokens = sum(len(item.ids) for item in batch)
            self._small = min(_MAX_SMALL, tokens // _SMALL)
            start = time.monotonic()
            self._gives_way_at = start + _SLICE if self._small else math.inf
            self._given = 0.0
            is_answered = self._answer(batch)
            # A function has no ids, and its time is not that of a sentence
            if tokens:
                self._seconds_per_token = (time.monotonic() - start - self._given) / tokens
            if tokens and is_answered:
                self._learn(tokens, len(batch))

    def _learn(self, tokens: int, sentences: int) -> None:
        """Learn from the time of the last batch how large the next ones may be."""
        before = self._seconds_per_short_token
        measured = self._seconds_per_token
        is_short = tokens <= _SHORT * sentences
        if is_short and tokens >= _MAX_SMALL:
            self._seconds_per_short_token = measured
            return
        # The time of a few tokens or of long sentences says little about a batch of short ones, which takes less for
        # each token. The limit grows until there are such batches again
        slowest = measured if is_short and 2 * tokens >= _MAX_SMALL else math.inf
        self._seconds_per_short_token = min(slowest, max(_FORGETTING * before, min(before, _MOST_FORGOTTEN)))

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

                running = self._start(batch)
                if running or not batch:
                    return running

    def _start(self, batch: list[Sentence]) -> list[Sentence]:
        """Take a batch out of the queue, and return it without what has been cancelled."""
        # From here on they cannot be cancelled; those that were meanwhile are left out.
        running = [item for item in batch if item.answer.set_running_or_notify_cancel()]
        self._drop_settled()
        self._turn = max([self._turn, *map(_TURN, running)])
        return running

    def give_way(self) -> None:
        """Translate small batches for a while if the one under way has had its share of time.

        A model calls this before each step of a search, on the model thread.
        """
        self._cores.adapt()
        self._began = began = time.monotonic()
        if began < self._gives_way_at:
            return
        self._gives_way_at = math.inf
        while batch := self._take_small():
            # without what the search under way has set for itself
            Context().run(self._answer, batch)
            if time.monotonic() - began >= _SLICE:
                break
        self._began = time.monotonic()
        self._given += self._began - began
        self._gives_way_at = self._began + _SLICE

    def _take_small(self) -> list[Sentence]:
        """Take a small batch out of the queue, and return it."""
        with self._changed:
            return self._start(self._first_batch(self._small))

    def _drop_settled(self) -> None:
        """Keep only sentences that are neither cancelled nor being translated."""
        self._waiting = [item for item in self._waiting if not (item.answer.cancelled() or item.answer.running())]

    def _first_batch(self, small: int | None = None) -> list[Sentence]:
        """Return the first of the queued sentences, and those for the same model that fit into its batch.

        Args:
            small: the maximum number of tokens of a small batch.
        """
        max_tokens = small or self._max_tokens
        if not small and self._seconds_per_short_token:
            max_tokens = min(max_tokens, max(_MAX_SMALL, int(_BATCH_SECONDS / self._seconds_per_short_token)))
        batch: list[Sentence] = []
        longest = 0
        shortest = self._max_tokens
        for item in self._waiting:
            # Another model's turn comes later; its sentences do not end this batch.
            if batch and item.translate != batch[0].translate:
                continue
            if small and len(item.ids) > small:
                continue
            # Every row of a batch is padded to its longest.
            padded = max(longest, len(item.ids))
            if batch and padded > max(_SHORT, 2 * min(shortest, len(item.ids))):
                continue
            if batch and (len(batch) + 1) * padded > max_tokens:
                break
            longest = padded
            shortest = min(shortest, len(item.ids))
            batch.append(item)
        return batch

    def _answer(self, batch: list[Sentence]) -> bool:
        """Translate a batch, and return whether that worked.

        If it fails, translate its sentences one by one, so that a bad one harms no other.
        """
        try:
            if self._failure:
                raise ModelError(self._failure)
            with self._working():
                translations = batch[0].translate([item.ids for item in batch], max(item.nbest for item in batch))
            answers = list(zip(batch, translations, strict=True))
        # A panic of tokenizers, for example, is no Exception, and must not end the thread.
        except BaseException as error:
            if len(batch) == 1:
                batch[0].answer.set_exception(error)
                self._check(batch[0])
            else:
                for item in batch:
                    self._answer([item])
            return False
        for item, hypotheses in answers:
            item.answer.set_result(hypotheses[: item.nbest])
        return True

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Know the model to be at work."""
        self._began = time.monotonic()
        self._cores.begin()
        try:
            yield
        finally:
            self._began = None

    def _check(self, failed: Sentence) -> None:
        """Find out whether the model still works after a sentence has failed, which may be to blame itself."""
        if failed.check is None or self._failure:
            return
        for _ in range(_CHECKS):
            try:
                with self._working():
                    failed.check()
                self._is_doubted = False
                return
            except BaseException as error:
                self._is_doubted = True
                reason = type(error).__name__
            time.sleep(_SECONDS_BETWEEN_CHECKS)
        self._failure = f"the model fails for every sentence ({reason})"
