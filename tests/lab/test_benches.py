"""The arithmetic of the Lab's benches, and a dry run of the simulator's. That they measure is seen by running them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import SequenceKey, Submit
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.engine.scheduler import Scheduler
from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.simulator.work import work_of
from serving.lab.workloads.arrivals import ClosedLoop, Poisson
from tests.lab import bench_guided, bench_loadtest, bench_simulator, paced
from tests.lab.bench_simulator import (
    SETTINGS,
    WORKLOADS,
    Play,
    Scale,
    chance_of,
    errors_of,
    refitted_errors_of,
    summarise,
)
from tests.lab.rigs import DryRig, Model


def play(measured: float, simulated: float, *, turn: int = 1, seed: int = 1, setting: str = "some") -> Play:
    return Play(
        workload="any",
        setting=setting,
        round=turn,
        seed=seed,
        rate=1.0,
        num_requests=9,
        num_lost=0,
        measured={"x": measured, "y": 1.0},
        simulated={"x": simulated, "y": 1.0},
        refitted={"x": 1.1 * measured, "y": 1.0},
    )


def test_an_error_is_relative_to_what_was_measured() -> None:
    assert errors_of([play(200, 150)], "x") == [0.25]
    assert errors_of([play(200, 150)]) == [0.25, 0.0]
    without = dataclasses.replace(play(200, 150), refitted=None)
    assert refitted_errors_of([play(200, 150), without], "x") == [pytest.approx(0.1)]


def test_chance_is_between_plays_of_the_same_traffic_alone() -> None:
    plays = [play(100, 100), play(100, 100, setting="other"), play(120, 100, turn=2), play(300, 100, turn=3, seed=2)]
    assert chance_of(plays, "x") == [pytest.approx(0.2)]
    assert summarise(chance_of(plays[:2])) is None


@pytest.mark.heavy
def test_capacity_decides_the_rate_and_a_setting_without_a_load_has_clients() -> None:
    model = Model(DEFAULT_COST, DEFAULT_ENVELOPE)
    rates = {}
    for setting in SETTINGS[:2]:
        arrivals = bench_simulator.loaded(WORKLOADS[0], setting, model, seconds=20).arrivals
        assert isinstance(arrivals, Poisson)
        assert setting.load is not None
        rates[setting.name] = arrivals.rate / setting.load
    assert rates["6 places"] < rates["defaults"]
    assert isinstance(bench_simulator.loaded(WORKLOADS[0], SETTINGS[-1], model, seconds=20).arrivals, ClosedLoop)


@pytest.mark.heavy
def test_a_slower_engine_is_measured_to_be_slower_and_its_plays_do_not_differ_by_chance() -> None:
    scale = Scale(calibration=2, play=5, rounds=2, capacity=10, speed=10)
    figures = bench_simulator.measure(DryRig(1.5), scale, workloads=WORKLOADS[:1], settings=SETTINGS[:2])
    assert [play["seed"] for play in figures["plays"]] == [1, 1, 1, 1]
    assert figures["chance alone"]["all"]["p95"] == 0
    assert figures["errors, costs of the play's own steps"]["all"]["p95"] == 0
    for play in figures["plays"]:
        assert play["simulated"]["ITL p95, ms"] < play["measured"]["ITL p95, ms"] / 1.3
    assert figures["errors"]["ITL p95, ms"]["median"] == pytest.approx(1 / 3, abs=0.05)
    assert "error" in "\n".join(bench_simulator.table_of(figures))


@pytest.mark.heavy
def test_a_dry_rig_with_the_models_own_cost_is_simulated_without_error() -> None:
    scale = Scale(calibration=1, play=3, rounds=1, capacity=5, speed=5)
    figures = bench_simulator.measure(DryRig(1.0), scale, workloads=WORKLOADS[:1], settings=SETTINGS[:1])
    assert figures["errors"]["all"] == {"count": 4, "median": 0, "p95": 0}
    assert DryRig().tune({"max_running": 6}) == Tunables().changed({"max_running": 6})


def test_guidellms_report_is_read_from_when_a_request_was_due() -> None:
    times = {"start_time": 10.0, "first_token_time": 10.5, "last_token_time": 12.5, "end_time": 12.6}
    lengths = {"prompt_tokens": 192, "output_tokens": 5}
    request = times | lengths | {"scheduler_info": {"targeted_start_time": 9.9}}
    report = {"benchmarks": [{"requests": {"successful": [request]}}]}
    (closed,) = bench_loadtest.read_guidellm(report, is_open=False)
    assert closed.sent_at == 10
    requests = bench_loadtest.read_guidellm(report, is_open=True)
    figures = bench_loadtest.figures_of(requests)
    assert figures["TTFT p50, ms"] == pytest.approx(600)
    assert figures["TPOT p50, ms"] == pytest.approx(500)
    assert figures["output tokens/s"] == pytest.approx(5 / 2.7, abs=0.001)


def test_no_answered_request_is_no_figure() -> None:
    with pytest.raises(ValueError, match="no request was answered"):
        bench_loadtest.figures_of([])


def test_testers_are_compared_with_ours() -> None:
    def played(tester: str, value: float) -> dict[str, Any]:
        names = (*bench_loadtest.FIGURES, "mean prompt tokens", "mean output tokens")
        return {"tester": tester, **dict.fromkeys(names, value)}

    plays = [played("guidellm", 110), played("ours", 90), played("ours", 110)]
    first, second, *_ = bench_loadtest.table_of({"4 clients": plays})
    assert first.split()[2:] == ["ours", "guidellm"]
    assert "100.0 ± 14.1 (+0.0%)" in second
    assert "110.0 ± 0.0 (+10.0%)" in second


def test_what_a_guided_run_changed_is_told_before_and_after() -> None:
    def total(ttft: float) -> dict[str, Any]:
        shown = {"p50": ttft, "p90": ttft, "p95": ttft, "p99": ttft}
        return {
            "output_tokens_per_second": 100.0,
            "goodput_per_second": 0.0,
            "slo_met_ratio": 0.5,
            "ttft_ms": shown,
            "itl_ms": shown,
            "e2e_ms": None,
        }

    lines = bench_guided.table_of(
        {"changes": {"max_running": [3, 12]}, "before": [total(1000), total(3000)], "after": [total(500)]}
    )
    assert lines[0] == "changed: max_running 3 → 12"
    assert "TTFT p95                      2,000.00      500.00      -75%" in lines
    assert not any(line.startswith("end to end") for line in lines)


@pytest.mark.heavy
def test_a_dry_run_prints_json_then_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    bench_simulator.main(["--dry-run", "--seconds", "4", "--rounds", "1", "--json", str(file)])
    first, *table = capsys.readouterr().out.splitlines()
    assert json.loads(first) == json.loads(file.read_text())
    assert len(json.loads(first)["plays"]) == len(WORKLOADS) * len(SETTINGS)
    assert table[-1].startswith("the simulator plays")


def test_a_paced_engine_sleeps_as_long_as_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(paced.time, "sleep", slept.append)
    monkeypatch.setattr(paced.time, "perf_counter", lambda: 100.0)
    scheduler = Scheduler(num_blocks=8, block_size=16, max_model_len=64, eos_token_ids=frozenset(), tunables=Tunables())
    submit = Submit(
        key=SequenceKey(RequestId("one"), 0),
        attempt=1,
        owner_id=OwnerId("test"),
        tenant="",
        prompt_ids=[1, 2, 3],
        params=SamplingParams(max_tokens=2, seed=0, ignore_eos=True),
    )
    scheduler.add(submit, 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    result = paced.PacedRunner(DEFAULT_COST, token_id=7, eos_token_id=2).run(plan)
    assert result.token_ids == [[7]]
    assert slept[-1] == pytest.approx(DEFAULT_COST.seconds(work_of(plan)))
