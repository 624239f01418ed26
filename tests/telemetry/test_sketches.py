"""Sketches keep their promise: 1 % at every percentile, however many were merged."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.telemetry.intervals import Intervals
from serving.telemetry.packing import add_up, pack, unpack
from serving.telemetry.sketches import (
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    IntervalSummary,
    Sketch,
    sketch_values,
    summarise,
)

durations = st.lists(st.floats(min_value=1e-5, max_value=1e4), min_size=1, max_size=200)


def merge(sketches: Iterable[Sketch]) -> Sketch:
    """Merged as the monitor merges them."""
    return unpack(add_up([pack(Intervals(ttft=sketch)) for sketch in sketches])).ttft


def exact(values: list[float], q: float) -> float:
    """The value at the rank that a summary speaks of."""
    return sorted(values)[math.floor(q * (len(values) - 1))]


def assert_close(summary: IntervalSummary, values: list[float]) -> None:
    assert summary.count == len(values)
    assert summary.mean == pytest.approx(sum(values) / len(values), rel=1e-9)
    for q, found in ((0.5, summary.p50), (0.9, summary.p90), (0.95, summary.p95), (0.99, summary.p99)):
        assert found == pytest.approx(exact(values, q), rel=0.0101)


@given(parts=st.lists(durations, min_size=1, max_size=4))
def test_percentiles_of_merged_sketches_are_within_one_percent(parts: list[list[float]]) -> None:
    assert_close(summarise(merge(map(sketch_values, parts))), [value for part in parts for value in part])


@given(first=durations, second=durations)
def test_order_of_merging_makes_no_difference(first: list[float], second: list[float]) -> None:
    one, other = sketch_values(first), sketch_values(second)
    assert merge([one, other]).bins == merge([other, one]).bins == sketch_values(first + second).bins


def test_a_hundred_thousand_durations_of_five_parts_are_within_one_percent() -> None:
    draw = random.Random(7)
    values = [draw.lognormvariate(-3.0, 1.5) for _ in range(100_000)]
    sketch = merge(sketch_values(values[part::5]) for part in range(5))
    assert_close(summarise(sketch), values)
    assert len(msgspec.msgpack.encode(sketch)) < 10_000


@given(parts=st.lists(st.lists(st.floats(0, 1e9), max_size=20), min_size=4, max_size=4))
def test_intervals_survive_their_packing(parts: list[list[float]]) -> None:
    intervals = Intervals(*map(sketch_values, parts))
    assert unpack(pack(intervals)) == intervals


def test_sum_of_nothing_is_nothing() -> None:
    assert unpack(add_up([])) == Intervals()


def test_merging_leaves_the_parts_as_they_were() -> None:
    part = pack(Intervals(ttft=sketch_values([1.0])))
    add_up([part, pack(Intervals(ttft=sketch_values([1.0, 2.0])))])
    assert unpack(part) == Intervals(ttft=sketch_values([1.0]))


def test_absurdly_long_durations_count_as_the_longest() -> None:
    for seconds in (LONGEST_SECONDS, 1e30, math.inf):
        sketch = sketch_values([seconds])
        assert summarise(sketch).p99 == pytest.approx(LONGEST_SECONDS, rel=0.0101)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(sketch), type=Sketch) == sketch


@pytest.mark.parametrize("bins", [{1_000_000_000: 1}, {-5000: 1}, {0: -1}, {0: 2**60}])
def test_bins_that_no_duration_falls_into_are_not_decoded(bins: dict[int, int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode([0, 1.0, bins]), type=Sketch)


def test_too_short_and_negative_durations_count_as_nought() -> None:
    summary = summarise(sketch_values([0.0, -1.0, SHORTEST_SECONDS / 2, 3.0]))
    assert (summary.count, summary.p50, summary.mean) == (4, 0, pytest.approx(0.75))
    assert summary.p99 == 0  # rank floor(0.99 * 3) = 2


def test_nothing_measured_has_no_percentiles() -> None:
    assert summarise(Sketch()) == IntervalSummary(count=0, mean=None, p50=None, p90=None, p95=None, p99=None)


def test_sketch_survives_its_encoding() -> None:
    sketch = sketch_values([0.0, 0.001, 0.02, 0.02, 100.0])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sketch), type=Sketch) == sketch
