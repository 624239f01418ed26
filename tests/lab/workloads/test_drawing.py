"""Requests that follow from a workload."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from serving.lab.workloads.distributions import Fixed, Histogram, Lengths, LogNormal, Uniform
from serving.lab.workloads.drawing import lengths_at, mean_length, plan_requests, quantiles, share_above
from serving.lab.workloads.workload import PlannedRequest, SharedPrefixes
from tests.lab.workloads.shapes import request_class, workload


def _planned(**changes: Any) -> list[PlannedRequest]:
    return list(plan_requests(workload(**changes)))


def _dues(arrivals: Arrivals, seconds: float = 1000.0) -> np.ndarray[Any, Any]:
    return np.array([each.due_seconds for each in _planned(arrivals=arrivals, duration_seconds=seconds)])


@pytest.mark.parametrize(
    "arrivals",
    [Constant(10), Poisson(10), Gamma(10, 3.0), Gamma(10, 0.3), Ramp(0, 20), Steps((5, 0, 25))],
    ids=lambda arrivals: type(arrivals).__name__,
)
def test_arrivals_keep_their_rate_and_order_within_the_duration(arrivals: Arrivals) -> None:
    dues = _dues(arrivals)
    assert (np.diff(dues) >= 0).all()
    assert dues[0] >= 0
    assert dues[-1] < 1000
    assert len(dues) == pytest.approx(10_000, rel=0.1)


@pytest.mark.parametrize(("arrivals", "cv"), [(Constant(10), 0.0), (Poisson(10), 1.0), (Gamma(10, 2.5), 2.5)])
def test_gaps_vary_as_much_as_is_asked(arrivals: Arrivals, cv: float) -> None:
    gaps = np.diff(_dues(arrivals, 2000.0))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1, abs=1e-6)


def test_a_ramp_brings_requests_in_proportion_to_its_rate_at_each_time() -> None:
    counts, _ = np.histogram(_dues(Ramp(2, 18), 2000.0), bins=8, range=(0, 2000))
    expected = [(3 + 2 * part) * 250 for part in range(8)]
    assert counts.tolist() == pytest.approx(expected, rel=0.12)


def test_a_falling_ramp_ends_with_no_requests() -> None:
    counts, _ = np.histogram(_dues(Ramp(20, 0)), bins=10, range=(0, 1000))
    assert counts[0] > 10 * counts[-1]


def test_a_step_of_rate_0_brings_none_and_the_next_ones_begin_on_time() -> None:
    counts, edges = np.histogram(_dues(Steps((0, 10, 0, 0, 30)), 500.0), bins=5, range=(0, 500))
    assert counts[[0, 2, 3]].tolist() == [0, 0, 0]
    assert counts[[1, 4]].tolist() == pytest.approx([1000, 3000], rel=0.1)
    assert edges[-1] == 500


def test_a_closed_loop_is_due_at_no_time_and_goes_on_until_it_is_left() -> None:
    endless = plan_requests(workload(arrivals=ClosedLoop(4)))
    assert all(each.due_seconds is None for each in itertools.islice(endless, 10_000))
    assert len(_planned(arrivals=ClosedLoop(4), num_requests=17)) == 17


def test_a_trace_comes_again_with_its_lengths_as_fast_as_is_asked() -> None:
    trace = Trace((TraceRequest(1.0, 10, 20), TraceRequest(4.0, 30, 40, "b")), speed=2.0)
    planned = _planned(arrivals=trace, classes=(request_class("a"), request_class("b", priority=3)))
    told = [
        (each.due_seconds, each.num_prompt_tokens, each.num_output_tokens, each.request_class, each.priority)
        for each in planned
    ]
    assert told == [(0.5, 10, 20, "a", 0), (2.0, 30, 40, "b", 3)]


def test_the_count_ends_it_where_it_comes_before_the_duration() -> None:
    assert len(_planned(num_requests=5)) == 5
    assert len(_planned(num_requests=5, duration_seconds=None)) == 5


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    assert _planned(seed=7) == _planned(seed=7)
    assert _planned(seed=7) != _planned(seed=8)


def test_what_is_changed_changes_nothing_else() -> None:
    plain = _planned()
    longer = _planned(classes=(request_class(output_tokens=Uniform(1, 9)),))
    faster = _planned(arrivals=Gamma(10, 3.0))
    cancelling = _planned(classes=(request_class(cancelled_share=0.5, prefixes=SharedPrefixes(0.5, 20)),))
    assert [each.due_seconds for each in plain] == [each.due_seconds for each in longer]
    for other in (longer, faster, cancelling):
        assert len(other) > 900
        assert _manners(other[:900]) == _manners(plain[:900])


def _manners(planned: list[PlannedRequest]) -> list[tuple[int, bool, str]]:
    return [(each.num_prompt_tokens, each.is_streamed, each.request_class) for each in planned]


def test_classes_come_in_their_shares_with_their_own_manners() -> None:
    classes = (
        request_class("many", share=3, tenant="acme", streaming_share=0.0),
        request_class("few", share=1, priority=-5, cancelled_share=0.4, output_tokens=Fixed(100)),
        request_class("none", share=0),
    )
    planned = _planned(classes=classes, duration_seconds=1000.0)
    few = [each for each in planned if each.request_class == "few"]
    many = [each for each in planned if each.request_class == "many"]
    assert len(few) + len(many) == len(planned)
    assert len(few) / len(planned) == pytest.approx(0.25, abs=0.02)
    assert {(each.tenant, each.is_streamed, each.cancel_after_tokens) for each in many} == {("acme", False, None)}
    cancelled = [each.cancel_after_tokens for each in few if each.cancel_after_tokens is not None]
    assert len(cancelled) / len(few) == pytest.approx(0.4, abs=0.05)
    assert min(cancelled) >= 0
    assert max(cancelled) < 100
    assert float(np.mean(cancelled)) == pytest.approx(50, rel=0.1)


def test_prompts_share_as_many_beginnings_as_there_are_and_keep_a_token_of_their_own() -> None:
    prefixes = SharedPrefixes(share=0.6, tokens=150, count=4)
    planned = _planned(classes=(request_class(prompt_tokens=Uniform(1, 300), prefixes=prefixes),))
    shared = [each for each in planned if each.prefix is not None]
    assert {each.prefix for each in shared} == {0, 1, 2, 3}
    assert len(shared) / len(planned) == pytest.approx(0.6, abs=0.06)
    assert all(each.num_prefix_tokens == min(150, each.num_prompt_tokens - 1) for each in shared)


_LENGTHS = st.one_of(
    st.builds(Fixed, st.integers(1, 10**6)),
    st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)).map(lambda ends: Uniform(min(ends), max(ends))),
    st.builds(
        LogNormal, st.floats(1, 10**6), st.just(0.0) | st.floats(0.05, 5), st.integers(1, 50), st.integers(50, 10**6)
    ),
    st.lists(st.integers(1, 10**6), min_size=2, max_size=20, unique=True).flatmap(
        lambda edges: st.builds(
            Histogram,
            st.just(tuple(sorted(edges))),
            st.lists(st.integers(0, 1000), min_size=len(edges) - 1, max_size=len(edges) - 1).filter(any).map(tuple),
        )
    ),
)


@settings(max_examples=40, deadline=None)
@given(_LENGTHS)
def test_every_length_is_a_token_at_least_and_agrees_with_the_shares(lengths: Lengths) -> None:
    rng = np.random.default_rng(5)
    drawn = lengths_at(lengths, rng.random(4000), rng.standard_normal(4000))
    assert drawn.min() >= 1
    assert drawn.max() <= 10**6
    for limit in np.quantile(drawn, (0.1, 0.5, 0.9), method="inverted_cdf").tolist():
        assert share_above(lengths, limit) == pytest.approx((drawn > limit).mean(), abs=0.04)


@pytest.mark.parametrize(
    ("lengths", "mean", "median"),
    [
        (Fixed(7), 7, 7),
        (Uniform(1, 9), 5, 5),
        (LogNormal(median=100, sigma=0.5), 100 * np.exp(0.125), 100),
        (Histogram(edges=(1, 11, 21), counts=(1, 3)), 13, 14),
    ],
)
def test_mean_and_median_are_those_of_the_distribution(lengths: Lengths, mean: float, median: int) -> None:
    assert mean_length(lengths) == pytest.approx(mean, rel=0.01)
    assert quantiles(lengths, np.array([0.5])).tolist() == [median]
