"""What a prediction says, and what was measured of it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec
import numpy as np

from serving.lab.costs.envelope import Envelope
from serving.lab.costs.model import CostModel
from serving.lab.summaries import Figures, RunSummary
from serving.telemetry.frames import IntervalSummaries

LEAST_SAMPLES: Final = 20
"""Of fewer durations no percentile is compared with a predicted one."""


class Basis(msgspec.Struct, frozen=True, kw_only=True):
    """What a prediction is computed with: what steps cost, what an engine has room for, and how many engines lived
    (`num_engines` of the envelope). `notes` say how far that is the pool's own."""

    cost: CostModel
    envelope: Envelope
    notes: tuple[str, ...] = ()


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Both simulations of the same requests, without their moments; `wall_seconds` is what they took together."""

    current: RunSummary
    proposed: RunSummary
    simulated_seconds: float
    wall_seconds: float
    notes: tuple[str, ...] = ()


class MeasuredFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured over `seconds` under the version that was predicted, by the names of `FIGURES`. `note` says
    why nothing was, and is empty otherwise."""

    seconds: int = 0
    figures: dict[str, float] = {}
    note: str = ""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One figure that is predicted and measured."""

    name: str
    title: str
    unit: Literal["ms", "/s"]


FIGURES: Final = (
    Kind(name="ttft_p50", title="TTFT p50", unit="ms"),
    Kind(name="ttft_p95", title="TTFT p95", unit="ms"),
    Kind(name="itl_p50", title="ITL p50", unit="ms"),
    Kind(name="itl_p95", title="ITL p95", unit="ms"),
    Kind(name="e2e_p50", title="E2E p50", unit="ms"),
    Kind(name="e2e_p95", title="E2E p95", unit="ms"),
    Kind(name="output_tokens_per_second", title="Generated tokens/s", unit="/s"),
    Kind(name="finished_per_second", title="Requests finished/s", unit="/s"),
)

_INTERVALS: Final = {"ttft": "ttft_seconds", "itl": "itl_seconds", "e2e": "e2e_seconds"}


def predicted_figures(summary: RunSummary) -> dict[str, float]:
    """The figures of a simulation by the names of `FIGURES`; those of which nothing came are left out."""
    total = summary.total
    found = {f"{name}_p{percent}": _of_summary(total, name, percent) for name in _INTERVALS for percent in (50, 95)}
    seconds = summary.measured_seconds
    found["output_tokens_per_second"] = total.output_tokens_per_second
    found["finished_per_second"] = total.num_finished / seconds if seconds > 0 else None
    return {name: value for name, value in found.items() if value is not None}


def measured_figures(intervals: IntervalSummaries, means: Mapping[str, float]) -> dict[str, float]:
    """The figures of a pool's traffic by the names of `FIGURES`; those of which too little was seen are left out."""
    found: dict[str, float] = {}
    for name, field in _INTERVALS.items():
        summary = getattr(intervals, field)
        for percent in (50, 95):
            seconds = getattr(summary, f"p{percent}")
            if summary.count >= LEAST_SAMPLES and seconds is not None:
                found[f"{name}_p{percent}"] = 1000 * seconds
    for name, field in (
        ("output_tokens_per_second", "generated_tokens_per_second"),
        ("finished_per_second", "finished_per_second"),
    ):
        if means.get(field):
            found[name] = means[field]
    return found


def relative_errors(predicted: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """By how much of the measured figure the predicted one is off, with its sign: 0.1 is 10 % too much. Of figures
    that both know."""
    return {
        kind.name: predicted[kind.name] / measured[kind.name] - 1
        for kind in FIGURES
        if predicted.get(kind.name) is not None and measured.get(kind.name)
    }


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """How far `count` predictions of a figure were off, regardless of the sign: in the middle, and in one of twenty
    or more."""

    name: str
    count: int
    median_error: float
    p95_error: float


def accuracy_of(errors: Iterable[Mapping[str, float]]) -> tuple[Accuracy, ...]:
    """The record over many predictions, a figure after the other; those that were never measured are left out."""
    known = list(errors)
    found = []
    for kind in FIGURES:
        values = [abs(each[kind.name]) for each in known if kind.name in each]
        if values:
            median, worst = (float(value) for value in np.percentile(values, (50, 95)))
            found.append(Accuracy(name=kind.name, count=len(values), median_error=median, p95_error=worst))
    return tuple(found)


def refused_ratio(summary: RunSummary) -> float:
    """The share of all requests that was refused."""
    total = summary.total
    return total.num_refused / total.num_requests if total.num_requests else 0.0


def _of_summary(total: Figures, name: str, percent: int) -> float | None:
    found = getattr(total, f"{name}_ms")
    return None if found is None else float(getattr(found, f"p{percent}"))
