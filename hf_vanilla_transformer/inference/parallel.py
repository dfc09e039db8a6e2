"""Decide how many sentences one search takes, and run two searches at a time on two cores, each on one of them.

A search consists of many small operators, which two cores at once run badly; one on each core takes less time
(`python scripts/benchmarks/parallel.py` prints the ratios). With more cores, each search would need several threads of
its own, which has not been measured, so there a search uses all of them.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

MAX_TOKENS = 2048  # source tokens per batch, padding included, unless the user names a limit
AT_ONCE = 2
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def default_max_tokens(num_beams: int) -> int:
    """Return the default of the source tokens per batch: with one beam, twice as many as with several."""
    return 2 * MAX_TOKENS if num_beams == 1 else MAX_TOKENS


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Let torch use `count` cores in this thread of Python, and in those that start meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_faster_in_parallel(model: Any) -> bool:
    """Return whether several searches of a model are faster two at a time than one after the other on all cores."""
    # The number of cores of threads that start later is one for the whole process: two threads that changed it at the
    # same time would not restore it
    if torch.get_num_threads() != AT_ONCE or threading.current_thread() is not threading.main_thread():
        return False
    # Not a model of another library, nor a wrapper such as PEFT's, which forwards this to the model within
    is_thread_safe = hasattr(type(model), "is_thread_safe") and model.is_thread_safe
    # Sampling draws random numbers, which threads would share
    return is_thread_safe and not model.generation_config.do_sample


def run_in_parallel(search: Callable[[_Item], _Result], batches: Sequence[_Item]) -> Generator[_Result, None, None]:
    """Yield the result of `search` for each batch, in order; close the generator to end the rest."""

    def search_in_thread(batch: _Item) -> _Result:
        # which holds only for one thread
        with torch.inference_mode():
            return search(batch)

    with (
        use_threads(1),
        ThreadPoolExecutor(AT_ONCE, initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        yield from pool.map(search_in_thread, batches)
