"""What pages about workloads show. Pure functions."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from serving.lab.workloads.arrivals import ClosedLoop
from serving.lab.workloads.distributions import Histogram, Lengths
from serving.lab.workloads.drawing import due_times, quantiles
from serving.lab.workloads.estimating import FittedLengths, figures_of, shares_in_bins
from serving.lab.workloads.evidence import Evidence
from serving.lab.workloads.store import Known
from serving.lab.workloads.words import amount_in_words, arrivals_in_words, class_in_words, lengths_in_words
from serving.lab.workloads.workload import RequestClass, Workload

_NUM_BINS = 30
_NUM_RATES = 60
_LEAST_RATES = 6
_REQUESTS_A_RATE = 8
_MOST_DRAWN = 200_000
_KINDS = {"fixed": "one length", "histogram": "as counted", "lognormal": "lognormal"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRow:
    """A line of the list."""

    name: str
    about: str
    origin: str
    arrivals: str
    amount: str
    classes: tuple[str, ...]
    changed_at: Any
    author: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LengthsRow:
    """A line of the table of lengths: what is played, and beside it what was measured."""

    request_class: str
    what: str
    shape: str
    mean: str
    p50: str
    p95: str
    p99: str
    measured: str
    fit: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """What requests of a class are like, beside their lengths."""

    name: str
    share: str
    tenant: str
    priority: int
    text: str
    objectives: str


def present_row(known: Known) -> WorkloadRow:
    """A workload's line in the list."""
    workload = known.workload
    return WorkloadRow(
        name=workload.name,
        about=workload.about,
        origin=known.origin,
        arrivals=arrivals_in_words(workload.arrivals),
        amount=amount_in_words(workload),
        classes=tuple(f"{each.name}: {class_in_words(each)}" for each in workload.classes[:3])
        + ((f"and {len(workload.classes) - 3} more",) if len(workload.classes) > 3 else ()),
        changed_at=known.changed_at,
        author=known.author,
    )


def present_classes(workload: Workload) -> tuple[ClassRow, ...]:
    """The classes, each with its share of all requests."""
    total = sum(each.share for each in workload.classes)
    return tuple(
        ClassRow(
            name=each.name,
            share=f"{each.share / total:.0%}" if each.share in (0, total) else f"{each.share / total:.1%}",
            tenant=each.tenant,
            priority=each.priority,
            text=class_in_words(each),
            objectives=_objectives(each),
        )
        for each in workload.classes
    )


def present_lengths(workload: Workload, evidence: Evidence | None) -> tuple[LengthsRow, ...]:
    """Prompts and answers of each class, in figures."""
    rows = []
    for each, (what, lengths) in itertools.product(workload.classes, _BOTH):
        played: Lengths = getattr(each, lengths)
        figures = figures_of(played)
        fit = _fit_of(evidence, each.name, what)
        rows.append(
            LengthsRow(
                request_class=each.name,
                what=what,
                shape=lengths_in_words(played),
                **{name: f"{value:,.0f}" for name, value in figures.items()},
                measured="" if fit is None else f"{fit.mean:,.0f} · {fit.p50:,} · {fit.p95:,} · {fit.p99:,}",
                fit="" if fit is None else _fit_in_words(fit),
            )
        )
    return tuple(rows)


def present_charts(workload: Workload, evidence: Evidence | None) -> dict[str, Any]:
    """What is drawn, for the page's scripts: shares of all lengths in bins, cumulative ones beside them, and arrivals
    a second over time. `measured` is null where nothing was."""
    lengths = [
        _chart_of(f"{index}-{what}", getattr(each, field), _fit_of(evidence, each.name, what))
        for index, each in enumerate(workload.classes)
        for what, field in _BOTH
    ]
    return {"lengths": lengths, "arrivals": _arrivals_chart(workload, evidence)}


_BOTH = (("prompts", "prompt_tokens"), ("answers", "output_tokens"))


def _objectives(request_class: RequestClass) -> str:
    slo = request_class.slo
    named = (("TTFT", slo.ttft_ms), ("ITL", slo.itl_ms), ("E2E", slo.e2e_ms))
    return ", ".join(f"{name} {bound:,g} ms" for name, bound in named if bound is not None) or "none"


def _fit_of(evidence: Evidence | None, class_name: str, what: str) -> FittedLengths | None:
    found = None if evidence is None else evidence.classes.get(class_name)
    if found is None:
        return None
    return found.prompt if what == "prompts" else found.output


def _fit_in_words(fit: FittedLengths) -> str:
    distance = "not fitted" if fit.lognormal_distance is None else f"{fit.lognormal_distance:.3f}"
    return f"{_KINDS[fit.chosen]}; distance of lognormal {distance}, of histogram {fit.histogram_distance:.3f}"


def _chart_of(name: str, lengths: Lengths, fit: FittedLengths | None) -> dict[str, Any]:
    measured = fitted = None
    edges = list(_edges_of(lengths) if fit is None else fit.histogram.edges)
    if fit is not None:
        measured = shares_in_bins(fit.histogram, edges)
        fitted = None if fit.lognormal is None else shares_in_bins(fit.lognormal, edges)
    described = shares_in_bins(lengths, edges)
    return {"name": name, "edges": edges, "measured": measured, "fitted": fitted, "played": described}


def _edges_of(lengths: Lengths) -> list[int]:
    """Edges of bins whose widths grow as the lengths do, over nearly all of a distribution."""
    if isinstance(lengths, Histogram) and len(lengths.counts) <= 2 * _NUM_BINS:
        return list(lengths.edges)
    low, high = quantiles(lengths, np.array([0.001, 0.999])).tolist()
    rising = np.unique(np.rint(np.geomspace(max(1, low), high + 1, _NUM_BINS + 1)).astype(np.int64)).tolist()
    found: list[int] = rising if len(rising) > 1 else [low, low + 1]
    return found


def _arrivals_chart(workload: Workload, evidence: Evidence | None) -> dict[str, Any]:
    dues = _drawn_dues(workload)
    span = workload.duration_seconds or (dues[-1] if dues else 0.0)
    if len(dues) == _MOST_DRAWN:
        span = dues[-1]
    num_rates = min(_NUM_RATES, max(_LEAST_RATES, len(dues) // _REQUESTS_A_RATE))
    seconds = max(span, 1e-3) / num_rates
    if evidence is not None:
        num_rates, seconds = len(evidence.rates), evidence.rate_seconds
    counts, _ = np.histogram(dues, bins=num_rates, range=(0.0, seconds * num_rates))
    drawn = [round(float(count) / seconds, 4) for count in counts] if dues else None
    return {"seconds": seconds, "measured": None if evidence is None else list(evidence.rates), "played": drawn}


def _drawn_dues(workload: Workload) -> list[float]:
    """When requests of the workload are due, of very many the first; none for a closed loop."""
    if isinstance(workload.arrivals, ClosedLoop):
        return []
    until = workload.duration_seconds or float("inf")
    limit = min(_MOST_DRAWN, workload.num_requests or _MOST_DRAWN)
    dues = due_times(workload.arrivals, seed=workload.seed, duration_seconds=workload.duration_seconds)
    return list(itertools.takewhile(lambda due: due < until, itertools.islice(dues, limit)))
