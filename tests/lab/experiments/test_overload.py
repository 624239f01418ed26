"""Overload tests on the simulator: capacity is measured, and the policy decides whether they pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from serving.contracts.tunables import Tunables
from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.experiments.bench import BrokenOff, Watch
from serving.lab.experiments.capacity import Capacity, measure_capacity
from serving.lab.experiments.overload import play_overload
from serving.lab.experiments.overload_plan import OverloadPlan
from serving.lab.experiments.overload_results import OverloadResult
from serving.lab.experiments.sweep_simulated import SimulatedBench
from serving.lab.experiments.tuning import Overtaken
from serving.lab.summaries import RunSummary
from serving.lab.workloads.arrivals import Poisson
from serving.lab.workloads.distributions import Uniform
from serving.lab.workloads.workload import RequestClass, Slo, Workload
from tests.lab.experiments.overloading import named

pytestmark = pytest.mark.heavy

SHORT = Workload(
    name="short",
    arrivals=Poisson(1.0),
    classes=(
        RequestClass(
            name="chat", prompt_tokens=Uniform(30, 60), output_tokens=Uniform(10, 30), slo=Slo(ttft_ms=2000, itl_ms=200)
        ),
    ),
    duration_seconds=60.0,
)


class ToldBench(SimulatedBench):
    """Owns what it was told, beside what it simulates."""

    def __init__(self, **tunables: Any) -> None:
        super().__init__("default", Tunables().changed(tunables), cost=DEFAULT_COST, envelope=DEFAULT_ENVELOPE)
        self.told: list[Mapping[str, Any]] = []
        self.titles: list[str] = []

    def play(
        self, workload: Workload, *, title: str, point: Mapping[str, Any], watch: Watch | None = None
    ) -> RunSummary:
        self.titles.append(title)
        return super().play(workload, title=title, point=point, watch=watch)

    def tell(self, progress: Mapping[str, Any]) -> None:
        self.told.append(progress)


def measured(bench: SimulatedBench) -> Capacity:
    return measure_capacity(SHORT, bench, seconds=60.0, tell=lambda _doing, _probes: None)


def overloaded(bench: SimulatedBench, **changes: Any) -> OverloadResult:
    plan = OverloadPlan(workload=SHORT, stage_seconds=30.0, capacity_seconds=60.0, way="simulated", **changes)
    return play_overload(plan, bench)


def test_above_its_capacity_the_queue_grows_and_below_it_does_not() -> None:
    bench = ToldBench()
    capacity = measured(bench).saturation_per_second
    waiting = []
    for multiple in (0.7, 1.5):
        arrivals = Poisson(multiple * capacity)
        bench.play(
            msgspec.structs.replace(SHORT, arrivals=arrivals, duration_seconds=60.0), title="", point={}, watch=None
        )
        late = [each for each in bench.evidence().outcomes if each.due_seconds > 45]
        waiting.append(max((each.queue_seconds or 0.0) for each in late))
    assert waiting[0] < 1.0
    assert waiting[1] > 3.0


def test_capacity_is_looked_for_from_saturation_down_until_answers_are_in_time() -> None:
    bench = ToldBench()
    capacity = measured(bench)
    assert bench.titles[0] == "capacity: closed loop"
    rates = [probe.rate for probe in capacity.probes]
    assert rates[0] is None
    assert capacity.goodput_rate == rates[-1]
    assert capacity.goodput_per_second == max(probe.goodput_per_second for probe in capacity.probes)


def test_a_short_queue_keeps_goodput_and_a_long_one_wastes_work_on_answers_that_come_too_late() -> None:
    short = overloaded(ToldBench(max_queue_requests=8), multiples=(1.0, 3.0))
    long = overloaded(ToldBench(max_queue_requests=2000), multiples=(1.0, 3.0))
    assert short.passed, [each for each in short.verdicts if each.judged == "failed"]
    assert short.advice == ()
    assert not long.passed
    assert named(long.verdicts, "goodput").judged == "failed"
    assert "lower max_queue_requests" in long.advice[0]


def test_the_bound_that_is_in_force_is_the_one_that_is_checked() -> None:
    result = overloaded(ToldBench(max_queue_requests=8), multiples=(3.0,))
    verdict = named(result.verdicts, "queue_requests")
    assert verdict.measured == "8 sequences at most"
    assert result.bounds["max_queue_requests"] == 8


def test_a_capacity_that_is_known_is_not_measured_again() -> None:
    known = Capacity(
        saturation_per_second=5.0, goodput_per_second=5.0, goodput_rate=4.5, probes=(), measured_by="overload test 3"
    )
    bench = ToldBench(max_queue_requests=8)
    result = overloaded(bench, capacity=known)
    assert bench.titles == ["overload"]
    assert "taken over from overload test 3" in " ".join(result.notes)
    assert [stage.multiple for stage in result.stages] == [0.5, 1.0, 2.0, 0.5]


def test_it_tells_what_it_plays() -> None:
    bench = ToldBench(max_queue_requests=8)
    overloaded(bench)
    assert bench.told[0]["doing"].startswith("32 clients")
    assert bench.told[-1]["doing"] == "the overload itself"
    assert bench.told[-1]["capacity"] > 0


def test_a_result_survives_json() -> None:
    result = overloaded(ToldBench(max_queue_requests=8), multiples=(2.0,))
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(result)), type=OverloadResult) == result


class ChangedBench(ToldBench):
    """A pool of which somebody changes a value as soon as it is overloaded."""

    def play(
        self, workload: Workload, *, title: str, point: Mapping[str, Any], watch: Watch | None = None
    ) -> RunSummary:
        if watch is not None:
            self.retune({"max_running": 4}, reason="somebody else")
            if (reason := watch()) is not None:
                raise BrokenOff(reason)
        return super().play(workload, title=title, point=point)


def test_a_policy_that_changes_meanwhile_ends_the_test() -> None:
    with pytest.raises(Overtaken, match="max_running of the pool changed"):
        overloaded(ChangedBench())
