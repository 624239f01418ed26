"""What the pages about predictions show: pure functions."""

from __future__ import annotations

import dataclasses
import datetime
import statistics
from collections.abc import Callable, Mapping
from typing import Final

from dashboard.presenters import ChangeRow, present_changes
from dashboard.tuning_effect import WORDS, Figure, Verdict, compare_costs, compare_loads, milliseconds
from serving.lab.predictions.results import FIGURES, Predicted, predicted_figures, refused_ratio
from serving.lab.predictions.selectors import PredictionView, Record
from serving.lab.predictions.services import LAST_HOUR
from serving.lab.summaries import RunSummary

_KINDS: Final = {kind.name: kind for kind in FIGURES}
_GAINS: Final[Mapping[Verdict, Verdict]] = {"more": "better", "less": "worse"}
_DOING: Final = {"waiting": "It waits for the Lab's process.", "running": "It is simulated: mostly some seconds."}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRow:
    """One prediction in the list. `off_by` is the median error of its figures, once they were measured."""

    id: int
    pool: str
    workload: str
    changes: tuple[ChangeRow, ...]
    state: str
    outcome: str
    version: int | None
    off_by: str
    author: str
    created_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordRow:
    """How good predictions of one figure were."""

    title: str
    count: int
    median: str
    p95: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """A figure as it was predicted, and as it came. `off_by` has a sign: how much too much was predicted."""

    title: str
    predicted: str
    measured: str
    off_by: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PredictionPanel:
    """A prediction as it stands. `doing` is empty once it is over; `happened` says in a sentence what became of it."""

    id: int
    pool: str
    workload: str
    workload_name: str
    changes: tuple[ChangeRow, ...]
    state: str
    is_over: bool
    doing: str
    error: str
    figures: tuple[Figure, ...]
    refusals: str
    took: str
    notes: tuple[str, ...]
    version: int | None
    happened: str
    measured: tuple[MeasuredRow, ...]
    author: str
    created_at: datetime.datetime


def present_row(found: PredictionView) -> PredictionRow:
    """A prediction in the list."""
    errors = [abs(error) for error in found.errors.values()]
    return PredictionRow(
        id=found.id,
        pool=found.pool,
        workload=_named(found),
        changes=present_changes(found.changes),
        state=found.state,
        outcome=found.error or _headline(found.predicted),
        version=found.version,
        off_by=_percent(statistics.median(errors)) if errors else "",
        author=found.author,
        created_at=found.created_at,
    )


def present_record(record: Record) -> tuple[RecordRow, ...]:
    """The record, a row a figure."""
    return tuple(
        RecordRow(
            title=_KINDS[each.name].title,
            count=each.count,
            median=_percent(each.median_error),
            p95=_percent(each.p95_error),
        )
        for each in record.figures
    )


def present_prediction(found: PredictionView) -> PredictionPanel:
    """A prediction by itself."""
    predicted = found.predicted
    return PredictionPanel(
        id=found.id,
        pool=found.pool,
        workload=_named(found),
        workload_name="" if found.workload.name == LAST_HOUR else found.workload.name,
        changes=present_changes(found.changes),
        state=found.state,
        is_over=found.is_over,
        doing=_DOING.get(found.state, ""),
        error=found.error,
        figures=() if predicted is None else _figures(predicted),
        refusals="" if predicted is None else _refusals(predicted),
        took="" if predicted is None else _took(predicted, found.basis.envelope.num_engines),
        notes=() if predicted is None else predicted.notes,
        version=found.version,
        happened=_happened(found),
        measured=_measured(found),
        author=found.author,
        created_at=found.created_at,
    )


def _named(found: PredictionView) -> str:
    return "the last hour's traffic" if found.workload.name == LAST_HOUR else found.workload.name


def _headline(predicted: Predicted | None) -> str:
    if predicted is None:
        return ""
    before, after = predicted_figures(predicted.current), predicted_figures(predicted.proposed)
    return "; ".join(
        f"{kind.title} {_told(kind.name, before.get(kind.name))} → {_told(kind.name, after.get(kind.name))}"
        for kind in FIGURES
        if kind.name in ("ttft_p95", "itl_p95", "output_tokens_per_second")
    )


def _figures(predicted: Predicted) -> tuple[Figure, ...]:
    before, after = predicted_figures(predicted.current), predicted_figures(predicted.proposed)
    costs = [_cost(kind.title, before.get(kind.name), after.get(kind.name)) for kind in FIGURES if kind.unit == "ms"]
    rates = [_gain(kind.title, before.get(kind.name), after.get(kind.name)) for kind in FIGURES if kind.unit == "/s"]
    current, proposed = predicted.current, predicted.proposed
    rates.append(_gain("Goodput/s", current.total.goodput_per_second, proposed.total.goodput_per_second))
    shares = [
        _share("KV memory at its peak", current.peak_kv_used_ratio, proposed.peak_kv_used_ratio),
        _share("Refused", refused_ratio(current), refused_ratio(proposed)),
        _share("Missed the SLO", _missed(current), _missed(proposed)),
    ]
    return (*costs, *rates, *shares)


def _cost(title: str, first: float | None, second: float | None) -> Figure:
    return _compare(title, first, second, told=_milliseconds)


def _gain(title: str, first: float | None, second: float | None) -> Figure:
    """Something of which more is better: both sides are offered the same requests."""
    figure = compare_loads(title, first, second)
    verdict = _GAINS.get(figure.verdict, figure.verdict)
    return dataclasses.replace(figure, before=_rate(first), after=_rate(second), verdict=verdict, words=WORDS[verdict])


def _share(title: str, first: float | None, second: float | None) -> Figure:
    return _compare(title, first, second, told=lambda value: "–" if value is None else f"{value:.1%}")


def _compare(title: str, first: float | None, second: float | None, *, told: Callable[[float | None], str]) -> Figure:
    known = first is not None and second is not None
    return compare_costs(title, first, second, told=told, samples=None, is_enough=known)


def _missed(summary: RunSummary) -> float | None:
    met = summary.total.slo_met_ratio
    return None if met is None else 1 - met


def _refusals(predicted: Predicted) -> str:
    """Which refusals, in words; empty where there are none."""
    return "; ".join(
        f"{side}: {_codes(summary.refused_by_code)}"
        for side, summary in (("current", predicted.current), ("proposed", predicted.proposed))
        if summary.refused_by_code
    )


def _codes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {code}" for code, count in sorted(counts.items()))


def _took(predicted: Predicted, num_engines: int) -> str:
    engines = "1 engine" if num_engines == 1 else f"{num_engines} engines"
    requests = predicted.proposed.total.num_requests
    return (
        f"{requests:,} requests on {engines}, each side: {predicted.simulated_seconds:,.0f} s simulated in "
        f"{predicted.wall_seconds:.2g} s"
    )


def _happened(found: PredictionView) -> str:
    if found.version is None:
        return "No version was stored with these values within an hour." if found.is_over else ""
    if found.measured is None:
        return "It was applied; what happens under it is filled in when it has been in force for long enough."
    if found.measured.note:
        return f"It was applied, and not measured: {found.measured.note}."
    return f"It was applied, and measured over {found.measured.seconds / 60:.2g} min. Traffic changes, too."


def _measured(found: PredictionView) -> tuple[MeasuredRow, ...]:
    if found.predicted is None or found.measured is None:
        return ()
    predicted, measured = predicted_figures(found.predicted.proposed), found.measured.figures
    return tuple(
        MeasuredRow(
            title=kind.title,
            predicted=_told(kind.name, predicted.get(kind.name)),
            measured=_told(kind.name, measured.get(kind.name)),
            off_by=f"{100 * found.errors[kind.name]:+.1f} %" if kind.name in found.errors else "–",
        )
        for kind in FIGURES
        if kind.name in measured
    )


def _told(name: str, value: float | None) -> str:
    if _KINDS[name].unit == "ms":
        return _milliseconds(value)
    return _rate(value)


def _rate(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def _milliseconds(value: float | None) -> str:
    return milliseconds(None if value is None else value / 1000)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
