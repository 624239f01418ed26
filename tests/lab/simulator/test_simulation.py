"""A simulation as a whole: one engine or a fleet, and what its result says of itself."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest
from django.core.management import CommandError, call_command

from serving.contracts.errors import InvalidValue
from serving.contracts.tunables import Tunables
from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.costs.model import CostModel, StepWork
from serving.lab.simulator.simulation import Simulation, simulate
from serving.lab.workloads.arrivals import Arrivals, ClosedLoop, Poisson
from serving.lab.workloads.changing import changed
from serving.lab.workloads.ready import READY
from serving.lab.workloads.workload import Workload


def of(arrivals: Arrivals, **changes: Any) -> Workload:
    return changed(msgspec.structs.replace(READY["bulk"], arrivals=arrivals), duration_seconds=30, **changes)


def run(workload: Workload, tunables: Tunables | None = None, **options: Any) -> Simulation:
    options = {"cost": DEFAULT_COST, "envelope": DEFAULT_ENVELOPE, **options}
    return simulate(workload, tunables=tunables or Tunables(), **options)


@pytest.mark.heavy
@pytest.mark.parametrize("arrivals", [Poisson(3), ClosedLoop(7)])
def test_a_fleet_comes_to_the_same_over_several_processes(arrivals: Arrivals) -> None:
    alone, split = (run(of(arrivals), num_engines=3, num_processes=count) for count in (1, 2))
    assert (alone.num_processes, split.num_processes) == (1, 2)
    assert split.num_requests == alone.num_requests
    assert split.num_steps == alone.num_steps
    one, other = alone.summary, split.summary
    assert other.total == one.total
    assert [moment.num_finished for moment in other.moments] == [moment.num_finished for moment in one.moments]


def test_a_larger_fleet_serves_what_one_engine_cannot() -> None:
    heavy = of(Poisson(12))
    single, fleet = run(heavy).summary.total, run(heavy, num_engines=8, num_processes=1).summary.total
    assert single.ttft_ms is not None
    assert fleet.ttft_ms is not None
    assert fleet.ttft_ms.p95 < single.ttft_ms.p95 / 4


def test_bounds_of_the_queue_refuse_what_is_too_much() -> None:
    tight = Tunables().changed({"max_queue_requests": 2, "max_running": 1})
    summary = run(of(Poisson(10)), tight).summary
    assert summary.total.num_refused > 0
    assert set(summary.refused_by_code) == {"queue_full"}


@pytest.mark.heavy
def test_no_engine_of_a_fleet_refuses_while_its_pool_has_room() -> None:
    """One place in the queue for each engine would be too few for what comes together by chance."""
    tunables = Tunables().changed({"max_queue_requests": 10, "max_running": 4})
    fleet = run(of(Poisson(20)), tunables, num_engines=10, num_processes=1).summary
    assert fleet.refused_by_code == {}
    assert fleet.peak_permits_requests is not None
    assert fleet.peak_permits_requests < 10
    assert any("never came to the bounds" in note for note in fleet.notes)


def test_engines_of_a_fleet_refuse_where_their_pool_is_full() -> None:
    tunables = Tunables().changed({"max_queue_requests": 8, "max_running": 1})
    fleet = run(of(Poisson(20)), tunables, num_engines=4, num_processes=1).summary
    assert set(fleet.refused_by_code) == {"queue_full"}
    assert fleet.peak_permits_requests == 8
    assert any("2 requests and" in note for note in fleet.notes)


def test_static_batches_leave_slots_idle_and_continuous_ones_do_not() -> None:
    workload = of(Poisson(4))
    static = run(workload, Tunables().changed({"mode": "static"})).summary
    continuous = run(workload).summary
    assert static.idle_slot_steps
    assert not continuous.idle_slot_steps
    assert static.total.ttft_ms is not None
    assert continuous.total.ttft_ms is not None
    assert static.total.ttft_ms.p95 > continuous.total.ttft_ms.p95


def test_a_prefix_that_is_cached_costs_no_prefill() -> None:
    workload = changed(READY["rag"], duration_seconds=120, rate_scale=0.5)
    cached, computed = (run(workload, Tunables().changed({"prefix_caching": word})) for word in ("on", "off"))
    assert cached.summary.total.ttft_ms is not None
    assert computed.summary.total.ttft_ms is not None
    assert cached.summary.total.ttft_ms.mean < computed.summary.total.ttft_ms.mean


def test_it_says_what_it_rests_on() -> None:
    notes = " ".join(run(of(Poisson(1)), num_engines=2, num_processes=1).summary.notes)
    assert "not fitted to this engine" in notes
    assert "split beforehand over 2 engines" in notes


@pytest.mark.parametrize("options", [{"num_engines": 0}, {"num_engines": 1001}, {"num_processes": 0}])
def test_what_cannot_be_simulated_is_refused_by_name(options: dict[str, int]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(options)).removeprefix("num_")):
        run(of(Poisson(1)), **options)


def test_steady_steps_cost_what_single_ones_cost_together() -> None:
    cost = CostModel(
        step_seconds=0.1,
        prefill_token_seconds=0.01,
        prefill_position_seconds=0.0,
        decoding_seconds=0.02,
        context_token_seconds=0.001,
    )
    work = StepWork(num_decoding=3, num_context_tokens=300)
    singles = [cost.seconds(StepWork(num_decoding=3, num_context_tokens=300 + 3 * number)) for number in range(7)]
    assert cost.steady_seconds(work, 7) == pytest.approx(sum(singles))


def simulated(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command("simulate", "--defaults", "--json", *arguments, stdout=out)
    return dict(json.loads(out.getvalue()))


def test_the_command_prints_one_object_with_its_times() -> None:
    found = simulated("--workload=chat", "--duration=60", "--set", "max_running=4", "--engines=2", "--processes=1")
    assert found["simulated_seconds"] >= 60
    assert found["wall_seconds"] > 0
    assert (found["num_engines"], found["cost_source"]) == (2, "default")
    assert found["summary"]["total"]["num_requests"] > 0
    assert found["cut"] == ["1.5% of the prompts of class turn are cut to 7,192 tokens"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workload=chat", "--set", "max_running=9999"], "max_running must be an integer from 1 to 1024, not 9999"),
        (["--workload=chat", "--set", "luck=1"], "'luck' is not a tunable"),
        (["--workload=chat", "--set", "luck"], "not of the form NAME=VALUE"),
        (["--workload=chat", "--engines=0"], "engines must be"),
        (["--workload=chat", "--rate-scale=0"], "rate scale"),
        (["--workload=./none.json"], "a file that can be read"),
    ],
)
def test_the_command_names_what_is_wrong(arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError) as caught:
        simulated(*arguments)
    assert words in str(caught.value)
