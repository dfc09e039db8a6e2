"""CUDA graphs of the steps of a search: the host starts one graph per position instead of hundreds of kernels.

A graph repeats its kernels with the same shapes at the same addresses. So a search gets its memory in advance (see
`fast_search_vanilla_transformer.py`), and batches share the graph of a *bucket*: the number of sentences and the
length of the sources are rounded up to few sizes, and the capacity for output tokens doubles when it is used up. A
search moves to another bucket by copying its tensors; its own graph, if any, stays for later searches.

`lend_graphs` decides whether a search may use graphs, and `StepGraphs` which of them to capture and keep. What this
module needs of a search is the class `Search` there.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch

logger = logging.getLogger(__name__)

# Positions that are decoded in a bucket, by any number of searches, before it gets a graph. On an H100, a capture
# takes 18 to 66 ms, and a graph saves about 4 ms per position. Waiting until as much has been lost as the capture
# costs is never more than twice as expensive as knowing in advance, and a single short sentence captures nothing.
POSITIONS_BEFORE_CAPTURE = 16
# Positions between two questions to the device whether all sentences are done
CHECK_INTERVAL = 8
# The number of hypotheses from which a GPU takes less time for half of them: with 1,024, it saves 0.7 ms of 2 per
# position
MIN_HYPOTHESES_TO_SHRINK = 256
MIN_CAPACITY = 8
# as torch recommends, so that libraries allocate their memory before the capture
WARM_UP_STEPS = 2
MAX_BUCKETS = 32
# of the device's memory, the part that the tensors of a model's graphs may take, without intermediate results
MEMORY_SHARE = 1 / 8

# torch captures one graph at a time in a process
_capturing = Lock()
# the graphs of each model, for as long as it lives
_graphs: "WeakKeyDictionary[torch.nn.Module, StepGraphs]" = WeakKeyDictionary()


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()


def bucket(size: int) -> int:
    """Return the smallest power of two, or three quarters of one, that is at least `size`."""
    power = power_of_two(size)
    return power * 3 // 4 if power % 4 == 0 and size <= power * 3 // 4 else power


class CudaRecorder:
    """Capture functions as CUDA graphs, which share one pool of memory: none has a result there after its replay."""

    def __init__(self, device: torch.device):
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()
        self.memory = int(torch.cuda.get_device_properties(device).total_memory * MEMORY_SHARE)

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        """Return a function that repeats what `step` does on the device."""
        # a capture that fails leaves its own stream the current one
        with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.current_stream(self.device)):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP_STEPS):
                    step()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # other threads may use the device meanwhile
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                step()
        return graph.replay


def find_recorder(device: torch.device) -> type[CudaRecorder] | None:
    """Return the class that captures functions on a device; None if it has no graphs."""
    return CudaRecorder if device.type == "cuda" else None


class _Graph:
    """A captured step, with a search whose tensors it reads and replaces by new values."""

    def __init__(self, search: Any, recorder: CudaRecorder):
        # tensors that are modified later, which those of inference mode forbid
        with torch.inference_mode(False), torch.no_grad():
            self.search = search.clone()
            self.slots = self.search.slots()
            self.memory = self.search.memory
            # the steps of the warm-up always have room
            self.search.decoder.position.zero_()
            self.replay = recorder.capture(self._step)

    def _step(self) -> None:
        before = [slot.tensor for slot in self.slots]
        self.search.step()
        for slot, tensor in zip(self.slots, before, strict=True):
            if slot.tensor is not tensor:
                tensor.copy_(slot.tensor)
                slot.put(tensor)

    def load(self, search: Any) -> None:
        """Continue `search`, which is of the same bucket."""
        for mine, given in zip(self.slots, search.slots(), strict=True):
            if mine.tensor is not given.tensor:
                mine.tensor.copy_(given.tensor)


class StepGraphs:
    """The graphs of a model's searches, by bucket; one search at a time uses them.

    Args:
        weights: the addresses of the model's weights, which the graphs read.
    """

    def __init__(self, recorder: CudaRecorder, weights: tuple):
        self.recorder = recorder
        self.weights = weights
        self.lock = Lock()
        self.has_failed = False
        # least recently used first; without a graph yet, the number of positions decoded
        self.buckets: OrderedDict[tuple, _Graph | int] = OrderedDict()

    def run(self, search: Any, results: Any, before_step: Callable[[], None]) -> None:
        """Run a search to its end.

        Args:
            search: a new one, with a capacity.
            results: collects the results of its sentences.
            before_step: called before each step.
        """
        signature = search.signature()
        position = 0
        while True:
            batch, _, capacity = search.shape
            count = min(CHECK_INTERVAL, capacity - position)
            graph = self._find((signature, *search.shape), search, count)
            if graph is not None:
                search = graph.search
            step = search.step if graph is None else graph.replay
            for _ in range(count):
                before_step()
                step()
            position += count

            # waits for the device
            live = batch - int(search.state.done.sum())
            if live == 0:
                break
            size = self._next_size(signature, search, live, count)
            if size < batch or position == capacity:
                results.collect(search)
                search = self._move(search, size, 2 * capacity if position == capacity else capacity)
        results.collect(search)

    def _find(self, key: tuple, search: Any, count: int) -> _Graph | None:
        """Return the graph of a bucket, with the tensors of `search`, or None if `count` positions run without one."""
        if not self._is_worth_a_graph(key, count):
            return None
        known = self.buckets[key]
        graph = self._capture(search) if isinstance(known, int) else known
        if graph is None:
            return None
        self.buckets[key] = graph
        if search is not graph.search:
            graph.load(search)
        return graph

    def _is_worth_a_graph(self, key: tuple, count: int) -> bool:
        """Return whether a bucket has a graph or is to get one; otherwise count positions that would have used it."""
        if self.has_failed:
            return False
        known = self.buckets.setdefault(key, 0)
        self.buckets.move_to_end(key)
        if isinstance(known, int) and known < POSITIONS_BEFORE_CAPTURE:
            self.buckets[key] = known + count
            self._make_room(0)
            return False
        return True

    def _capture(self, search: Any) -> _Graph | None:
        """Return a new graph; None if there is not enough memory, or if the capture fails, as all others would."""
        size = search.memory
        if size > self.recorder.memory:
            return None
        self._make_room(size)
        try:
            with _capturing:
                return _Graph(search, self.recorder)
        except torch.OutOfMemoryError:
            return None
        except RuntimeError as error:
            self.has_failed = True
            self.buckets.clear()
            logger.warning("Cannot capture the search as a CUDA graph, so it runs without one: %s", error)
            return None

    def _make_room(self, size: int) -> None:
        """Drop the least recently used buckets until there are few enough, and memory for another graph."""

        def total() -> int:
            return size + sum(known.memory for known in self.buckets.values() if isinstance(known, _Graph))

        while len(self.buckets) > MAX_BUCKETS or total() > self.recorder.memory:
            self.buckets.popitem(last=False)

    def _next_size(self, signature: tuple, search: Any, live: int, count: int) -> int:
        """Return the number of sentences, done or not, with which a search continues when `live` of them are not."""
        batch, source, capacity = search.shape
        size = bucket(live)
        if 2 * size > batch or batch * search.settings.num_beams < MIN_HYPOTHESES_TO_SHRINK:
            return batch
        return size if self._is_worth_a_graph((signature, size, source, capacity), count) else batch

    @staticmethod
    def _move(search: Any, size: int, capacity: int) -> Any:
        """Return a copy of a search with a larger capacity or fewer sentences; those that are done go first."""
        moved = search.copy()
        done = moved.state.done
        if size < len(done):
            # stable: sentences keep their order
            moved.keep(done.int().argsort(stable=True)[:size])
        if capacity > search.capacity:
            moved.reserve(capacity)
        return moved


@contextmanager
def lend_graphs(model: Any, size: int) -> Iterator[StepGraphs | None]:
    """Lend a model's graphs to a search that takes `size` bytes.

    Yields None if its steps cannot be captured, if they take too much memory, or while another search has the graphs.
    """
    device = model.device
    recorder = find_recorder(device)
    if recorder is None or torch.is_autocast_enabled(device.type):
        yield None
        return
    weights = tuple(weight.data_ptr() for weight in model.parameters())
    graphs = _graphs.get(model)
    if graphs is None or graphs.weights != weights:
        graphs = _graphs[model] = StepGraphs(recorder(device), weights)
    if graphs.has_failed or size > graphs.recorder.memory or not graphs.lock.acquire(blocking=False):
        yield None
        return
    try:
        yield graphs
    finally:
        graphs.lock.release()


def forget_graphs(model: torch.nn.Module) -> None:
    """Free the graphs of a model, whose weights are about to move or to change often."""
    _graphs.pop(model, None)
