"""Sketches keep their promise: 1 % at every percentile, however many were merged."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.telemetry.sketches import SHORTEST_SECONDS, IntervalSummary, Sketch, merge, sketch_values, summarise

durations = st.lists(st.floats(min_value=1e-5, max_value=1e4), min_size=1, max_size=200)


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


def test_merging_leaves_the_parts_as_they_were() -> None:
    part = sketch_values([1.0])
    merge([part, sketch_values([1.0, 2.0])])
    assert part == sketch_values([1.0])


def test_too_short_and_negative_durations_count_as_nought() -> None:
    summary = summarise(sketch_values([0.0, -1.0, SHORTEST_SECONDS / 2, 3.0]))
    assert (summary.count, summary.p50, summary.mean) == (4, 0, pytest.approx(0.75))
    assert summary.p99 == 0  # rank floor(0.99 * 3) = 2


def test_nothing_measured_has_no_percentiles() -> None:
    assert summarise(Sketch()) == IntervalSummary(count=0, mean=None, p50=None, p90=None, p95=None, p99=None)


def test_sketch_survives_its_encoding() -> None:
    sketch = sketch_values([0.0, 0.001, 0.02, 0.02, 100.0])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sketch), type=Sketch) == sketch
