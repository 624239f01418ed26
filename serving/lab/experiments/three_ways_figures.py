"""What each way of batching came to, and what it costs against continuous batching. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from serving.lab.experiments.pictures import Picture
from serving.lab.experiments.sweep_points import ASSUMED_NOISE, Estimate, estimate
from serving.lab.experiments.three_ways_plan import WayName
from serving.lab.summaries import Percentiles, RunSummary


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a run: its title and unit, and whether more of it is better."""

    title: str
    unit: str
    is_more_better: bool
    of: Callable[[RunSummary], float | None]


def _percentile(interval: str, name: str) -> Callable[[RunSummary], float | None]:
    def read(summary: RunSummary) -> float | None:
        percentiles: Percentiles | None = getattr(summary.total, f"{interval}_ms")
        return None if percentiles is None else float(getattr(percentiles, name))

    return read


def _latency(title: str, interval: str, name: str) -> Measure:
    return Measure(title=f"{title} {name}", unit="ms", is_more_better=False, of=_percentile(interval, name))


MEASURES: Final[Mapping[str, Measure]] = {
    "ttft_p50": _latency("TTFT", "ttft", "p50"),
    "ttft_p95": _latency("TTFT", "ttft", "p95"),
    "itl_p50": _latency("ITL", "itl", "p50"),
    "itl_p95": _latency("ITL", "itl", "p95"),
    "e2e_p50": _latency("E2E", "e2e", "p50"),
    "e2e_p95": _latency("E2E", "e2e", "p95"),
    "throughput": Measure(
        title="Output tokens", unit="/s", is_more_better=True, of=lambda summary: summary.total.output_tokens_per_second
    ),
    "goodput": Measure(
        title="Goodput", unit="requests/s", is_more_better=True, of=lambda summary: summary.total.goodput_per_second
    ),
}


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way of batching: its tunables, and its runs' `figures` by the names of `MEASURES`, with confidence. `against`
    are the ratios to the continuous way's, run by run with the same requests. `num_padded_tokens` is what a
    rectangular batch would have computed to fill short prompts up to the longest, `padded_share` of all prompt tokens
    then; `num_idle_slot_steps` are places that stood empty in steps until their batch's end, `idle_share` of all
    places that were taken or empty then. None where the server did not tell. `picture` is a stretch of its steps."""

    name: WayName
    changes: dict[str, Any]
    figures: dict[str, Estimate]
    against: dict[str, Estimate] = {}
    num_runs: int
    num_requests: int
    num_refused: int
    num_failed: int
    num_padded_tokens: int | None = None
    padded_share: float | None = None
    num_idle_slot_steps: int | None = None
    idle_share: float | None = None
    picture: Picture | None = None


def way_of(
    name: WayName,
    changes: Mapping[str, Any],
    runs: Sequence[RunSummary],
    *,
    continuous: Sequence[RunSummary],
    picture: Picture | None,
) -> Way:
    """A way by its runs, of which each was asked the same as the continuous run in the same place."""
    padded, idle = _sum([run.padded_tokens for run in runs]), _sum([run.idle_slot_steps for run in runs])
    return Way(
        name=name,
        changes=dict(changes),
        figures=_estimates([{key: each.of(run) for key, each in MEASURES.items()} for run in runs]),
        against={} if name == "continuous" else _estimates(list(map(_ratios, runs, continuous)), estimate_ratio),
        num_runs=len(runs),
        num_requests=sum(run.total.num_requests for run in runs),
        num_refused=sum(run.total.num_refused for run in runs),
        num_failed=sum(run.total.num_failed for run in runs),
        num_padded_tokens=padded,
        padded_share=_share(padded, sum(run.total.prompt_tokens_per_second * run.measured_seconds for run in runs)),
        num_idle_slot_steps=idle,
        idle_share=_share(idle, sum(run.total.output_tokens_per_second * run.measured_seconds for run in runs)),
        picture=picture,
    )


def is_real(ratio: Estimate) -> bool:
    """Whether a ratio differs from 1 by more than the noise between the repeats."""
    return ratio.low > 1 or ratio.high < 1


def _ratios(run: RunSummary, continuous: RunSummary) -> dict[str, float | None]:
    ratios: dict[str, float | None] = {}
    for key, measure in MEASURES.items():
        value, base = measure.of(run), measure.of(continuous)
        ratios[key] = value / base if value and base else None
    return ratios


def estimate_ratio(ratios: Sequence[float]) -> Estimate:
    """The geometric mean of ratios above 0 and its confidence interval: twice and half as much are equally far from the
    same."""
    logarithm = estimate([math.log(ratio) for ratio in ratios])
    half_width = math.log1p(ASSUMED_NOISE) if len(ratios) == 1 else logarithm.half_width
    return Estimate(
        mean=math.exp(logarithm.mean),
        low=math.exp(logarithm.mean - half_width),
        high=math.exp(logarithm.mean + half_width),
    )


def _estimates(
    runs: Sequence[Mapping[str, float | None]], estimated: Callable[[Sequence[float]], Estimate] = estimate
) -> dict[str, Estimate]:
    found = {}
    for key in MEASURES:
        values = [value for run in runs if (value := run[key]) is not None and math.isfinite(value)]
        if values:
            found[key] = estimated(values)
    return found


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _share(part: int | None, rest: float) -> float | None:
    return None if part is None or part + rest <= 0 else part / (part + rest)
