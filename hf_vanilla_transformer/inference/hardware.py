"""How a model uses this machine: device, number format, attention kernels, and how many searches run at a time.

A search consists of many small operators, which several cores together run badly; a search on each core takes less
time (`python scripts/benchmarks/parallel.py` prints the ratios). So as many batches are searched at a time as there
are cores, and if there are fewer batches, they share the cores: searches times threads of each are at most the cores.
"""

import copy
import math
import platform
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..errors import UserError

MAX_TOKENS = 2048  # source tokens per batch, padding included, unless the user names a limit
DTYPES = ("float32", "bfloat16", "float16", "auto")
# A smaller gain than this is not worth the digits that bfloat16 lacks
_GAIN = 0.03
# Bounds of a measurement: its seconds after the first round, and the floating-point operations of one search
_SECONDS = 0.4
OPERATIONS = 1e10
_SOURCE_LENGTH = 14
_NEW_TOKENS = 10
# A search whose thread runs for less than the first share of its time is on a busy machine, and for more than the
# second on a quiet one; each is believed after so many seconds
_BUSY = 0.75
_QUIET = 0.95
_BUSY_SECONDS = 0.1
_QUIET_SECONDS = 1.0
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def default_device() -> torch.device:
    """Return the accelerator, or the CPU if there is none."""
    # check_available: without it, a build for CUDA names a GPU on machines that have none
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def avoid_cudnn_attention() -> None:
    """Leave fused attention to torch's other kernels.

    cuDNN builds a plan for each new shape, which takes tens of milliseconds, and batches have hundreds of shapes.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def has_native_bfloat16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16 matrices natively, which makes them faster than float32."""
    if device.type == "cuda":
        # torch counts emulation by default, which is no faster than float32
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        # torch has no public function for this
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False


def hardware(device: torch.device, processes: int = 1) -> str:
    """Return the number and model of the accelerators, or of the CPU, that some processes on this machine use."""
    if device.type == "cuda":
        return f"{processes} x {torch.cuda.get_device_name()}"
    # Linux has no other source for the name: `platform.processor` is empty there, or only the architecture.
    information = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*: (.+)$", information.read_text(), re.M) if information.is_file() else []
    cpu = models[0] if models else platform.processor() or platform.machine()
    return f"{processes} x {torch.get_num_threads()} threads of {cpu}"


def named_dtype(name: str) -> torch.dtype:
    """Return the dtype called `name`, where "auto" is float32, in which `choose_dtype` begins.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in DTYPES:
        raise UserError(f"Unknown dtype {name!r}; choose one of {', '.join(DTYPES)}.")
    return torch.float32 if name == "auto" else getattr(torch, name)


def choose_dtype(model: Any, batch_size: int | None = 1, num_beams: int | None = None) -> torch.dtype:
    """Return the dtype, float32 or bfloat16, in which a model translates faster on its device.

    It is measured, which takes about a second.

    Args:
        model: a model or an ensemble in evaluation mode; it stays as it is.
        batch_size: how many sentences are translated together; None for a text of several batches.
        num_beams: the beam size; by default that of the model.
    """
    config = model.config
    beams = num_beams or model.generation_config.num_beams or 1
    operations = 2 * model.num_parameters() * (_SOURCE_LENGTH + beams * _NEW_TOKENS)
    full = default_max_tokens(beams) // _SOURCE_LENGTH
    # In an average step, about a third of a batch is left, since sentences end at different times
    sentences = max(1, min(batch_size or full, full // 3, int(OPERATIONS / operations)))
    shape = (sentences, _SOURCE_LENGTH)
    source = torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(0)).to(model.device)
    # No hypothesis ends early, since models never generate padding
    settings: dict[str, Any] = {"max_new_tokens": _NEW_TOKENS, "eos_token_id": config.pad_token_id, "num_beams": beams}

    def step_in(dtype: torch.dtype) -> Callable[[], object]:
        translates = copy.deepcopy(model).to(dtype).eval()
        return partial(translates.generate, source, attention_mask=torch.ones_like(source), **settings)

    return torch.bfloat16 if is_faster_in_bfloat16(model.device, step_in) else torch.float32


def is_faster_in_bfloat16(device: torch.device, step_in: Callable[[torch.dtype], Callable[[], object]]) -> bool:
    """Return whether a workload is faster in bfloat16 than in float32, by running a few steps in both.

    Args:
        step_in: returns the step in a dtype.
    """
    # Where products are emulated, a step could take minutes
    if not has_native_bfloat16(device):
        return False
    return _time_ratio(step_in(torch.float32), step_in(torch.bfloat16), device) < 1 - _GAIN


def _time_ratio(first: Callable[[], object], second: Callable[[], object], device: torch.device) -> float:
    """Return the shortest time of `second` divided by that of `first`, which take turns."""

    def seconds(step: Callable[[], object]) -> float:
        start = time.perf_counter()
        step()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return time.perf_counter() - start

    # The first run of each is slower: it reserves memory and packs weights
    for step in (first, second):
        seconds(step)
    end = time.perf_counter() + _SECONDS
    shortest = [math.inf, math.inf]
    while True:
        shortest = [min(shortest[0], seconds(first)), min(shortest[1], seconds(second))]
        ratio = shortest[1] / shortest[0]
        # With a clear result, more runs would not change the choice
        if time.perf_counter() > end or not 0.6 < ratio < 1.6:
            return ratio


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


class BusyCores:
    """Let the searches of a thread of Python use one core while the machine is busy, else all.

    At each of its many operations, a search on all cores waits for one that the system has paused: beside busy
    processes, it takes several times as long as on one core. Whether the machine is busy shows in how much of the time
    the thread runs.
    """

    def __init__(self) -> None:
        self._most = torch.get_num_threads()
        self._threads = self._most
        # in seconds: what passed in searches, and for how long of it the thread ran
        self._passed = 0.0
        self._ran = 0.0

    def begin(self) -> None:
        """Note that a search begins, on the thread that runs it."""
        self._marks = time.monotonic(), time.thread_time()

    def adapt(self) -> None:
        """Choose the number of cores for the next steps of the search."""
        if self._most == 1:
            return
        passed, ran = self._marks
        self.begin()
        self._passed += self._marks[0] - passed
        self._ran += self._marks[1] - ran
        # More evidence for all cores: if that is wrong, it costs more
        if self._passed < (_BUSY_SECONDS if self._threads > 1 else _QUIET_SECONDS):
            return
        share = self._ran / self._passed
        self._passed = self._ran = 0.0
        threads = 1 if share < _BUSY else self._most if share > _QUIET else self._threads
        if threads != self._threads:
            self._threads = threads
            torch.set_num_threads(threads)


def is_faster_in_parallel(model: Any) -> bool:
    """Return whether several searches of a model are faster at the same time than one after the other on all cores."""
    # The number of cores of threads that start later is one for the whole process: two threads that changed it at the
    # same time would not restore it
    if torch.get_num_threads() == 1 or threading.current_thread() is not threading.main_thread():
        return False
    # Neither an export, which uses all cores by itself, nor a model of another library, nor a wrapper such as PEFT's,
    # which forwards this to the model within
    is_thread_safe = hasattr(type(model), "is_thread_safe") and model.is_thread_safe
    # Sampling draws random numbers, which threads would share
    return is_thread_safe and not model.generation_config.do_sample


def run_in_parallel(search: Callable[[_Item], _Result], batches: Sequence[_Item]) -> Generator[_Result, None, None]:
    """Yield the result of `search` for each batch, in order; close the generator to end the rest."""
    searches = min(torch.get_num_threads(), len(batches))
    threads = torch.get_num_threads() // searches

    def search_in_thread(batch: _Item) -> _Result:
        # which holds only for one thread
        with torch.inference_mode():
            return search(batch)

    with (
        use_threads(threads),
        ThreadPoolExecutor(searches, initializer=torch.set_num_threads, initargs=(threads,)) as pool,
    ):
        yield from pool.map(search_in_thread, batches)
