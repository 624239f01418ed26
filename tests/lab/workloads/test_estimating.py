"""Distributions that are found again in what was drawn from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.lab.workloads.arrivals import Gamma, Poisson
from serving.lab.workloads.checking import check_lengths
from serving.lab.workloads.distributions import Fixed, Histogram, LogNormal
from serving.lab.workloads.drawing import lengths_at
from serving.lab.workloads.estimating import distance, fit_gaps, fit_lengths, rates_over, shares_in_bins


def _drawn(lengths: LogNormal | Histogram, count: int = 5000) -> list[int]:
    rng = np.random.default_rng(3)
    found: list[int] = lengths_at(lengths, rng.random(count), rng.standard_normal(count)).tolist()
    return found


def test_finds_a_lognormal_distribution_again_and_takes_it() -> None:
    fitted = fit_lengths(_drawn(LogNormal(median=300, sigma=0.7)))
    assert fitted.lognormal is not None
    assert fitted.lognormal.median == pytest.approx(300, rel=0.05)
    assert fitted.lognormal.sigma == pytest.approx(0.7, rel=0.05)
    assert fitted.chosen == "lognormal"
    assert fitted.lengths == fitted.lognormal


@pytest.mark.parametrize("count", [10, 40, 250])
def test_takes_a_fit_that_is_as_good_as_chance_lets_it_be(count: int) -> None:
    assert fit_lengths(_drawn(LogNormal(median=300, sigma=0.7), count)).chosen == "lognormal"


def test_takes_the_histogram_where_lengths_have_two_peaks() -> None:
    fitted = fit_lengths(_drawn(Histogram((10, 20, 1000, 1100), (1, 0, 1))))
    assert fitted.lognormal_distance is not None
    assert fitted.lognormal_distance > fitted.histogram_distance + 0.1
    assert fitted.chosen == "histogram"


def test_lengths_that_are_all_alike_are_fixed() -> None:
    assert fit_lengths([64] * 10).lengths == Fixed(64)
    assert fit_lengths([0]).lengths == Fixed(1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60))
def test_whatever_was_measured_is_counted_whole_and_can_be_played(lengths: list[int]) -> None:
    fitted = fit_lengths(lengths)
    assert sum(fitted.histogram.counts) == len(lengths)
    check_lengths(fitted.histogram, "prompt_tokens")
    check_lengths(fitted.lengths, "prompt_tokens")
    assert 0 <= fitted.histogram_distance <= 1
    assert fitted.p50 <= fitted.p95 <= fitted.p99 <= fitted.longest


def test_the_distance_is_the_largest_difference_of_the_cumulative_shares() -> None:
    assert distance(np.array([5, 5, 5, 5]), Fixed(5)) == 0
    assert distance(np.array([1, 2, 3, 4]), Fixed(4)) == pytest.approx(0.75)
    assert distance(np.array([1, 2, 3, 4]), Histogram((1, 5), (4,))) == pytest.approx(0)


@pytest.mark.parametrize(("cv", "kind"), [(1.0, Poisson), (2.5, Gamma), (0.4, Gamma)])
def test_finds_rate_and_variation_of_gaps_again(cv: float, kind: type[Poisson | Gamma]) -> None:
    gaps = np.random.default_rng(11).gamma(1 / cv**2, cv**2 / 4, 6000)
    fitted = fit_gaps(np.cumsum(gaps).tolist(), range_seconds=10_000)
    assert fitted.rate == pytest.approx(4, rel=0.1)
    assert fitted.cv == pytest.approx(cv, rel=0.1)
    assert isinstance(fitted.arrivals, kind)


@pytest.mark.parametrize("moments", [[0.0], [5.0, 5.0, 5.0]])
def test_one_moment_tells_a_rate_over_the_whole_range_and_no_variation(moments: list[float]) -> None:
    fitted = fit_gaps(moments, range_seconds=100)
    assert fitted.rate == len(moments) / 100
    assert fitted.arrivals == Poisson(fitted.rate)


def test_rates_over_time_add_up_to_what_came() -> None:
    seconds, rates = rates_over([0.0, 1.0, 2.0, 2.5, 10.0], num_bins=5)
    assert seconds == 2.0
    assert [rate * seconds for rate in rates] == [2, 2, 0, 0, 1]


def test_a_fit_that_is_drawn_over_a_histogram_has_its_share_in_each_bin() -> None:
    assert shares_in_bins(Histogram((1, 3, 5), (1, 3)), [1, 3, 5]) == [0.25, 0.75]
    assert sum(shares_in_bins(LogNormal(100, 0.5), [1, 50, 100, 200, 10**6])) == pytest.approx(1, abs=1e-3)
