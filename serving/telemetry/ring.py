"""The last quarter of an hour of intervals, ready to be summed over any window."""

from __future__ import annotations

from collections import defaultdict

from serving.telemetry.intervals import Intervals
from serving.telemetry.sketches import SketchSum

KEPT_SECONDS = 900
_WIDTHS = (60, 10, 1)


class IntervalsSum:
    """Owns a growing sum of intervals; used by one thread."""

    def __init__(self) -> None:
        self._queue_time = SketchSum()
        self._ttft = SketchSum()
        self._itl = SketchSum()
        self._e2e = SketchSum()

    def add(self, intervals: Intervals) -> None:
        """Merge `intervals` in."""
        self._queue_time.add(intervals.queue_time)
        self._ttft.add(intervals.ttft)
        self._itl.add(intervals.itl)
        self._e2e.add(intervals.e2e)

    def total(self) -> Intervals:
        """The sum so far."""
        return Intervals(self._queue_time.total(), self._ttft.total(), self._itl.total(), self._e2e.total())


class IntervalRing:
    """Owns merged buckets of 1, 10 and 60 seconds for the last 15 minutes; used by one thread.

    Each batch is added to its bucket of every width, so that a window is the sum of few: a quarter of an hour takes no
    more than about thirty. Times are whole seconds of one clock.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, dict[int, IntervalsSum]] = {width: defaultdict(IntervalsSum) for width in _WIDTHS}
        self._expired_before = 0

    def add(self, intervals: Intervals, *, at: int) -> None:
        """Merge in what was measured in second `at`; what is older than the ring reaches is left out."""
        if at < self._expired_before:
            return
        for width, buckets in self._buckets.items():
            buckets[at - at % width].add(intervals)

    def total(self, *, since: int, until: int) -> Intervals:
        """The sum over the seconds `since … until - 1`."""
        result = IntervalsSum()
        at = max(since, self._expired_before)
        while at < until:
            width = next(width for width in _WIDTHS if at % width == 0 and at + width <= until)
            bucket = self._buckets[width].get(at)
            if bucket is not None:
                result.add(bucket.total())
            at += width
        return result.total()

    def expire(self, *, now: int) -> None:
        """Drop what lies more than 15 minutes before `now`."""
        limit = now - KEPT_SECONDS
        limit -= limit % max(_WIDTHS)
        if limit <= self._expired_before:
            return
        self._expired_before = limit
        for buckets in self._buckets.values():
            for at in [at for at in buckets if at < limit]:
                del buckets[at]
