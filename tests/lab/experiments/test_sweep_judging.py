"""When a sweep goes no further, where its knee is, and which point it proposes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.lab.experiments.sweep_judging import axis_of, choose, find_knee, three_best, why_stop
from serving.lab.experiments.sweep_points import Point
from tests.lab.experiments.sweeping import SLO_MS, a_point

LATENCY = "chat ttft"


def hockey_stick() -> list[Point]:
    """Throughput saturates at the fourth point, from which on the latency explodes."""
    figures = [(100, 100), (200, 105), (380, 115), (600, 140), (640, 600), (650, 1500)]
    return [a_point(2**step, throughput=tps, ttft=ttft) for step, (tps, ttft) in enumerate(figures)]


def test_the_knee_is_where_latency_begins_to_cost_more_than_throughput_gains() -> None:
    assert find_knee(hockey_stick(), LATENCY) == 3


def test_a_throughput_that_falls_beyond_its_maximum_does_not_move_the_knee() -> None:
    points = [*hockey_stick(), a_point(64, throughput=500, ttft=2500)]
    assert find_knee(points, LATENCY) == 3


def test_a_straight_line_has_no_knee() -> None:
    points = [a_point(step, throughput=100.0 * step, ttft=100.0 * step) for step in range(1, 8)]
    assert find_knee(points, LATENCY) is None


def test_too_few_points_and_points_that_differ_by_noise_alone_have_no_knee() -> None:
    assert find_knee(hockey_stick()[:3], LATENCY) is None
    noisy = [a_point(step, throughput=100 + step % 2, ttft=200 - step % 3, noise=0.05) for step in range(6)]
    assert find_knee(noisy, LATENCY) is None


def test_a_knee_within_its_own_confidence_interval_is_none() -> None:
    points = hockey_stick()
    points[3] = a_point(8, throughput=600, ttft=140, noise=0.9)
    assert find_knee(points, LATENCY) is None


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e5)), min_size=4, max_size=12),
    st.floats(0.1, 10),
    st.floats(0.1, 10),
)
def test_the_knee_is_an_inner_point_and_does_not_depend_on_units(
    figures: list[tuple[float, float]], faster: float, slower: float
) -> None:
    points = [a_point(step, throughput=tps, ttft=ttft) for step, (tps, ttft) in enumerate(figures)]
    scaled = [a_point(step, throughput=tps * faster, ttft=ttft * slower) for step, (tps, ttft) in enumerate(figures)]
    knee = find_knee(points, LATENCY)
    if knee is not None:
        assert 0 < knee < len(points) - 1
        again = find_knee(scaled, LATENCY)
        assert again is not None
        # Of two that are equally far from the chord, rounding decides.
        assert _distance(points, again) >= _distance(points, knee) - 1e-6


def _distance(points: list[Point], index: int) -> float:
    xs = [point.output_tokens_per_second.mean for point in points]
    ys = [point.latencies[LATENCY].mean for point in points]
    return (xs[index] - min(xs)) / (max(xs) - min(xs)) - (ys[index] - min(ys)) / (max(ys) - min(ys))


def test_the_largest_throughput_is_not_proposed_where_it_breaks_the_slo() -> None:
    points = [
        a_point(8, throughput=400, ttft=200),
        a_point(16, throughput=600, ttft=400),
        a_point(32, throughput=900, ttft=700, goodput=5),
    ]
    proposal = choose(points, margin=0.1, in_force=8, has_slo=True)
    assert (proposal.index, proposal.is_change) == (1, True)
    assert "32 has the largest throughput, but does not keep the SLO" in proposal.reason


def test_what_keeps_the_slo_without_margin_is_not_proposed() -> None:
    points = [a_point(8, throughput=400, ttft=300), a_point(16, throughput=600, ttft=0.95 * SLO_MS)]
    assert choose(points, margin=0.1, in_force=4, has_slo=True).index == 0
    assert choose(points, margin=0.0, in_force=4, has_slo=True).index == 1


def test_nothing_is_proposed_where_nothing_keeps_the_slo_and_it_says_how_near_the_best_came() -> None:
    points = [a_point(8, throughput=400, ttft=900), a_point(16, throughput=600, ttft=650)]
    proposal = choose(points, margin=0.1, in_force=8, has_slo=True)
    assert (proposal.index, proposal.is_change) == (None, False)
    assert "at 16, chat ttft p95 is 130 % of it" in proposal.reason


def test_nothing_is_proposed_without_an_slo() -> None:
    proposal = choose(hockey_stick(), margin=0.1, in_force=1, has_slo=False)
    assert proposal.index is None
    assert "no SLO" in proposal.reason


def test_of_values_that_differ_by_noise_alone_the_most_conservative_is_proposed() -> None:
    points = [
        a_point(4, throughput=300, ttft=100, noise=0.05),
        a_point(8, throughput=590, ttft=150, noise=0.05),
        a_point(16, throughput=600, ttft=200, noise=0.05),
        a_point(32, throughput=605, ttft=300, noise=0.05),
    ]
    assert choose(points, margin=0.1, in_force=4, has_slo=True).index == 1


def test_the_value_in_force_stays_where_no_other_is_better_by_more_than_the_noise() -> None:
    points = [
        a_point(8, throughput=600, ttft=150, noise=0.05),
        a_point(16, throughput=610, ttft=200, noise=0.05),
    ]
    proposal = choose(points, margin=0.1, in_force=16, has_slo=True)
    assert (proposal.index, proposal.is_change) == (1, False)
    assert "stays" in proposal.reason


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.floats(1, 1000), st.floats(1, 2 * SLO_MS), st.floats(0, 0.3), st.floats(0.5, 1)),
        max_size=10,
    ),
    st.floats(0, 0.5),
    st.integers(0, 12),
)
def test_what_is_proposed_keeps_the_slo_with_its_margin(
    figures: list[tuple[float, float, float, float]], margin: float, in_force: int
) -> None:
    points = [
        a_point(step, throughput=tps, ttft=ttft, noise=noise, met=met)
        for step, (tps, ttft, noise, met) in enumerate(figures)
    ]
    proposal = choose(points, margin=margin, in_force=in_force, has_slo=True)
    within = [point for point in points if point.keeps_slo and point.slo_use and point.slo_use.mean <= 1 - margin]
    assert (proposal.index is not None) == bool(within)
    if proposal.index is not None:
        assert points[proposal.index] in within
        assert proposal.is_change == (points[proposal.index].value != in_force)


def test_it_stops_one_point_beyond_that_which_breaks_the_slo() -> None:
    points = [a_point(8, throughput=400, ttft=300), a_point(16, throughput=600, ttft=600)]
    assert why_stop(points, num_beyond=1, is_load=False) is None
    assert "broke at 16" in str(why_stop(points, num_beyond=0, is_load=False))
    beyond = [*points, a_point(32, throughput=600, ttft=900)]
    assert "broke at 16, and 1 point beyond it" in str(why_stop(beyond, num_beyond=1, is_load=False))


def test_it_goes_on_from_a_conservative_end_that_breaks_the_slo_as_long_as_things_get_better() -> None:
    improving = [a_point(step, throughput=100, ttft=2000 / step) for step in (1, 2, 3)]
    assert why_stop(improving, num_beyond=0, is_load=False) is None
    worse = [*improving, a_point(4, throughput=100, ttft=900)]
    assert "got worse" in str(why_stop(worse, num_beyond=0, is_load=False))


def test_more_load_is_not_tried_once_the_first_breaks_the_slo() -> None:
    assert why_stop([a_point(1, throughput=100, ttft=900)], num_beyond=0, is_load=True) is not None


def test_a_point_that_recovers_ends_no_sweep() -> None:
    points = [a_point(n, throughput=100, ttft=ttft) for n, ttft in ((1, 300), (2, 600), (3, 400))]
    assert why_stop(points, num_beyond=1, is_load=False) is None


def test_the_three_best_of_a_simulation_hold_the_value_in_force() -> None:
    points = [a_point(n, throughput=100.0 * n, ttft=50.0 * n) for n in (1, 2, 4, 8)]
    assert three_best(points, margin=0.1, in_force=1) == (1, 4, 8)
    assert three_best(points, margin=0.1, in_force=3) == (2, 4, 8)


def test_the_latency_that_is_drawn_is_the_one_that_the_slo_allows_least_of() -> None:
    assert axis_of([a_point(1, throughput=1, ttft=1)]) == LATENCY
    assert axis_of([]) == "total ttft"
