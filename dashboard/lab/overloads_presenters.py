"""What the pages about overload tests show: pure functions."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from serving.lab.experiments.capacity import Capacity, Probe
from serving.lab.experiments.overload_results import OverloadResult, Stage, Verdict
from serving.lab.experiments.overload_selectors import Overload

WAYS = {"played": "on the engines", "simulated": "on the simulator"}
_MARKS = {"passed": "tag-good", "failed": "tag-problem", "not judged": ""}
_MOST_TIMES_DRAWN = 5
"""A bound of the queue that is more than this many times as high as the queue ever was is not drawn."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OverloadRow:
    """One overload test in the list. `outcome` says in words what came of it."""

    id: int
    title: str
    pool: str
    way: str
    state: str
    outcome: str
    has_failed: bool
    author: str
    created_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """One criterion. `mark` is the tag's class."""

    title: str
    bound: str
    measured: str
    judged: str
    mark: str
    evidence: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage in the table."""

    multiple: str
    offered: str
    accepted: str
    goodput: str
    num_refused: str
    num_failed: str
    ttft: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRow:
    """One rate at which capacity was looked for."""

    rate: str
    finished: str
    goodput: str
    in_time: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OverloadPanel:
    """An overload test as it stands. `plots` is what the charts draw, in JSON's terms; `doing` what is played now;
    `verdict` the outcome in a sentence, once there is one."""

    id: int
    title: str
    pool: str
    workload: str
    way: str
    multiples: str
    state: str
    is_over: bool
    is_stop_asked: bool
    author: str
    created_at: datetime.datetime
    error: str
    doing: str
    run_id: int | None
    is_simulated: bool
    passed: bool | None
    verdict: str
    capacity: str
    probes: tuple[ProbeRow, ...]
    rows: tuple[VerdictRow, ...]
    stages: tuple[StageRow, ...]
    bounds: tuple[tuple[str, str], ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...]
    plots: list[dict[str, Any]]


def present_row(test: Overload) -> OverloadRow:
    """A test in one line."""
    result = test.result
    return OverloadRow(
        id=test.id,
        title=test.title,
        pool=test.pool,
        way=WAYS[test.plan.way],
        state=test.state,
        outcome=test.error if result is None else _verdict(result),
        has_failed=result is not None and not result.passed,
        author=test.author,
        created_at=test.created_at,
    )


def present_overload(test: Overload) -> OverloadPanel:
    """A test's own page."""
    result = test.result
    return OverloadPanel(
        id=test.id,
        title=test.title,
        pool=test.pool,
        workload=test.plan.workload.name,
        way=WAYS[test.plan.way],
        multiples=", ".join(f"{each:g}" for each in test.plan.multiples),
        state=test.state,
        is_over=test.is_over,
        is_stop_asked=test.is_stop_asked,
        author=test.author,
        created_at=test.created_at,
        error=test.error,
        doing=_doing(test),
        run_id=test.run_id,
        is_simulated=test.plan.way == "simulated",
        passed=None if result is None else result.passed,
        verdict="" if result is None else _verdict(result),
        capacity="" if result is None else _capacity(result.capacity),
        probes=tuple(_probe(each) for each in (test.probes if result is None else result.capacity.probes)),
        rows=() if result is None else tuple(_row(each) for each in result.verdicts),
        stages=() if result is None else tuple(_stage(each) for each in result.stages),
        bounds=() if result is None else tuple((name, _shown(value)) for name, value in result.bounds.items()),
        advice=() if result is None else result.advice,
        notes=() if result is None else result.notes,
        plots=[] if result is None else plots_of(result),
    )


def plots_of(result: OverloadResult) -> list[dict[str, Any]]:
    """What came of every second, and the queue, with a line where each stage begins."""
    begins = [
        {"axis": "x", "value": stage.begin_seconds, "label": f"{stage.multiple:g} ×", "color": "chart-rest"}
        for stage in result.stages
    ]
    seconds = {"label": "Time", "unit": "s"}
    rates = {
        "id": "overload-rates",
        "title": "Requests a second: offered, let in, refused, and within their objectives",
        "x": seconds,
        "y": {"label": "requests/s"},
        "series": [
            _series(result, "Offered", "offered_per_second", "chart-rest"),
            _series(result, "Let in", "accepted_per_second", "chart-wait"),
            {**_series(result, "Refused", "refused_per_second", "problem"), "dashed": True},
            _series(result, "Goodput", "goodput_per_second", "chart-objective"),
        ],
        "lines": [
            *begins,
            {
                "axis": "y",
                "value": result.capacity.saturation_per_second,
                "label": "capacity",
                "color": "chart-marker",
            },
        ],
    }
    waits = [each.num_waiting for each in result.slices if each.num_waiting is not None]
    bound = result.bounds["max_queue_requests"]
    is_drawn = isinstance(bound, int) and waits and bound <= _MOST_TIMES_DRAWN * max(1.0, *waits)
    line = {"axis": "y", "value": bound, "label": "max_queue_requests"}
    queue = {
        "id": "overload-queue",
        "title": "Requests that wait",
        "x": seconds,
        "y": {"label": "sequences"},
        "series": [{**_series(result, "Waiting", "num_waiting", "chart-wait"), "style": "area"}],
        "lines": [*begins, *([line] if is_drawn else [])],
    }
    return [rates, queue]


def _series(result: OverloadResult, label: str, field: str, color: str) -> dict[str, Any]:
    points = [{"x": each.at_seconds, "y": getattr(each, field)} for each in result.slices]
    return {"label": label, "points": points, "color": color}


def _verdict(result: OverloadResult) -> str:
    failed = [each.title for each in result.verdicts if each.judged == "failed"]
    num_unknown = sum(each.judged == "not judged" for each in result.verdicts)
    unknown = f"; {num_unknown} could not be judged" if num_unknown else ""
    if failed:
        return f"failed {len(failed)} of {len(result.verdicts)} criteria: {', '.join(failed)}{unknown}"
    return f"passed {len(result.verdicts) - num_unknown} of {len(result.verdicts)} criteria{unknown}"


def _capacity(capacity: Capacity) -> str:
    rate = capacity.goodput_rate
    within = "at none of the rates that were tried" if rate is None else f"up to {_number(rate)} requests/s"
    source = f", as {capacity.measured_by} measured it" if capacity.measured_by else ""
    return (
        f"{_number(capacity.saturation_per_second)} requests/s{source}: above that the queue grows. Nine of ten are "
        f"within their objectives {within}."
    )


def _doing(test: Overload) -> str:
    if test.is_over:
        return ""
    if test.state == "waiting":
        return "It waits for its turn."
    return f"It plays {test.doing}." if test.doing else "It begins."


def _row(verdict: Verdict) -> VerdictRow:
    return VerdictRow(
        title=verdict.title,
        bound=verdict.bound,
        measured=verdict.measured,
        judged=verdict.judged,
        mark=_MARKS[verdict.judged],
        evidence=verdict.evidence,
    )


def _stage(stage: Stage) -> StageRow:
    return StageRow(
        multiple=f"{stage.multiple:g} ×",
        offered=_number(stage.offered_per_second),
        accepted=_number(stage.accepted_per_second),
        goodput=_number(stage.goodput_per_second),
        num_refused=f"{stage.num_refused:,}",
        num_failed=f"{stage.num_failed:,}",
        ttft="–" if stage.ttft_p95_ms is None else f"{stage.ttft_p95_ms:,.0f}",
    )


def _probe(probe: Probe) -> ProbeRow:
    return ProbeRow(
        rate="as many as there are places" if probe.rate is None else f"{_number(probe.rate)} requests/s",
        finished=_number(probe.finished_per_second),
        goodput=_number(probe.goodput_per_second),
        in_time="–" if probe.in_time_ratio is None else f"{probe.in_time_ratio:.0%}",
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def _shown(value: float | int | str) -> str:
    return value if isinstance(value, str) else f"{value:,.10g}"
