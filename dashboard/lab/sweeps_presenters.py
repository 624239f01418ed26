"""What the pages about sweeps show: pure functions."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from dashboard.presenters import ChangeRow, present_changes
from serving.contracts.tunables import describe
from serving.lab.experiments.sweep_plan import LOADS, SweepPlan
from serving.lab.experiments.sweep_points import LATENCIES, Estimate, Point
from serving.lab.experiments.sweep_results import Leg
from serving.lab.experiments.sweep_selectors import Sweep

WAYS = {
    "played": "on the engines",
    "simulated": "on the simulator",
    "simulated_first": "on the simulator, then its three best on the engines",
}
_ENDINGS = {"guardrail": "ended by its guardrail", "overtaken": "ended: somebody else changed the pool"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DimensionChoice:
    """Something that may be swept."""

    name: str
    unit: str
    help: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One sweep in the list. `outcome` says in words what came of it."""

    id: int
    title: str
    pool: str
    workload: str
    way: str
    state: str
    outcome: str
    author: str
    created_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PointRow:
    """One point in the table: figures with half the width of their confidence interval. `marks` are words that single
    it out."""

    value: str
    version: int
    num_repeats: int
    throughput: str
    goodput: str
    latency: str
    slo_use: str
    slo_met: str
    num_refused: int
    num_failed: int
    keeps_slo: bool
    marks: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LegPanel:
    """One dimension: its points, and what they tell. `num_left` points may still come."""

    title: str
    unit: str
    in_force: str
    is_simulated: bool
    latency: str
    slo: str
    rows: tuple[PointRow, ...]
    num_left: int
    reason: str
    stopped_because: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepPanel:
    """A sweep as it stands. `chart` is what the charts draw, in JSON's terms; `doing` what is played now."""

    id: int
    title: str
    pool: str
    workload: str
    way: str
    repeats: int
    guard: str
    state: str
    is_over: bool
    is_stop_asked: bool
    author: str
    created_at: datetime.datetime
    ended_at: datetime.datetime | None
    error: str
    ending: str
    notes: tuple[str, ...]
    legs: tuple[LegPanel, ...]
    changes: tuple[ChangeRow, ...]
    load: tuple[str, ...]
    is_simulated: bool
    doing: str
    chart: list[dict[str, Any]]


def dimension_choices() -> tuple[DimensionChoice, ...]:
    """Every tunable that can be swept, and the load."""
    tunables = [
        DimensionChoice(name=spec.name, unit=spec.unit, help=spec.help) for spec in describe() if spec.kind != "name"
    ]
    loads = [DimensionChoice(name=name, unit=unit, help="the load itself") for name, unit in LOADS.items()]
    return (*tunables, *loads)


def present_row(sweep: Sweep) -> SweepRow:
    """A sweep in the list."""
    return SweepRow(
        id=sweep.id,
        title=sweep.title,
        pool=sweep.pool,
        workload=sweep.plan.workload.name,
        way=WAYS[sweep.plan.way],
        state=sweep.state,
        outcome=_outcome(sweep),
        author=sweep.author,
        created_at=sweep.created_at,
    )


def present_sweep(sweep: Sweep) -> SweepPanel:
    """A sweep's own page."""
    result = sweep.result
    return SweepPanel(
        id=sweep.id,
        title=sweep.title,
        pool=sweep.pool,
        workload=sweep.plan.workload.name,
        way=WAYS[sweep.plan.way],
        repeats=sweep.plan.repeats,
        guard=_guard(sweep.plan),
        state=sweep.state,
        is_over=sweep.is_over,
        is_stop_asked=sweep.is_stop_asked,
        author=sweep.author,
        created_at=sweep.created_at,
        ended_at=sweep.ended_at,
        error=sweep.error,
        ending="" if result is None else _ending(result.ended, result.says),
        notes=() if result is None else result.notes,
        legs=tuple(_present_leg(leg) for leg in sweep.legs),
        changes=() if result is None else present_changes(result.changes),
        load=() if result is None else tuple(f"{name} {_shown(value)}" for name, value in result.load.items()),
        is_simulated=sweep.plan.way == "simulated",
        doing=_doing(sweep),
        chart=[_chart(leg) for leg in sweep.legs],
    )


def unit_of(name: str) -> str:
    """A dimension's unit, empty where it has none."""
    return next((choice.unit for choice in dimension_choices() if choice.name == name), "")


def latency_title(latency: str) -> str:
    """`<class> <interval>` in words."""
    class_name, _, interval = latency.rpartition(" ")
    of = "all requests" if class_name == "total" else class_name
    return f"{LATENCIES.get(interval, interval)} p95 of {of}" if latency else ""


def _outcome(sweep: Sweep) -> str:
    if sweep.result is None:
        num = sum(len(leg.points) for leg in sweep.legs)
        return sweep.error or f"{num} {'point' if num == 1 else 'points'} so far"
    if sweep.result.ended != "finished":
        return _ENDINGS[sweep.result.ended]
    proposed = [f"{name} {_shown(old)} → {_shown(new)}" for name, (old, new) in sweep.result.changes.items()]
    proposed += [f"{name} up to {_shown(value)}" for name, value in sweep.result.load.items()]
    if proposed:
        return "proposes " + ", ".join(proposed)
    has_choice = any(leg.proposal is not None and leg.proposal.index is not None for leg in sweep.legs)
    return "proposes no change" if has_choice else "proposes nothing"


def _ending(ended: str, says: str) -> str:
    return says if ended == "finished" else f"{_ENDINGS[ended]}: {says}"


def _doing(sweep: Sweep) -> str:
    if sweep.is_over:
        return ""
    if sweep.state == "waiting" or not sweep.legs:
        return "waits for its turn"
    if sweep.value is None:
        return "goes on to the next dimension"
    where = "simulates" if sweep.legs[-1].is_simulated else "plays"
    if not sweep.repeat:
        return f"has played {sweep.legs[-1].name} {_shown(sweep.value)}"
    return f"{where} {sweep.legs[-1].name} {_shown(sweep.value)}, {sweep.repeat} of {sweep.plan.repeats}"


def _guard(plan: SweepPlan) -> str:
    if plan.guard is None:
        return ""
    from serving.telemetry.conditions import Condition

    guard = plan.guard
    return Condition(metric=guard.metric, bound=guard.bound, for_seconds=guard.window_seconds).describe()


def _present_leg(leg: Leg) -> LegPanel:
    return LegPanel(
        title=leg.name,
        unit=unit_of(leg.name),
        in_force="" if leg.in_force is None else _shown(leg.in_force),
        is_simulated=leg.is_simulated,
        latency=latency_title(leg.latency),
        slo="" if leg.slo_ms is None else f"{leg.slo_ms:,.6g} ms",
        rows=tuple(_present_point(leg, index) for index in range(len(leg.points))),
        num_left=0 if leg.proposal is not None else len(leg.values) - len(leg.points),
        reason="" if leg.proposal is None else leg.proposal.reason,
        stopped_because=leg.stopped_because,
    )


def _present_point(leg: Leg, index: int) -> PointRow:
    point = leg.points[index]
    latency = point.latencies.get(leg.latency or point.binding or "total ttft")
    return PointRow(
        value=_shown(point.value),
        version=point.version,
        num_repeats=point.num_repeats,
        throughput=_with_noise(point.output_tokens_per_second),
        goodput=_with_noise(point.goodput_per_second),
        latency="–" if latency is None else _with_noise(latency),
        slo_use="–" if point.slo_use is None else f"{100 * point.slo_use.mean:.0f} %",
        slo_met="–" if point.slo_met_ratio is None else f"{100 * point.slo_met_ratio:.1f} %",
        num_refused=point.num_refused,
        num_failed=point.num_failed,
        keeps_slo=point.keeps_slo,
        marks=_marks(leg, index),
    )


def _marks(leg: Leg, index: int) -> tuple[str, ...]:
    point, proposal = leg.points[index], leg.proposal
    found = {
        "in force": point.value == leg.in_force,
        "knee": index == leg.knee,
        "proposed": proposal is not None and proposal.index == index and proposal.is_change,
        "best": proposal is not None and proposal.index == index and not proposal.is_change,
        "SLO broken": not point.keeps_slo,
    }
    return tuple(word for word, holds in found.items() if holds)


def _chart(leg: Leg) -> dict[str, Any]:
    points = [(index, point) for index, point in enumerate(leg.points) if _drawn(leg, point) is not None]
    return {
        "title": f"{leg.name}{' (simulated)' if leg.is_simulated else ''}",
        "latency": latency_title(leg.latency) or "TTFT p95 of all requests",
        "slo_ms": leg.slo_ms,
        "points": [_chart_point(leg, index, point) for index, point in points],
    }


def _chart_point(leg: Leg, index: int, point: Point) -> dict[str, Any]:
    latency = _drawn(leg, point)
    assert latency is not None, "what has no latency is not drawn"
    return {
        "label": f"{leg.name} {_shown(point.value)}",
        "x": point.output_tokens_per_second.mean,
        "y": latency.mean,
        "low": latency.low,
        "high": latency.high,
        "keeps": point.keeps_slo,
        "marks": list(_marks(leg, index)),
    }


def _drawn(leg: Leg, point: Point) -> Estimate | None:
    return point.latencies.get(leg.latency or "total ttft")


def _with_noise(estimate: Estimate) -> str:
    return f"{_number(estimate.mean)} ± {_number(estimate.half_width)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
