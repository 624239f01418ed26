"""Points of a sweep: what the repeats of one value came to, with confidence. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from serving.lab.summaries import Figures, Percentiles, RunSummary
from serving.lab.workloads.workload import Workload

SLO_SHARE: Final = 0.95
"""An SLO is kept where this share of a class's requests keeps it: what its p95 is held against."""

ASSUMED_NOISE: Final = 0.05
"""Of one repeat alone nothing is known of the noise: as much of its value is taken for it."""

_STUDENT: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)
"""97.5 % quantiles of Student's t distribution for 1, 2, … degrees of freedom."""
_STUDENT_BEYOND: Final = 2.131

LATENCIES: Final[Mapping[str, str]] = {"ttft": "TTFT", "itl": "TPOT", "e2e": "E2E"}
"""The intervals that an SLO may bound, by its fields. `itl_ms` bounds the mean gap of one answer, which is its TPOT."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of repeats and its 95 % confidence interval (Student 1908, "The probable error of a mean"). Of one
    repeat alone the interval is an assumed one."""

    mean: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """How far the interval reaches to either side."""
        return (self.high - self.low) / 2


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What one value came to. `latencies` are p95 in milliseconds by `<class> <interval>`; `slo_use` is the highest
    share of its SLO that any class uses (above 1: it is broken), and with it `binding` names that class and interval;
    both are empty where no class has an SLO. `slo_met_ratio` is that of the class that keeps its SLO least.
    `version` is the tunables' (0: simulated)."""

    value: Any
    is_simulated: bool
    num_repeats: int
    num_requests: int
    output_tokens_per_second: Estimate
    requests_per_second: Estimate
    goodput_per_second: Estimate
    latencies: dict[str, Estimate]
    slo_use: Estimate | None
    slo_met_ratio: float | None
    binding: str
    keeps_slo: bool
    num_refused: int = 0
    num_failed: int = 0
    version: int = 0


def point_of(value: Any, summaries: Sequence[RunSummary], workload: Workload, *, version: int = 0) -> Point:
    """The point that the repeats at a value make; at least one."""
    totals = [summary.total for summary in summaries]
    uses = [slo_uses(summary, workload) for summary in summaries]
    mean_uses = {
        name: sum(use[name] for use in uses) / len(uses) for name in uses[0] if all(name in use for use in uses)
    }
    binding = max(mean_uses, key=lambda name: mean_uses[name], default="")
    ratios = [ratio for summary in summaries if (ratio := _least_met(summary, workload)) is not None]
    slo_use = estimate([use[binding] for use in uses]) if binding else None
    met = sum(ratios) / len(ratios) if ratios else None
    return Point(
        value=value,
        is_simulated=summaries[0].is_simulated,
        num_repeats=len(summaries),
        num_requests=sum(total.num_requests for total in totals),
        output_tokens_per_second=estimate([total.output_tokens_per_second for total in totals]),
        requests_per_second=estimate([total.requests_per_second for total in totals]),
        goodput_per_second=estimate([total.goodput_per_second for total in totals]),
        latencies=_latencies(summaries),
        slo_use=slo_use,
        slo_met_ratio=met,
        binding=binding,
        keeps_slo=(slo_use is None or slo_use.mean <= 1) and (met is None or met >= SLO_SHARE),
        num_refused=sum(total.num_refused for total in totals),
        num_failed=sum(total.num_failed for total in totals),
        version=version,
    )


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and confidence interval of at least one value."""
    count, mean = len(values), sum(values) / len(values)
    if count == 1:
        half = ASSUMED_NOISE * abs(mean)
    else:
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
        half = _student(count - 1) * deviation / math.sqrt(count)
    return Estimate(mean=mean, low=mean - half, high=mean + half)


def is_less(one: Estimate, other: Estimate) -> bool:
    """Whether one is less than the other by more than the noise: by more than both intervals' half widths together as
    independent errors add."""
    return other.mean - one.mean > math.hypot(one.half_width, other.half_width)


def slo_uses(summary: RunSummary, workload: Workload) -> dict[str, float]:
    """Which share of its SLO each class's p95 is, by `<class> <interval>`."""
    uses = {}
    for request_class in workload.classes:
        figures = summary.classes.get(request_class.name)
        for name in LATENCIES:
            bound = getattr(request_class.slo, f"{name}_ms")
            percentiles = _of(figures, name)
            if bound is not None and percentiles is not None:
                uses[f"{request_class.name} {name}"] = percentiles.p95 / bound
    return uses


def bound_of(workload: Workload, latency: str) -> float | None:
    """The SLO's bound of `<class> <interval>`, in milliseconds."""
    class_name, _, interval = latency.rpartition(" ")
    slo = next((each.slo for each in workload.classes if each.name == class_name), None)
    bound: float | None = None if slo is None else getattr(slo, f"{interval}_ms")
    return bound


def has_slo(workload: Workload) -> bool:
    """Whether any class asks anything of its answers."""
    return any(_asks(each.slo) for each in workload.classes)


def _asks(slo: Any) -> bool:
    return any(getattr(slo, f"{name}_ms") is not None for name in LATENCIES)


def _least_met(summary: RunSummary, workload: Workload) -> float | None:
    """Of the classes with an SLO. What was refused or failed has not met it."""
    asking = [each.name for each in workload.classes if _asks(each.slo)]
    found = [figures.slo_met_ratio for name in asking if (figures := summary.classes.get(name)) is not None]
    return min((ratio for ratio in found if ratio is not None), default=None)


def _latencies(summaries: Sequence[RunSummary]) -> dict[str, Estimate]:
    """Those that every repeat has, of every class and of all together (`total`, which no class may be named so as to
    hide)."""
    found: dict[str, list[float]] = {}
    for summary in summaries:
        for class_name, figures in {**summary.classes, "total": summary.total}.items():
            for name in LATENCIES:
                percentiles = _of(figures, name)
                if percentiles is not None:
                    found.setdefault(f"{class_name} {name}", []).append(percentiles.p95)
    return {name: estimate(values) for name, values in found.items() if len(values) == len(summaries)}


def _of(figures: Figures | None, name: str) -> Percentiles | None:
    if figures is None:
        return None
    return {"ttft": figures.ttft_ms, "itl": figures.tpot_ms, "e2e": figures.e2e_ms}[name]


def _student(freedom: int) -> float:
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _STUDENT_BEYOND
