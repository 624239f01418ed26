"""How long a device takes for a piece of work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

_MOST_SECONDS = 0.05
_FLUSHED_BYTES = 256 * 2**20
"""More than any GPU's cache holds."""


def synchronize(device: torch.device) -> None:
    """Wait until `device` has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """Owns memory that is written between two measurements, so that a GPU's caches hold nothing of the work's; on the
    thread that measures."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        is_cuda = device.type == "cuda"
        self._flushed = torch.empty(_FLUSHED_BYTES if is_cuda else 1, dtype=torch.uint8, device=device)

    def seconds(self, work: Callable[[], object], *, most_tries: int = 30) -> float:
        """The median duration of `work` on the device, from events in its stream; on a CPU by the clock.

        Done once before, since a first time compiles. As many tries as fit a fraction of a second, three at least; on a
        CPU one, which is only to see that all works.
        """
        work()
        synchronize(self._device)
        durations = [self._once(work)]
        if self._device.type == "cpu":
            return durations[0]
        wanted = min(most_tries, max(3, int(_MOST_SECONDS / max(durations[0], 1e-9))))
        durations += [self._once(work) for _ in range(wanted - 1)]
        return statistics.median(durations)

    def _once(self, work: Callable[[], object]) -> float:
        self._flushed.zero_()
        if self._device.type != "cuda":
            began = time.perf_counter()
            work()
            return time.perf_counter() - began
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        work()
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1e3
