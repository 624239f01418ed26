"""Which values a sweep plays, in which order, and which plans are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.contracts.errors import InvalidValue
from serving.contracts.tunables import Tunables, describe
from serving.lab.experiments.sweep_plan import (
    Dimension,
    Guard,
    SweepPlan,
    decode_plan,
    ladder,
    load_of,
    read_dimension,
    values_of,
    with_load,
)
from serving.lab.workloads.arrivals import ClosedLoop, Poisson, Ramp
from tests.lab.experiments.sweeping import a_workload

TUNABLES = Tunables().as_dict()


def a_plan(**changes: Any) -> SweepPlan:
    plan = SweepPlan(workload=a_workload(), dimensions=(Dimension(name="max_running", values=(4, 8)),))
    return msgspec.structs.replace(plan, **changes)


@given(st.floats(0.001, 1e5), st.floats(0, 10), st.floats(1, 1e6), st.booleans())
def test_a_ladder_rises_within_the_bounds_around_the_value_in_force(
    current: float, low: float, width: float, is_whole: bool
) -> None:
    high = low + width
    inside = min(high, max(low, current))
    inside = float(round(inside)) if is_whole else inside
    low, high = min(low, inside), max(high, inside)
    steps = ladder(inside, low=low, high=high, is_whole=is_whole)
    assert list(steps) == sorted(set(steps))
    assert inside in steps
    assert all(low - 0.5 <= step <= high + 0.5 for step in steps)


@pytest.mark.parametrize("spec", [spec for spec in describe() if spec.kind != "name"], ids=lambda spec: spec.name)
def test_every_tunable_has_proposed_values_that_it_admits(spec: Any) -> None:
    values = values_of(Dimension(name=spec.name), tunables=TUNABLES, workload=a_workload())
    assert len(values) >= 2
    assert spec.default in values
    for value in values:
        assert spec.checked(value) == value


def test_given_numbers_are_played_from_the_low_end_and_once_each() -> None:
    given_values = Dimension(name="max_running", values=(16, 4, 8.0, 4))
    assert values_of(given_values, tunables=TUNABLES, workload=a_workload()) == (4, 8, 16)


def test_choices_are_played_in_the_order_given() -> None:
    assert values_of(read_dimension("mode=static,continuous"), tunables=TUNABLES, workload=a_workload()) == (
        "static",
        "continuous",
    )


def test_the_load_itself_is_a_dimension() -> None:
    assert values_of(Dimension(name="clients"), tunables=TUNABLES, workload=a_workload(clients=8)) == (
        1,
        2,
        4,
        8,
        16,
        32,
    )
    faster = with_load(a_workload(), "rate", 3)
    assert faster.arrivals == Poisson(3.0)
    assert load_of(with_load(faster, "rate", 5).arrivals, "rate") == 5.0
    assert with_load(faster, "clients", 7).arrivals == ClosedLoop(7)
    assert load_of(Ramp(1.0, 2.0), "rate") is None


def test_a_dimension_is_read_as_people_write_it() -> None:
    assert read_dimension("max_running=4, 8,16") == Dimension(name="max_running", values=(4, 8, 16))
    assert read_dimension("prefill_share=0.25,1") == Dimension(name="prefill_share", values=(0.25, 1))
    assert read_dimension("max_running") == Dimension(name="max_running")


@pytest.mark.parametrize("text", ["max_running=", "max_running=four", "rate=nan", "max_running=1e999"])
def test_a_dimension_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        read_dimension(text)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"dimensions": ()}, "dimensions"),
        ({"dimensions": (Dimension(name="nothing", values=(1,)),)}, "dimensions"),
        ({"dimensions": (Dimension(name="long_prompt_pool", values=("other",)),)}, "dimensions"),
        ({"dimensions": (Dimension(name="mode"), Dimension(name="mode"))}, "dimensions"),
        ({"dimensions": (Dimension(name="max_running", values=(0,)),)}, "max_running"),
        ({"dimensions": (Dimension(name="max_running", values=tuple(range(1, 30))),)}, "max_running"),
        ({"dimensions": (Dimension(name="rate"),)}, "rate"),
        ({"dimensions": (Dimension(name="rate", values=(-1,)),)}, "rate"),
        ({"dimensions": (Dimension(name="clients", values=(1.5,)),)}, "clients"),
        ({"repeats": 0}, "repeats"),
        ({"repeats": True}, "repeats"),
        ({"margin": 1.0}, "margin"),
        ({"settle_seconds": float("nan")}, "settle_seconds"),
        ({"num_beyond": -1}, "num_beyond"),
        ({"guard": Guard(metric="waiting", bound=1)}, "guardrail metric"),
        ({"guard": Guard(metric="error_ratio", bound=2)}, "guardrail bound"),
        ({"guard": Guard(metric="ttft_p95", bound=2, window_seconds=-1)}, "guardrail window"),
    ],
)
def test_a_plan_that_cannot_be_swept_is_refused_by_field(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        a_plan(**changes).check()
    assert refused.value.param == named


def test_a_plan_survives_json() -> None:
    plan = a_plan(guard=Guard(metric="ttft_p95", bound=400.0), way="simulated")
    assert decode_plan(msgspec.json.decode(msgspec.json.encode(plan))) == plan


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(InvalidValue, match="that of a sweep"):
        decode_plan({"dimensions": 3})
