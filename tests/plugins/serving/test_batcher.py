"""The queue of sentences: what is translated together, what is refused, and what is dropped."""

import contextlib
import random
import re
import time
from threading import Event, Thread, current_thread

import pytest

from hf_vanilla_transformer.plugins.serving import batcher as module
from hf_vanilla_transformer.plugins.serving.batcher import (
    Batcher,
    ModelError,
    QueueFullError,
    RequestTooLargeError,
    Sentence,
)

WORK = [("b", 15), ("a", 0)]  # functions, and the tokens that are translated in their time
SECONDS = 60  # for answers that come at once unless something hangs


class Recorder:
    """Translates ids into themselves, as text, and keeps the batches; waits at the gate before each."""

    def __init__(self):
        self.batches, self.gate, self.began = [], Event(), Event()
        self.gate.set()

    def __call__(self, sources, nbest):
        self.began.set()
        assert self.gate.wait(SECONDS)
        self.batches.append(sources)
        if [13] in sources:
            raise ValueError("unlucky")
        return [[f"{source} {rank}" for rank in range(nbest)] for source in sources]


class Queue:
    """A batcher whose sentences the recorder translates, unless another function is given."""

    def __init__(self, batcher, recorder):
        self.batcher, self.recorder = batcher, recorder

    def submit(self, sources, nbest=1, translate=None, check=None):
        return self.batcher.submit([Sentence(translate or self.recorder, ids, nbest, check) for ids in sources])


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def batcher(recorder):
    """A function that returns a batcher whose translations the recorder keeps."""
    batchers = []

    def build(max_tokens=100, max_delay=0.0, max_queue=100):
        batcher = Batcher(max_tokens, max_delay, max_queue)
        batchers.append(batcher)
        return Queue(batcher, recorder)

    yield build
    recorder.gate.set()
    for batcher in batchers:
        batcher.close()


def hold(batcher, recorder):
    """Keep the batcher busy with a sentence of its own until the gate opens."""
    recorder.gate.clear()
    first = batcher.submit([[0]])
    assert recorder.began.wait(SECONDS)
    return first


def test_sentences_that_arrive_while_a_batch_is_translated_form_the_next_one(batcher, recorder):
    queue = batcher()
    answers = hold(queue, recorder)
    for i in range(1, 6):
        answers += queue.submit([[i], [i, i]])
    recorder.gate.set()
    assert [answer.result(SECONDS)[0] for answer in answers][-2:] == ["[5] 0", "[5, 5] 0"]
    assert [len(batch) for batch in recorder.batches] == [1, 10]


def test_batches_hold_max_tokens_with_padding_in_the_order_of_arrival(batcher, recorder):
    queue = batcher(max_tokens=12)
    answers = hold(queue, recorder)
    answers += queue.submit([[1] * 2, [2] * 4, [3] * 4, [4] * 4, [5] * 20, [6], [7]])
    recorder.gate.set()
    for answer in answers:
        answer.result(SECONDS)
    assert [[source[0] for source in batch] for batch in recorder.batches] == [[0], [1, 2, 3], [4], [5], [6, 7]]


def test_an_idle_batcher_waits_for_others_as_long_as_told(batcher, recorder):
    queue = batcher(max_delay=1.0)
    start = time.monotonic()
    answers = [*queue.submit([[1]]), *queue.submit([[2]])]
    for answer in answers:
        answer.result(SECONDS)
    assert 1.0 <= time.monotonic() - start < SECONDS
    assert recorder.batches == [[[1], [2]]]


def test_a_full_batch_does_not_wait(batcher):
    queue = batcher(max_tokens=2, max_delay=10 * SECONDS)
    queue.submit([[1], [2], [3]])[0].result(SECONDS)


def test_a_full_queue_refuses_whole_requests_and_says_when_to_come_back(batcher, recorder):
    queue = batcher(max_queue=3)
    answers = hold(queue, recorder)
    answers += queue.submit([[1], [2]])
    with pytest.raises(QueueFullError) as refused:
        queue.submit([[3], [4]])
    assert refused.value.retry_after >= 1
    assert queue.batcher.queue_length() == 2
    answers += queue.submit([[3]])
    recorder.gate.set()
    for answer in answers:
        answer.result(SECONDS)
    assert recorder.batches[1] == [[1], [3], [2]]


def test_a_request_larger_than_the_queue_is_refused_even_if_nothing_waits(batcher):
    queue = batcher(max_queue=2)
    with pytest.raises(RequestTooLargeError, match="3 sentences, more than 2"):
        queue.submit([[1], [2], [3]])
    assert queue.submit([[1], [2]])[1].result(SECONDS) == ["[2] 0"]


def test_requests_take_turns(batcher, recorder):
    queue = batcher(max_tokens=1)
    answers = hold(queue, recorder)
    for letter, sentences in (("a", 5), ("b", 2), ("c", 1)):
        answers += queue.submit([[f"{letter}{i}"] for i in range(sentences)])
    recorder.gate.set()
    for answer in answers:
        answer.result(SECONDS)
    order = [source for ((source,),) in recorder.batches]
    assert order == [0, "a0", "b0", "c0", "a1", "b1", "a2", "a3", "a4"]


def test_a_request_that_arrives_later_waits_for_as_many_sentences_of_a_long_one_as_it_has(batcher, recorder):
    queue = batcher(max_tokens=3)
    answers = hold(queue, recorder)
    answers += queue.submit([[f"a{i}"] for i in range(9)])
    recorder.began.clear()
    recorder.gate.set()
    answers[2].result(SECONDS)  # a0 to a2 are one batch; another one has begun at the latest when the gate closes
    recorder.gate.clear()
    begun = sum(map(len, recorder.batches))
    late = queue.submit([["late"]])
    recorder.gate.set()
    late[0].result(SECONDS)
    order = [source for batch in recorder.batches for (source,) in batch]
    assert order.index("late") <= begun + 3 + 1 + 3  # the batch under way, one sentence of the long one, its own batch
    for answer in answers:
        answer.result(SECONDS)


def test_a_long_request_does_not_fill_the_queue_for_short_ones(batcher, recorder):
    queue = batcher(max_queue=4)
    answers = hold(queue, recorder)
    answers += queue.submit([[i] for i in range(4)])
    with pytest.raises(QueueFullError):
        queue.submit([[5], [6], [7]])
    answers += queue.submit([[8]])
    recorder.gate.set()
    for answer in answers:
        answer.result(SECONDS)


def test_whatever_is_accepted_has_at_most_the_queue_before_it(batcher, recorder):
    generator = random.Random(1)
    queue = batcher(max_tokens=1, max_queue=20)
    accepted = {}
    answers = hold(queue, recorder)
    for number in range(300):
        size = generator.randint(1, 20)
        with contextlib.suppress(QueueFullError):
            answers += queue.submit([[(number, i)] for i in range(size)])
            accepted[number] = size
    # of the largest requests 20, then of smaller ones what 20 turns have left: 20 (1 + 1/2 + 1/3 + ...) at most
    assert queue.batcher.queue_length() <= 20 * sum(1 / size for size in range(1, 21))
    recorder.gate.set()
    for answer in answers:
        answer.result(SECONDS)
    order = [source for ((source,),) in recorder.batches][1:]
    assert len(order) == sum(accepted.values())
    assert len(set(accepted.values())) > 3
    early = set()
    for number, size in accepted.items():
        # of those that were there already: later ones take turns with it
        early.add(number)
        before = [source for source in order[: order.index((number, size - 1))] if source[0] in early]
        assert len(before) < 20


def test_retry_after_follows_the_tokens_that_would_be_translated_first(batcher, recorder):
    queue = batcher(max_queue=10)
    queue.batcher._seconds_per_token = 0.5
    hold(queue, recorder)
    queue.submit([[1] * 4] * 10)
    with pytest.raises(QueueFullError) as refused:
        queue.submit([[2] * 4] * 10)
    assert refused.value.retry_after == 20  # of all ten
    with pytest.raises(QueueFullError) as refused:
        queue.submit([[2] * 4] * 6)
    assert refused.value.retry_after == 12  # of six, after which this request would have had its turns


def test_cancelled_sentences_are_not_translated(batcher, recorder):
    queue = batcher()
    answers = [*hold(queue, recorder), *queue.submit([[1], [2], [3]])]
    assert answers[2].cancel()
    recorder.gate.set()
    answers[3].result(SECONDS)
    assert recorder.batches == [[[0]], [[1], [3]]]


def test_a_sentence_that_fails_harms_no_other(batcher, recorder):
    queue = batcher()
    hold(queue, recorder)
    answers = queue.submit([[12], [13], [14]])
    recorder.gate.set()
    assert answers[0].result(SECONDS) == ["[12] 0"]
    assert answers[2].result(SECONDS) == ["[14] 0"]
    with pytest.raises(ValueError, match="unlucky"):
        answers[1].result(SECONDS)


def test_every_request_gets_as_many_hypotheses_as_it_asked_for(batcher, recorder):
    queue = batcher()
    hold(queue, recorder)
    (one,), (three,) = queue.submit([[1]]), queue.submit([[2]], nbest=3)
    recorder.gate.set()
    assert one.result(SECONDS) == ["[1] 0"]
    assert three.result(SECONDS) == ["[2] 0", "[2] 1", "[2] 2"]


def test_closing_translates_what_waits(batcher, recorder):
    queue = batcher(max_delay=60)
    answers = queue.submit([[1], [2]])
    queue.batcher.close()
    assert [answer.result(0)[0] for answer in answers] == ["[1] 0", "[2] 0"]


def test_sentences_of_different_models_are_translated_one_after_the_other_in_the_same_thread(batcher, recorder):
    threads = set()

    def other(sources, nbest):
        threads.add(current_thread())
        return [["other"] for _ in sources]

    queue = batcher()
    hold(queue, recorder)
    first, second, third = (queue.submit([[i]], translate=work) for i, work in enumerate((None, other, None), 1))
    function = Thread(target=lambda: threads.add(queue.batcher.run(current_thread)))
    function.start()
    recorder.gate.set()
    function.join(SECONDS)
    assert [answer.result(SECONDS)[0] for (answer,) in (first, second, third)] == ["[1] 0", "other", "[3] 0"]
    assert recorder.batches == [[[0]], [[1], [3]]]
    assert len(threads) == 1


def test_an_error_of_a_function_reaches_its_caller(batcher):
    with pytest.raises(ZeroDivisionError):
        batcher().batcher.run(lambda: 1 / 0)


def test_a_panic_does_not_end_the_thread(batcher):
    class PanicError(BaseException):
        """As a library that is not written in Python raises it."""

    def fail():
        raise PanicError

    queue = batcher()
    with pytest.raises(PanicError):
        queue.batcher.run(fail)
    assert queue.batcher.run(lambda: 1) == 1


def test_a_closed_batcher_accepts_nothing(batcher):
    queue = batcher()
    queue.batcher.close()
    with pytest.raises(RuntimeError, match="closed"):
        queue.submit([[1]])


def test_cancelled_sentences_make_room(batcher, recorder):
    queue = batcher(max_queue=2)
    hold(queue, recorder)
    for answer in queue.submit([[1], [2]]):
        answer.cancel()
    assert queue.batcher.queue_length() == 0
    assert len(queue.submit([[3], [4]])) == 2


def test_the_time_of_a_function_is_not_the_time_of_a_sentence(batcher, recorder):
    queue = batcher(max_queue=1)
    queue.batcher.run(lambda: recorder.gate.wait(0.5) and Event().wait(1.1))
    hold(queue, recorder)
    queue.submit([[1]])
    with pytest.raises(QueueFullError) as refused:
        queue.submit([[2]])
    assert refused.value.retry_after == 1


def test_turns_count_tokens_so_that_long_sentences_keep_no_short_one_waiting(batcher, recorder):
    queue = batcher(max_tokens=2048)
    answers = hold(queue, recorder)
    for letter in "abcd":
        answers += queue.submit([[letter] * 1000])
    answers += queue.submit([["short"] * 10, ["other"] * 10])
    answers += queue.submit([["two"] * 400] * 2)
    recorder.gate.set()
    for answer in answers:
        answer.result(SECONDS)
    order = [[source[0] for source in batch] for batch in recorder.batches]
    assert order == [[0], ["short", "other"], ["two", "two"], ["a", "b"], ["c", "d"]]


def test_a_long_sentence_has_its_turn_after_as_many_tokens_of_others(batcher, recorder):
    queue = batcher(max_tokens=50)
    answers = hold(queue, recorder)
    answers += queue.submit([["long"] * 200])
    answers += queue.submit([[i] * 50 for i in range(8)])
    recorder.gate.set()
    for answer in answers:
        answer.result(SECONDS)
    order = [source[0] for batch in recorder.batches for source in batch]
    assert order == [0, 0, 1, 2, "long", 3, 4, 5, 6, 7]


def test_sentences_of_very_different_lengths_share_no_batch(batcher, recorder):
    queue = batcher(max_tokens=10_000)
    answers = hold(queue, recorder)
    lengths = [1, 100, 40, 101, 250, 130, 600, 5]
    answers += queue.submit([[length] * length for length in lengths])
    recorder.gate.set()
    for answer in answers:
        answer.result(SECONDS)
    batches = [[source[0] for source in batch] for batch in recorder.batches[1:]]
    assert sorted(length for batch in batches for length in batch) == sorted(lengths)
    assert batches[0] == [1, 100, 40, 5]
    assert all(max(batch) <= max(100, 2 * min(batch)) for batch in batches)


@pytest.fixture
def no_pause(monkeypatch):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_CHECKS", 0.0)


def test_a_model_that_fails_for_every_sentence_is_given_up(batcher, recorder, no_pause):
    queue = batcher()
    checks = []

    def check():
        checks.append(queue.batcher.is_ready(SECONDS))
        raise RuntimeError("device-side assert")

    (failed,) = queue.submit([[13]], check=check)
    assert failed.exception(SECONDS)
    with pytest.raises(ModelError, match=r"the model fails for every sentence \(RuntimeError\)"):
        queue.batcher.run(lambda: 1)
    assert checks == [True, False, False]
    assert queue.batcher.problem(SECONDS) == "the model fails for every sentence (RuntimeError)"
    # nothing reaches it any more
    (later,) = queue.submit([[1]], check=check)
    assert isinstance(later.exception(SECONDS), ModelError)
    assert recorder.batches == [[[13]]]


def test_a_sentence_that_fails_alone_is_no_fault_of_the_model(batcher, recorder, no_pause):
    queue = batcher()
    results = iter([RuntimeError, None])

    def check():
        if error := next(results):
            raise error

    for _ in range(5):
        (failed,) = queue.submit([[13]], check=check)
        assert failed.exception(SECONDS)
        queue.batcher.run(lambda: 1)
        assert queue.batcher.is_ready(SECONDS)
        results = iter([RuntimeError, RuntimeError, None])


def test_a_batch_that_does_not_end_is_told_from_one_that_takes_long(batcher, recorder):
    queue = batcher()
    assert queue.batcher.is_ready(0)
    hold(queue, recorder)
    assert queue.batcher.problem(SECONDS) is None
    time.sleep(0.01)
    assert not queue.batcher.is_ready(0)
    assert re.fullmatch(r"the model has been at work on one batch for \d+ s", queue.batcher.problem(0))
    assert not queue.batcher.close(0)
    recorder.gate.set()
    assert queue.batcher.close(SECONDS)
    assert queue.batcher.is_ready(0)


def test_a_long_batch_gives_way_to_small_ones_again_and_again(batcher, recorder, monkeypatch):
    monkeypatch.setattr(module, "_SLICE", 0.0)
    queue = batcher(max_tokens=1000)
    order = []
    answers = []

    def search(sources, nbest):
        for step in range(3):
            order.append(step)
            if step < 2:
                # the first is not small, and two of the others are not together
                answers.extend(queue.submit([[step] * 51, [step] * 50, [step] * 1], translate=short))
            queue.batcher.give_way()
        return [["long"]]

    def short(sources, nbest):
        order.append([len(source) for source in sources])
        # what goes before others gives way to none
        queue.batcher.give_way()
        return [["short"] for _ in sources]

    (long,) = queue.submit([[0] * 200], translate=search)
    assert long.result(SECONDS) == ["long"]
    assert [answer.result(SECONDS) for answer in answers] == [["short"]] * 6
    assert order == [0, [50], 1, [1], 2, [50], [51, 51, 1]]


def test_all_that_is_small_goes_before_a_large_batch_for_a_while(batcher, recorder, monkeypatch):
    monkeypatch.setattr(module, "_SLICE", SECONDS)
    queue = batcher()
    answers = []

    def search(sources, nbest):
        for number in range(3):
            answers.extend([*queue.submit([[number] * 10]), queue.batcher.call(lambda: 1)])
        # as if a slice had passed
        queue.batcher._gives_way_at = 0.0
        queue.batcher.give_way()
        assert all(answer.done() for answer in answers)
        return [["long"]]

    (long,) = queue.submit([[0] * 80], translate=search)
    assert long.result(SECONDS) == ["long"]


def test_a_function_has_its_turn_after_as_many_tokens_as_it_takes_time(batcher, recorder):
    queue = batcher(max_tokens=10)
    answers = hold(queue, recorder)
    calls = [queue.batcher.call(lambda name=name: recorder.batches.append(name), tokens) for name, tokens in WORK]
    answers += queue.submit([[number] * 10 for number in range(1, 4)])
    recorder.gate.set()
    for answer in (*calls, *answers):
        answer.result(SECONDS)
    assert [batch if isinstance(batch, str) else batch[0][0] for batch in recorder.batches] == [0, "a", 1, "b", 2, 3]


def test_small_batches_give_way_to_none(batcher, recorder, monkeypatch):
    monkeypatch.setattr(module, "_SLICE", 0.0)
    queue = batcher()
    answers = []

    def search(sources, nbest):
        answers.extend(queue.submit([[1]]))
        queue.batcher.give_way()
        assert not answers[0].done()
        return [["first"]]

    (first,) = queue.submit([[0] * 3], translate=search)
    assert first.result(SECONDS) == ["first"]
    assert answers[0].result(SECONDS)


def test_a_small_batch_has_few_tokens_beside_the_largest_as_well(batcher, recorder, monkeypatch):
    monkeypatch.setattr(module, "_SLICE", 0.0)
    queue = batcher(max_tokens=2048)
    answers = []

    def search(sources, nbest):
        answers.extend(queue.submit([[1] * 10, *([[2] * 50] * 20)]))
        queue.batcher.give_way()
        return [["long"]]

    (long,) = queue.submit([[0] * 2000], translate=search)
    assert long.result(SECONDS) == ["long"]
    for answer in answers:
        answer.result(SECONDS)
    assert [len(source) for source in recorder.batches[0]] == [10, 50]


def test_the_number_of_cores_is_chosen_before_each_step(batcher, monkeypatch):
    calls = []
    monkeypatch.setattr(module.BusyCores, "begin", lambda self: calls.append("begin"))
    monkeypatch.setattr(module.BusyCores, "adapt", lambda self: calls.append("adapt"))
    queue = batcher()

    def search(sources, nbest):
        queue.batcher.give_way()
        queue.batcher.give_way()
        return [["done"]]

    for _ in range(2):
        assert queue.submit([[1]], translate=search)[0].result(SECONDS) == ["done"]
    assert calls == ["begin", "adapt", "adapt"] * 2


def test_a_batch_is_no_larger_than_what_is_translated_in_a_second(batcher, recorder):
    queue = batcher(max_tokens=2048)
    answers = hold(queue, recorder)
    # of which the first sentence, which is short, leaves nine tenths
    queue.batcher._seconds_per_short_token = 0.0055
    answers += queue.submit([[1] * 20] * 30)
    recorder.gate.set()
    for answer in answers:
        answer.result(SECONDS)
    assert len(recorder.batches[1]) == 10


@pytest.mark.parametrize("length", [99, 300])
def test_the_time_of_a_few_tokens_or_a_long_sentence_limits_no_batch(batcher, recorder, length):
    queue = batcher(max_tokens=2048)
    queue.submit([[1] * length], translate=lambda *_: Event().wait(1.0) or [["slow"]])[0].result(SECONDS)
    answers = hold(queue, recorder)
    answers += queue.submit([[1] * 20] * 30)
    recorder.gate.set()
    for answer in answers:
        answer.result(SECONDS)
    assert len(recorder.batches[1]) == 30


@pytest.mark.parametrize("lengths", [range(12, 21), [90, 5]], ids=["short", "mixed"])
def test_batches_are_large_again_after_a_slow_one(batcher, recorder, lengths):
    queue = batcher(max_tokens=2048, max_queue=2000)
    queue.batcher._seconds_per_short_token = 0.02
    answers = hold(queue, recorder)
    answers += queue.submit([[1] * length for _ in range(60) for length in lengths])
    recorder.gate.set()
    for answer in answers:
        answer.result(SECONDS)
    assert max(map(len, recorder.batches[:30])) * max(lengths) > 1000


def test_a_limit_is_forgotten_no_further_than_until_it_can_be_measured_again(batcher):
    queue = batcher(max_tokens=2048)
    queue.batcher._seconds_per_short_token = 0.02
    for _ in range(60):
        queue.submit([[1] * 10])[0].result(SECONDS)
    queue.batcher.run(lambda: 1)
    assert queue.batcher._seconds_per_short_token == 1 / 400


def test_neither_a_failure_nor_what_goes_first_counts_as_time_of_a_batch(batcher, recorder, monkeypatch):
    monkeypatch.setattr(module, "_SLICE", 0.0)
    queue = batcher(max_tokens=2048)

    def fail(sources, nbest):
        time.sleep(0.1)
        raise ValueError

    def search(sources, nbest):
        queue.submit([[1]], translate=lambda *_: time.sleep(2) or [["small"]])
        queue.batcher.give_way()
        return [["long"] for _ in sources]

    assert queue.submit([[1] * 100], translate=fail)[0].exception(SECONDS)
    queue.batcher.run(lambda: 1)
    assert queue.batcher._seconds_per_short_token == 0
    assert queue.submit([[1] * 100], translate=search)[0].result(SECONDS) == ["long"]
    queue.batcher.run(lambda: 1)
    assert 0 < queue.batcher._seconds_per_short_token < 0.015


def test_retry_after_follows_long_sentences_as_well(batcher, recorder):
    queue = batcher(max_queue=1)
    slow = queue.submit([[1] * 200], translate=lambda *_: time.sleep(0.4) or [["slow"]])
    slow[0].result(SECONDS)
    hold(queue, recorder)
    queue.submit([[1] * 1000])
    with pytest.raises(QueueFullError) as refused:
        queue.submit([[2] * 1000])
    assert refused.value.retry_after >= 2
