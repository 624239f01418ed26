"""The last quarter of an hour of intervals, ready to be summed over any window."""

from __future__ import annotations

from collections import defaultdict

from serving.telemetry.intervals import Intervals
from serving.telemetry.packing import PackedIntervals, add_up, pack, unpack

KEPT_SECONDS = 900
_WIDTHS = (60, 10, 1)
_MAX_PARTS = 64


class _Bucket:
    """Owns what was measured in one stretch of time, added up when it is asked for; used by one thread."""

    def __init__(self) -> None:
        self._parts: list[PackedIntervals] = []

    def add(self, part: PackedIntervals) -> None:
        self._parts.append(part)
        if len(self._parts) >= _MAX_PARTS:
            self.total()

    def total(self) -> PackedIntervals:
        self._parts = [add_up(self._parts)]
        return self._parts[0]


class IntervalRing:
    """Owns merged buckets of 1, 10 and 60 seconds for the last 15 minutes; used by one thread.

    Each batch is added to its bucket of every width, so that a window is the sum of few: a quarter of an hour takes no
    more than about thirty. Times are whole seconds of one clock.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, dict[int, _Bucket]] = {width: defaultdict(_Bucket) for width in _WIDTHS}
        self._expired_before = 0

    def add(self, intervals: Intervals, *, at: int) -> None:
        """Merge in what was measured in second `at`; what is older than the ring reaches is left out."""
        if at < self._expired_before:
            return
        part = pack(intervals)
        for width, buckets in self._buckets.items():
            buckets[at - at % width].add(part)

    def total(self, *, since: int, until: int) -> Intervals:
        """The sum over the seconds `since … until - 1`."""
        parts = []
        at = max(since, self._expired_before)
        while at < until:
            width = next(width for width in _WIDTHS if at % width == 0 and at + width <= until)
            bucket = self._buckets[width].get(at)
            if bucket is not None:
                parts.append(bucket.total())
            at += width
        return unpack(add_up(parts))

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
