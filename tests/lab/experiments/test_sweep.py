"""A sweep over a pool of which the latencies follow a formula: what it plays, when it ends, what it proposes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from serving.contracts.errors import InvalidValue
from serving.contracts.tunables import Tunables
from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.experiments.bench import Stopped
from serving.lab.experiments.sweep import play, play_sweep
from serving.lab.experiments.sweep_plan import Dimension, Guard, SweepPlan
from serving.lab.experiments.sweep_points import estimate, is_less
from serving.lab.experiments.sweep_results import SweepResult
from serving.lab.experiments.sweep_simulated import SimulatedBench
from serving.lab.workloads.arrivals import ClosedLoop
from serving.lab.workloads.workload import Slo, Workload
from serving.telemetry.conditions import Reading
from tests.lab.experiments.sweeping import FormulaBench, a_workload, saturating

RUNNING = Dimension(name="max_running", values=(4, 8, 16, 32, 64, 128, 256))


def a_plan(*dimensions: Dimension, **changes: Any) -> SweepPlan:
    plan = SweepPlan(workload=a_workload(), dimensions=dimensions or (RUNNING,), repeats=2)
    return msgspec.structs.replace(plan, **changes)


def test_it_goes_from_the_conservative_end_until_one_point_beyond_the_slo() -> None:
    bench = FormulaBench(saturating, max_running=8)
    result = play_sweep(a_plan(), bench)
    (leg,) = result.legs
    assert [point.value for point in leg.points] == [4, 8, 16, 32, 64, 128]
    assert [change["max_running"] for change in bench.retuned] == [4, 8, 16, 32, 64, 128]
    assert "broke at 64" in leg.stopped_because
    assert result.changes == {"max_running": [8, 32]}
    assert leg.knee == 3
    assert (leg.latency, leg.slo_ms) == ("chat ttft", 500.0)
    assert result.ended == "finished"


def test_every_point_settles_and_is_repeated_with_another_seed() -> None:
    bench = FormulaBench(saturating)
    play_sweep(a_plan(Dimension(name="max_running", values=(4, 8)), repeats=3, settle_seconds=7.0), bench)
    assert bench.seeds == [1, 2, 3, 1, 2, 3]
    assert bench.paused == [7.0, 7.0]


def test_the_second_dimension_is_swept_with_the_best_of_the_first() -> None:
    bench = FormulaBench(saturating, max_running=8)
    second = Dimension(name="max_batch_tokens", values=(128, 256))
    result = play_sweep(a_plan(RUNNING, second), bench)
    assert bench.retuned[-2:] == [
        {"max_running": 32, "max_batch_tokens": 128},
        {"max_running": 32, "max_batch_tokens": 256},
    ]
    assert [leg.name for leg in result.legs] == ["max_running", "max_batch_tokens"]


def test_a_first_dimension_without_a_best_goes_back_to_its_value_in_force() -> None:
    bench = FormulaBench(lambda tunables, workload: (100.0, 5000.0), max_running=24)
    play_sweep(a_plan(RUNNING, Dimension(name="max_batch_tokens", values=(128, 256))), bench)
    assert bench.retuned[-1]["max_running"] == 24


def test_the_load_is_swept_without_a_change_of_tunables() -> None:
    def by_clients(tunables: Mapping[str, Any], workload: Workload) -> tuple[float, float]:
        assert isinstance(workload.arrivals, ClosedLoop)
        return 50.0 * workload.arrivals.clients, 30.0 * workload.arrivals.clients

    bench = FormulaBench(by_clients)
    result = play_sweep(a_plan(Dimension(name="clients", values=(4, 8, 16, 32))), bench)
    assert bench.retuned == []
    assert result.changes == {}
    assert result.load == {"clients": 8}


def test_the_guardrail_ends_it_at_once_and_proposes_nothing() -> None:
    bench = FormulaBench(saturating, max_running=8)
    bench.others_by_run = {number: {"ttft_p95": Reading(900.0, 50)} for number in range(5, 99)}
    result = play_sweep(a_plan(guard=Guard(metric="ttft_p95", bound=400.0, window_seconds=0)), bench)
    assert result.ended == "guardrail"
    assert len(bench.played) == 5
    assert "TTFT p95 above 400 ms" in result.says
    assert [point.value for point in result.legs[0].points] == [4, 8]
    assert result.changes == {}


def test_a_guardrail_of_too_few_requests_ends_nothing_and_that_is_said() -> None:
    bench = FormulaBench(saturating)
    bench.others_by_run = {number: {"ttft_p95": Reading(900.0, 3)} for number in range(99)}
    result = play_sweep(a_plan(guard=Guard(metric="ttft_p95", bound=400.0, window_seconds=0)), bench)
    assert result.ended == "finished"
    assert any("too little of others' traffic" in note for note in result.notes)


def test_somebody_elses_change_ends_it_and_proposes_nothing() -> None:
    bench = FormulaBench(saturating)
    bench.overtaken_from_run = 3
    result = play_sweep(a_plan(), bench)
    assert (result.ended, result.says) == ("overtaken", "ada stored version 9 meanwhile")
    assert len(bench.played) == 3
    assert result.changes == {}


def test_points_are_told_as_they_come() -> None:
    bench = FormulaBench(saturating)
    play_sweep(a_plan(), bench)
    counts = [len(told["legs"][0]["points"]) for told in bench.told]
    assert counts == sorted(counts)
    assert set(counts) == set(range(7))


def test_who_asks_it_to_stop_is_heard() -> None:
    class Stopping(FormulaBench):
        def pause(self, seconds: float) -> None:
            raise Stopped

    with pytest.raises(Stopped):
        play_sweep(a_plan(), Stopping(saturating))


def test_simulated_first_checks_three_points_on_the_engines() -> None:
    bench, simulated = FormulaBench(saturating, max_running=8), FormulaBench(saturating, max_running=8)
    result = play_sweep(a_plan(way="simulated_first"), bench, simulated=lambda: simulated)
    assert [leg.is_simulated for leg in result.legs] == [True, False]
    assert [point.value for point in result.legs[1].points] == [8, 16, 32]
    assert {change["max_running"] for change in bench.retuned} == {8, 16, 32}
    assert result.changes == {"max_running": [8, 32]}
    assert not result.is_simulated


def test_only_simulated_touches_no_engine_and_says_that_it_is() -> None:
    bench, simulated = FormulaBench(saturating, max_running=8), FormulaBench(saturating, max_running=8)
    result = play_sweep(a_plan(way="simulated"), bench, simulated=lambda: simulated)
    assert (bench.played, bench.retuned) == ([], [])
    assert result.is_simulated
    assert any("simulated" in note for note in result.notes)


def test_what_cannot_be_simulated_here_is_refused() -> None:
    with pytest.raises(InvalidValue, match="way"):
        play_sweep(a_plan(way="simulated"), FormulaBench(saturating))


def test_a_plan_and_its_result_are_json() -> None:
    bench = FormulaBench(saturating, max_running=8)
    result = play(msgspec.to_builtins(a_plan()), bench)
    read = msgspec.convert(msgspec.json.decode(msgspec.json.encode(result)), type=SweepResult)
    assert read == msgspec.convert(result, type=SweepResult)
    assert result["changes"] == {"max_running": [8, 32]}


def test_a_workload_without_an_slo_gets_no_proposal() -> None:
    bench = FormulaBench(saturating)
    result = play_sweep(a_plan(workload=a_workload(slo=Slo())), bench)
    assert result.changes == {}
    proposal = result.legs[0].proposal
    assert proposal is not None
    assert "no SLO" in proposal.reason


def test_the_real_simulator_sweeps_a_batch_size() -> None:
    workload = msgspec.structs.replace(a_workload(slo=Slo(ttft_ms=60_000.0), clients=8), num_requests=24)
    bench = SimulatedBench("default", Tunables(), cost=DEFAULT_COST, envelope=DEFAULT_ENVELOPE, num_processes=1)
    plan = a_plan(Dimension(name="max_running", values=(1, 4, 8)), workload=workload, way="simulated")
    result = play_sweep(plan, FormulaBench(saturating), simulated=lambda: bench)
    points = result.legs[0].points
    assert all(point.is_simulated for point in points)
    throughputs = [point.output_tokens_per_second.mean for point in points]
    assert throughputs == sorted(throughputs)
    assert throughputs[-1] > 2 * throughputs[0]


@pytest.mark.heavy
def test_an_experiments_simulation_has_a_process_of_its_own_that_ends_with_it() -> None:
    workload = msgspec.structs.replace(a_workload(slo=Slo(ttft_ms=60_000.0), clients=8), num_requests=24)
    plan = a_plan(Dimension(name="max_running", values=(1, 8)), workload=workload, way="simulated", repeats=1)

    def simulated(own: FormulaBench) -> SimulatedBench:
        return SimulatedBench(
            "default", Tunables(), cost=DEFAULT_COST, envelope=DEFAULT_ENVELOPE, num_processes=1, own=own
        )

    own = FormulaBench(saturating)
    result = play_sweep(plan, own, simulated=lambda: simulated(own))
    assert len(result.legs[0].points) == 2
    assert own.told

    class Stopping(FormulaBench):
        def pause(self, seconds: float) -> None:
            raise Stopped

    stopping = Stopping(saturating)
    with pytest.raises(Stopped):
        play_sweep(plan, stopping, simulated=lambda: simulated(stopping))
    assert not multiprocessing.active_children()


def test_repeats_that_agree_give_a_narrow_interval_and_one_alone_an_assumed_one() -> None:
    assert estimate([10.0, 10.0, 10.0]).half_width == 0
    assert estimate([10.0]).half_width == pytest.approx(0.5)
    # t(0.975, 2) = 4.303; the deviation of 9, 10, 11 is 1.
    assert estimate([9.0, 10.0, 11.0]).half_width == pytest.approx(4.303 / 3**0.5)
    assert is_less(estimate([9.9, 10.0, 10.1]), estimate([11.0, 11.1, 10.9]))
    assert not is_less(estimate([9.0, 10.0, 11.0]), estimate([10.0, 11.0, 12.0]))
