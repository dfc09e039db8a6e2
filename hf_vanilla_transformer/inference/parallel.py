"""Run two searches at a time on a CPU, each on half of the cores.

A search consists of many small operators, which use all cores at once badly. Two batches at a time take less time than
one after the other on all cores (`python scripts/benchmarks/parallel.py` prints the ratios).
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

AT_ONCE = 2  # more would take more memory
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads in this thread of Python, and in those that start meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_of_each() -> int:
    """Return how many threads of torch each of the searches at a time uses."""
    return max(1, torch.get_num_threads() // AT_ONCE)


def run_in_parallel(search: Callable[[_Item], _Result], batches: Sequence[_Item]) -> Iterator[_Result]:
    """Yield the result of `search` for each batch, in order; an exception ends the rest."""

    def search_in_thread(batch: _Item) -> _Result:
        # which holds only for one thread
        with torch.inference_mode():
            return search(batch)

    threads = threads_of_each()
    with (
        use_threads(threads),
        ThreadPoolExecutor(AT_ONCE, initializer=torch.set_num_threads, initargs=(threads,)) as pool,
    ):
        yield from pool.map(search_in_thread, batches)
