"""Two groups of runs side by side as a page shows them. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from serving.lab.comparing import Comparison, Difference, Interval
from serving.lab.runs.comparing import Sides
from serving.lab.runs.selectors import RunView
from serving.lab.workloads.codec import decode_workload

Tone = Literal["good", "bad", "plain", "quiet"]

_LATENCY: Final = ("TTFT", "ITL", "TPOT", "E2E", "Queue time")
_SERVICE: Final = ("Requests", "Output", "Goodput", "SLO met", "Refused", "Failed")
_MOST_TOLD: Final = 6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SidePanel:
    """One side: its runs as links (number and title), and what they were played on and when."""

    name: str
    runs: tuple[tuple[int, str], ...]
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """One figure of both sides in words; `tone` says what `verdict` says in colour."""

    title: str
    unit: str
    first: str
    first_range: str
    second: str
    second_range: str
    change: str
    change_range: str
    verdict: str
    tone: Tone


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FigureTable:
    """Figures that belong together."""

    id: str
    title: str
    rows: tuple[FigureRow, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComparePanel:
    """A comparison. `conclusion` is it in a sentence, `differing` what differs in how the sides were set up."""

    workload: str
    conclusion: str
    knows_noise: bool
    sides: tuple[SidePanel, ...]
    differing: tuple[str, ...]
    tables: tuple[FigureTable, ...]


def present_comparison(sides: Sides, comparison: Comparison) -> ComparePanel:
    """A comparison with all that is known of it."""
    groups: dict[str, list[Difference]] = {"Latency": [], "Throughput and outcome": [], "Server": []}
    for each in comparison.differences:
        groups[_group_of(each)].append(each)
    groups["Latency"].sort(key=lambda each: [each.name.startswith(name) for name in _LATENCY].index(True))
    return ComparePanel(
        workload=decode_workload(sides.first[0].workload).name,
        conclusion=_conclusion(comparison),
        knows_noise=comparison.knows_noise,
        sides=(_side("A", sides.first), _side("B", sides.second)),
        differing=sides.differing,
        tables=tuple(
            FigureTable(id=title.split()[0].lower(), title=title, rows=tuple(map(_row, found)))
            for title, found in groups.items()
            if found
        ),
    )


def comparison_json(sides: Sides, comparison: Comparison) -> bytes:
    """`{schema_version, first, second, differing, comparison}`; the last has the fields of `Comparison`."""
    content: dict[str, Any] = {
        "schema_version": 1,
        "first": [run.id for run in sides.first],
        "second": [run.id for run in sides.second],
        "differing": sides.differing,
        "comparison": comparison,
    }
    return msgspec.json.encode(content)


def _group_of(difference: Difference) -> str:
    if difference.name.startswith(_LATENCY):
        return "Latency"
    return "Throughput and outcome" if difference.name in _SERVICE else "Server"


def _side(name: str, runs: Sequence[RunView]) -> SidePanel:
    first = runs[0]
    facts = [("Where", first.pool or str(first.target.get("url", ""))), ("Model", str(first.target.get("model", "")))]
    versions = sorted({run.tunables_version for run in runs if run.tunables_version is not None})
    if versions:
        facts.append(("Tunables", "version " + ", ".join(map(str, versions))))
    seeds = [decode_workload(run.workload).seed for run in runs]
    facts.append(("Seeds" if len(seeds) > 1 else "Seed", ", ".join(map(str, seeds))))
    if first.started_at is not None:
        facts.append(("Begun", f"{first.started_at:%Y-%m-%d %H:%M} UTC"))
    return SidePanel(
        name=name,
        runs=tuple((run.id, run.title) for run in runs),
        facts=tuple(facts),
        notes=tuple(
            f"Run {run.id} {run.state}{f': {run.error}' if run.error else ''}; figures are of what ended by then."
            for run in runs
            if run.state != "finished"
        ),
    )


def _conclusion(comparison: Comparison) -> str:
    judged = [each for each in comparison.differences if not each.not_judged]
    real = [each for each in judged if each.is_real]
    if not judged:
        return "Nothing can be judged: there are too few requests."
    if not real:
        return f"None of {len(judged)} figures differs by more than chance."
    told = [f"{each.name} {_change(each)} ({_verdict(each)[0]})" for each in real[:_MOST_TOLD]]
    more = len(real) - len(told)
    return (
        f"{len(real)} of {len(judged)} figures differ by more than chance: {', '.join(told)}"
        f"{f', and {more} more' if more else ''}."
    )


def _row(each: Difference) -> FigureRow:
    verdict, tone = _verdict(each)
    return FigureRow(
        title=each.name,
        unit="" if each.unit == "share" else each.unit,
        first=_number(each.first, each.unit),
        first_range=_range(each.first_interval, each.unit),
        second=_number(each.second, each.unit),
        second_range=_range(each.second_interval, each.unit),
        change=_change(each),
        change_range=_change_range(each),
        verdict=verdict,
        tone=tone,
    )


def _verdict(each: Difference) -> tuple[str, Tone]:
    if each.not_judged:
        return f"not judged: {each.not_judged}", "quiet"
    if not each.is_real:
        return "no real difference", "quiet"
    is_more = each.second > each.first
    if each.better == "neither":
        return ("higher" if is_more else "lower"), "plain"
    return ("better", "good") if is_more == (each.better == "more") else ("worse", "bad")


def _change(each: Difference) -> str:
    if each.change is None:
        return "–" if each.second == each.first else "from nothing"
    return _percent(each.change)


def _change_range(each: Difference) -> str:
    if each.low is None and each.high is None:
        return ""
    if each.high is None and each.low is not None:
        return f"{_percent(each.low)} or more"
    if each.low is None and each.high is not None:
        return f"{_percent(each.high)} or less"
    assert each.low is not None, "one of both is known"
    assert each.high is not None, "one of both is known"
    return f"{_percent(each.low)} to {_percent(each.high)}"


def _percent(share: float) -> str:
    return f"{share * 100:+,.1f} %".replace("-", "\N{MINUS SIGN}")


def _range(interval: Interval | None, unit: str) -> str:
    return "" if interval is None else f"{_number(interval.low, unit)} to {_number(interval.high, unit)}"


def _number(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value:.1%}"
    if unit in ("MiB", ""):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if unit == "ms" else f"{value:,.2f}"
