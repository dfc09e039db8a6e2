"""Count the operators with which the host waits for a value that a GPU computes."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

WAITS = ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero")
FUSED_ADAM = "aten::_fused_adamw_"  # on a CPU it reads its own step counts, which are in the host's memory


class HostWaits:
    """Profile from `start` to `stop`, and count how often the host would have waited for a GPU in between."""

    def __init__(self):
        self.profiler = profile(activities=[ProfilerActivity.CPU])

    def start(self) -> None:
        self.profiler.start()

    def stop(self) -> None:
        self.profiler.stop()

    def count(self) -> int:
        return sum(event.name in WAITS and not self._is_counted_above(event) for event in self.profiler.events())

    @staticmethod
    def _is_counted_above(event) -> bool:
        """Return whether the event is part of another wait, or of Adam."""
        while (event := event.cpu_parent) is not None:
            if event.name in (*WAITS, FUSED_ADAM):
                return True
        return False


def count_host_waits(function: Callable[[], object]) -> int:
    """Run `function` and return how often the host would wait for a GPU."""
    waits = HostWaits()
    waits.start()
    function()
    waits.stop()
    return waits.count()
