"""The overload test: a pool's capacity is measured, a multiple of it is sent, and it is checked that backpressure does
what the pool's policy says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.lab.experiments.bench import Bench, BrokenOff
from serving.lab.experiments.capacity import Capacity, Probe, measure_capacity
from serving.lab.experiments.overload_facts import Facts
from serving.lab.experiments.overload_judging import judge
from serving.lab.experiments.overload_plan import POLICY, OverloadPlan, decode_overload_plan
from serving.lab.experiments.overload_results import OverloadResult, Verdict
from serving.lab.experiments.overload_stages import slices_of, stages_of
from serving.lab.experiments.tuning import Overtaken
from serving.lab.summaries import RunSummary
from serving.lab.workloads.workload import Workload


def play(plan: Mapping[str, Any], bench: Bench) -> dict[str, Any]:
    """Play the overload test that an experiment's plan asks for (an `OverloadPlan`); its `OverloadResult`, as JSON
    holds them. Raises as `play_overload`."""
    decoded = decode_overload_plan(plan)
    if decoded.way == "simulated":
        from serving.lab.experiments.sweep_simulated import simulated_bench_of

        bench = simulated_bench_of(bench)
    return dict(msgspec.to_builtins(play_overload(decoded, bench)))


def play_overload(plan: OverloadPlan, bench: Bench) -> OverloadResult:
    """Play the test to its end, and judge it.

    Raises `InvalidValue` for a plan that cannot be played and where no capacity can be measured, `Overtaken` where
    somebody changes the pool's tunables meanwhile, `Stopped` once it is asked to end, and what the bench raises.
    """
    plan.check()
    tunables = bench.tunables()
    capacity = plan.capacity or measure_capacity(
        plan.workload, bench, seconds=plan.capacity_seconds, tell=lambda doing, probes: _tell(bench, doing, probes)
    )
    workload = plan.workload_at(capacity.saturation_per_second)
    _tell(bench, "the overload itself", capacity.probes, capacity)
    summary = _play(workload, bench, tunables)
    evidence = bench.evidence()
    slos = {each.name: each.slo for each in workload.classes}
    stages = stages_of(evidence.outcomes, plan.stages, stage_seconds=plan.stage_seconds, slos=slos)
    facts = Facts(
        workload=workload,
        summary=summary,
        evidence=evidence,
        tunables=tunables,
        capacity=capacity,
        stages=stages,
        criteria=plan.criteria,
    )
    verdicts = judge(facts)
    return OverloadResult(
        pool=bench.pool,
        workload=plan.workload.name,
        is_simulated=summary.is_simulated,
        passed=all(verdict.judged != "failed" for verdict in verdicts),
        capacity=capacity,
        stages=stages,
        verdicts=verdicts,
        slices=slices_of(evidence.outcomes, summary.moments),
        bounds={name: tunables[name] for name in POLICY},
        advice=tuple(_advice(facts, verdicts)),
        notes=(*_notes(plan), *summary.notes),
    )


def _play(workload: Workload, bench: Bench, tunables: Mapping[str, Any]) -> RunSummary:
    def watch() -> str | None:
        changed = [name for name, value in bench.tunables().items() if tunables.get(name) != value]
        return f"{', '.join(changed)} of the pool changed while it was overloaded" if changed else None

    try:
        return bench.play(workload, title="overload", point={"stage": "overload"}, watch=watch)
    except BrokenOff as error:
        raise Overtaken(error.reason) from None


def _tell(bench: Bench, doing: str, probes: Sequence[Probe], capacity: Capacity | None = None) -> None:
    bench.tell(
        {
            "doing": doing,
            "probes": msgspec.to_builtins(tuple(probes)),
            "capacity": None if capacity is None else capacity.saturation_per_second,
        }
    )


def _advice(facts: Facts, verdicts: Sequence[Verdict]) -> list[str]:
    """What the figures suggest where goodput is lost to a queue that nobody at its end can wait out."""
    failed = {verdict.name for verdict in verdicts if verdict.judged == "failed"}
    objectives = [each.slo.ttft_ms for each in facts.workload.classes if each.slo.ttft_ms is not None]
    if "goodput" not in failed or not objectives:
        return []
    rate, objective = facts.capacity.saturation_per_second, min(objectives) / 1000
    places = facts.tunables["max_queue_requests"]
    longest = min(places / rate, facts.tunables["max_queue_wait_ms"] / 1000)
    if longest <= objective:
        return []
    return [
        f"Whoever is last in a full queue of {places} waits for up to {longest:,.0f} s at {rate:.3g} requests/s, and "
        f"the objective for the first token is {objective:g} s: work is done for answers that come too late. About "
        f"{max(1, int(objective * rate))} could wait and be in time: lower max_queue_requests, set max_queue_wait_ms "
        f"below {1000 * objective:,.0f}, or turn early_reject on."
    ]


def _notes(plan: OverloadPlan) -> list[str]:
    notes = ["Arrivals were independent of each other (Poisson) in every stage, whatever the workload's own are."]
    if plan.capacity is not None and plan.capacity.measured_by:
        notes.append(f"Capacity was not measured again, but taken over from {plan.capacity.measured_by}.")
    return notes
