"""The three ways of batching, compared: which runs are played, and what is concluded from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from serving.contracts.errors import InvalidValue
from serving.contracts.tunables import Tunables
from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.experiments.sweep_simulated import SimulatedBench
from serving.lab.experiments.three_ways import play_three_ways
from serving.lab.experiments.three_ways_figures import Way, estimate_ratio, is_real
from serving.lab.experiments.three_ways_plan import WAYS, ThreeWaysPlan, decode_three_ways_plan
from serving.lab.experiments.three_ways_results import ThreeWaysResult
from serving.lab.experiments.tuning import Overtaken
from serving.lab.workloads.arrivals import ClosedLoop
from serving.lab.workloads.distributions import Uniform
from serving.lab.workloads.workload import RequestClass, Workload
from tests.lab.experiments.sweeping import FormulaBench
from tests.lab.experiments.sweeping import a_workload as swept_workload

CLIENTS = Workload(
    name="clients",
    arrivals=ClosedLoop(12),
    classes=(RequestClass(name="a", prompt_tokens=Uniform(10, 200), output_tokens=Uniform(2, 80)),),
    duration_seconds=30.0,
    warm_up_seconds=3.0,
)


def by_mode(tunables: Mapping[str, Any], _workload: Workload) -> tuple[float, float]:
    """Static batches serve three quarters, and make wait four times as long; a window makes wait as long as it is."""
    if tunables["mode"] == "static":
        return 300.0, 400.0
    return 400.0, 100.0 + tunables["batch_window_ms"]


def a_plan(**changes: Any) -> ThreeWaysPlan:
    return ThreeWaysPlan(**{"workload": swept_workload(), "settle_seconds": 2.0, **changes})


def way(result: ThreeWaysResult, name: str) -> Way:
    return next(each for each in result.ways if each.name == name)


def test_each_way_is_played_in_place_with_the_same_seeds() -> None:
    bench = FormulaBench(by_mode)
    result = play_three_ways(a_plan(repeats=2), bench)
    assert sorted(zip([point["way"] for point in bench.played], bench.seeds, strict=True)) == sorted(
        (name, seed) for name in WAYS for seed in (1, 2)
    )
    assert [each["mode"] for each in bench.retuned].count("static") == 2
    assert bench.paused == [2.0] * 6
    assert [each.num_runs for each in result.ways] == [2, 2, 2]


def test_the_order_is_turned_round_every_second_time_and_drawn_by_the_seed() -> None:
    plan = a_plan(repeats=4)
    first, second, third, fourth = plan.order()
    assert second == tuple(reversed(first))
    assert (third, fourth) == (first, second)
    assert plan.order() == plan.order()
    seeds = [msgspec.structs.replace(plan.workload, seed=seed) for seed in range(20)]
    assert len({a_plan(workload=workload).order()[0] for workload in seeds}) > 1


def test_the_values_of_each_way_are_those_of_the_plan() -> None:
    plan = a_plan(static_window_ms=800.0, window_ms=50.0)
    assert plan.changes_of("static") == {"mode": "static", "batch_window_ms": 800.0}
    assert plan.changes_of("windowed") == {"mode": "continuous", "batch_window_ms": 50.0}
    assert plan.changes_of("continuous") == {"mode": "continuous", "batch_window_ms": 0.0}


def test_the_conclusions_tell_what_each_way_costs_against_the_continuous_one() -> None:
    static, windowed = play_three_ways(a_plan(window_ms=60.0), FormulaBench(by_mode)).conclusions
    assert "TTFT p95 4.0 times as much (400 instead of 100 ms)" in static
    assert "Output tokens 25% less (300 instead of 400 /s)" in static
    assert "TTFT p95 1.6 times as much (160 instead of 100 ms)" in windowed
    assert "Output tokens" not in windowed


def test_what_makes_no_difference_is_said_to_make_none() -> None:
    result = play_three_ways(a_plan(), FormulaBench(lambda _tunables, _workload: (400.0, 100.0)))
    assert all("made no difference" in sentence for sentence in result.conclusions)


def test_a_change_by_somebody_else_ends_it() -> None:
    bench = FormulaBench(by_mode)
    bench.overtaken_from_run = 2
    with pytest.raises(Overtaken, match="ada stored version 9"):
        play_three_ways(a_plan(), bench)
    assert len(bench.played) == 2


def test_a_window_longer_than_anybody_may_wait_is_refused_before_anything_is_changed() -> None:
    bench = FormulaBench(by_mode, max_queue_wait_ms=900.0)
    with pytest.raises(InvalidValue, match="below the pool's max_queue_wait_ms, 900"):
        play_three_ways(a_plan(static_window_ms=1000.0), bench)
    assert bench.retuned == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"static_window_ms": 0.0}, "static_window_ms"),
        ({"window_ms": 10_001.0}, "window_ms"),
        ({"repeats": 0}, "repeats"),
        ({"repeats": 11}, "repeats"),
        ({"settle_seconds": -1.0}, "settle_seconds"),
    ],
)
def test_what_cannot_be_played_is_refused_by_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        a_plan(**changes).check()
    assert caught.value.param == field


def test_a_plan_survives_json_and_what_is_none_is_refused() -> None:
    plan = a_plan(repeats=2)
    assert decode_three_ways_plan(msgspec.json.decode(msgspec.json.encode(plan))) == plan
    with pytest.raises(InvalidValue, match="that of a comparison"):
        decode_three_ways_plan({"workload": 1})


def test_a_ratio_is_real_where_its_interval_leaves_out_the_same() -> None:
    assert is_real(estimate_ratio([2.0, 2.1, 1.9]))
    assert not is_real(estimate_ratio([0.5, 2.0, 1.0]))
    ratio = estimate_ratio([0.5, 2.0])
    assert ratio.mean == pytest.approx(1.0)
    assert ratio.low * ratio.high == pytest.approx(1.0)


@pytest.mark.heavy
def test_on_the_real_scheduler_static_batching_leaves_places_empty_and_makes_wait() -> None:
    bench = SimulatedBench("default", Tunables(), cost=DEFAULT_COST, envelope=DEFAULT_ENVELOPE)
    result = play_three_ways(ThreeWaysPlan(workload=CLIENTS, repeats=2, way="simulated"), bench)
    static, windowed, continuous = (way(result, name) for name in WAYS)
    assert static.figures["ttft_p50"].mean > 3 * continuous.figures["ttft_p50"].mean
    assert static.figures["throughput"].mean < continuous.figures["throughput"].mean
    assert windowed.figures["ttft_p50"].mean > continuous.figures["ttft_p50"].mean
    assert (static.idle_share or 0) > 0.2
    assert (static.padded_share or 0) > 0.1
    assert (continuous.num_idle_slot_steps, continuous.num_padded_tokens) == (0, 0)
    assert static.picture is not None
    assert continuous.picture is not None
    assert static.picture.empty_share > continuous.picture.empty_share
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(result)), type=ThreeWaysResult) == result
