"""Workloads made from others: another amount, seed or rate."""

from __future__ import annotations

import math

import pytest

from serving.contracts.errors import InvalidValue
from serving.lab.workloads.arrivals import (
    Arrivals,
    ClosedLoop,
    Constant,
    Gamma,
    Poisson,
    Ramp,
    Steps,
    Trace,
    TraceRequest,
)
from serving.lab.workloads.changing import changed, mean_rate, scaled
from serving.lab.workloads.drawing import plan_requests
from tests.lab.workloads.shapes import workload

TRACE = Trace((TraceRequest(0, 1, 1), TraceRequest(4, 1, 1)))


@pytest.mark.parametrize(
    ("arrivals", "rate"),
    [
        (Constant(4), 4),
        (Poisson(4), 4),
        (Gamma(4, 2.0), 4),
        (Ramp(2, 6), 4),
        (Steps((1, 7)), 4),
        (TRACE, 0.5),
        (ClosedLoop(3), None),
    ],
)
def test_twice_the_traffic_is_twice_the_mean_rate(arrivals: Arrivals, rate: float | None) -> None:
    assert mean_rate(workload(arrivals=arrivals)) == rate
    doubled = mean_rate(workload(arrivals=scaled(arrivals, 2)))
    assert doubled == (None if rate is None else 2 * rate)


def test_clients_of_a_closed_loop_stay_one_at_least() -> None:
    assert scaled(ClosedLoop(3, 1.5), 2.5) == ClosedLoop(8, 1.5)
    assert scaled(ClosedLoop(3), 0.01) == ClosedLoop(1)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_refuses_a_scale_that_is_none(scale: float) -> None:
    with pytest.raises(InvalidValue):
        changed(workload(), rate_scale=scale)


def test_another_amount_takes_the_place_of_the_one_before_and_leaves_something_to_measure() -> None:
    warm = workload(warm_up_seconds=20.0)
    assert changed(warm, num_requests=7).duration_seconds is None
    assert len(list(plan_requests(changed(warm, num_requests=7)))) == 7
    shorter = changed(warm, duration_seconds=10.0)
    assert (shorter.duration_seconds, shorter.num_requests, shorter.warm_up_seconds) == (10, None, 1)


def test_a_ramp_that_is_counted_goes_over_the_same_time() -> None:
    counted = changed(workload(arrivals=Ramp(1, 2)), num_requests=5, seed=9)
    assert (counted.duration_seconds, counted.num_requests, counted.seed) == (100, 5, 9)
