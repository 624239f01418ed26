"""The ring against its plain definition: all that was measured in a window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serving.telemetry.intervals import Intervals
from serving.telemetry.ring import KEPT_SECONDS, IntervalRing
from serving.telemetry.sketches import sketch_values


def measured(seconds: float) -> Intervals:
    return Intervals(ttft=sketch_values([seconds]))


@given(
    times=st.lists(st.integers(0, 500), max_size=60),
    since=st.integers(0, 500),
    length=st.integers(0, 500),
    start=st.sampled_from([0, 1_750_000_000]),
)
def test_window_holds_what_was_measured_in_it(times: list[int], since: int, length: int, start: int) -> None:
    ring = IntervalRing()
    for at in times:
        ring.add(measured(1.0 + at), at=start + at)
    inside = [1.0 + at for at in times if since <= at < since + length]
    assert ring.total(since=start + since, until=start + since + length).ttft.bins == sketch_values(inside).bins


def test_every_interval_keeps_to_itself() -> None:
    ring = IntervalRing()
    intervals = Intervals(*(sketch_values([seconds]) for seconds in (1.0, 2.0, 3.0, 4.0)))
    ring.add(intervals, at=5)
    assert ring.total(since=0, until=60) == intervals


def test_what_is_older_than_it_reaches_is_dropped_and_not_taken_in_again() -> None:
    ring = IntervalRing()
    now = 10_000
    for at in (now - KEPT_SECONDS - 120, now - KEPT_SECONDS, now):
        ring.add(measured(1.0), at=at)
    ring.expire(now=now)
    ring.add(measured(1.0), at=now - KEPT_SECONDS - 120)
    assert ring.total(since=0, until=now + 1).ttft.count == 2
