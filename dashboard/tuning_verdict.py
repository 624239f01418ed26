"""How a version does on the one engine that tries it, against the other engines: pure functions."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dashboard.tuning_effect import (
    INTERVALS,
    PERCENTS,
    Figure,
    Verdict,
    compare_costs,
    compare_loads,
    milliseconds,
)
from serving.telemetry.conditions import told
from serving.telemetry.frames import IntervalSummaries
from serving.telemetry.sketches import IntervalSummary
from serving.telemetry.tallies import outcomes_of
from serving.tuning.canary_reading import LEAST_REQUESTS, LEAST_REQUESTS_P99, CanaryReading, CanarySide

_LEAST_STEPS = 20
_BOUNDS = (
    f"Of fewer than {LEAST_REQUESTS} on a side nothing is judged, a p99 of fewer than {LEAST_REQUESTS_P99}; failures"
    " and preemptions where they differ by more than two standard errors. Differences of up to 5 % count as none."
)
_TOO_FEW = "too few to tell"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRow:
    """One interval: its percentiles of the other engines' requests and the canary's."""

    title: str
    samples: str
    figures: tuple[Figure, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CanaryVerdict:
    """The canary's engine beside the others: `before` in a figure is theirs, `after` the canary's. `requests` says how
    many each side had, `note` over what time, `summary` what follows of it all."""

    summary: str
    requests: str
    note: str
    intervals: tuple[IntervalRow, ...]
    work: tuple[Figure, ...]


def present_verdict(reading: CanaryReading) -> CanaryVerdict | None:
    """The comparison; None where no monitor tells of the requests."""
    if reading.seconds is None:
        return None
    others, tried = reading.others, reading.tried
    num_others, num_tried = (_num_requests(side.share.intervals) for side in (others, tried))
    rows = tuple(_interval_row(name, title, others, tried) for name, title in INTERVALS)
    work = (_step(others, tried), _tokens(others, tried), _preemptions(others, tried), _failures(others, tried))
    return CanaryVerdict(
        summary=_summary([figure for row in rows for figure in row.figures], work),
        requests=f"{num_tried:,} {_requests(num_tried)} of the canary, {num_others:,} of the other engines",
        note=f"Requests of the last {_duration(reading.seconds)}. {_BOUNDS}",
        intervals=rows,
        work=work,
    )


def _interval_row(name: str, title: str, others: CanarySide, tried: CanarySide) -> IntervalRow:
    first, second = (_interval(side, name) for side in (others, tried))
    # A handful of long streams has thousands of gaps, and tells of a handful of requests all the same.
    num = min(min(summary.count, _num_requests(side.share.intervals)) for summary, side in _pairs(others, tried, name))
    return IntervalRow(
        title=title,
        samples=f"{first.count:,} → {second.count:,}",
        figures=tuple(_percentile(percent, first, second, num=num) for percent in PERCENTS),
    )


def _pairs(others: CanarySide, tried: CanarySide, name: str) -> list[tuple[IntervalSummary, CanarySide]]:
    return [(_interval(side, name), side) for side in (others, tried)]


def _percentile(percent: int, first: IntervalSummary, second: IntervalSummary, *, num: int) -> Figure:
    return _named(
        compare_costs(
            f"p{percent}",
            getattr(first, f"p{percent}"),
            getattr(second, f"p{percent}"),
            told=milliseconds,
            samples=(first.count, second.count),
            is_enough=num >= (LEAST_REQUESTS_P99 if percent > 95 else LEAST_REQUESTS),
        )
    )


def _step(others: CanarySide, tried: CanarySide) -> Figure:
    num = min(others.work.num_steps, tried.work.num_steps)
    first, second = others.work.step_ms, tried.work.step_ms
    return _named(compare_costs("Mean step", first, second, told=_ms, samples=None, is_enough=num >= _LEAST_STEPS))


def _tokens(others: CanarySide, tried: CanarySide) -> Figure:
    first, second = (side.work.generated_tokens_per_second for side in (others, tried))
    return compare_loads("Generated tokens/s, an engine", first, second)


def _preemptions(others: CanarySide, tried: CanarySide) -> Figure:
    works = [side.work for side in (others, tried)]
    first, second = (work.preemptions_per_minute for work in works)
    # Only of engines that live is there a time in which it happened.
    is_enough = min(work.num_steps for work in works) >= _LEAST_STEPS and _differ_beyond_chance(
        [(work.num_preemptions, work.seconds) for work in works]
    )
    title = "Preemptions a minute, an engine"
    return _named(compare_costs(title, first, second, told=_rate, samples=None, is_enough=is_enough))


def _failures(others: CanarySide, tried: CanarySide) -> Figure:
    ended = [outcomes_of(side.share.ended) for side in (others, tried)]
    nums = [counts["finished"] + counts["refused"] + counts["failed"] for counts in ended]
    first, second = (counts["failed"] / num if num else None for counts, num in zip(ended, nums, strict=True))
    failed = [(counts["failed"], num) for counts, num in zip(ended, nums, strict=True)]
    is_enough = min(nums) >= LEAST_REQUESTS and _differ_beyond_chance(failed)
    return _named(
        compare_costs("Failed requests", first, second, told=_share, samples=(nums[0], nums[1]), is_enough=is_enough)
    )


def _differ_beyond_chance(mishaps: Sequence[tuple[int, float]]) -> bool:
    """Whether rates of rare events, so many in so much each, differ by more than two standard errors of their
    difference (Poisson), or there was no event at all."""
    if not any(count for count, _ in mishaps):
        return True
    (first, first_size), (second, second_size) = mishaps
    error = math.sqrt(first / first_size**2 + second / second_size**2)
    return abs(first / first_size - second / second_size) > 2 * error


def _summary(percentiles: Sequence[Figure], work: Sequence[Figure]) -> str:
    """In how many of the measures the canary is better or worse."""
    if all(figure.verdict == "unknown" for figure in percentiles):
        return "Too few requests to tell yet"
    counts = Counter(figure.verdict for figure in (*percentiles, *work))
    words: dict[Verdict, str] = {
        "better": "better",
        "worse": "worse",
        "same": "about the same",
        "unknown": _TOO_FEW,
    }
    parts = [f"{counts[verdict]} {word}" for verdict, word in words.items() if counts[verdict]]
    return f"Of {counts.total() - counts['more'] - counts['less']} measures: {', '.join(parts)}"


def _named(figure: Figure) -> Figure:
    return dataclasses.replace(figure, words=_TOO_FEW) if figure.verdict == "unknown" else figure


def _interval(side: CanarySide, name: str) -> Any:
    return getattr(side.share.intervals, name)


def _num_requests(intervals: IntervalSummaries) -> int:
    """Those that were scheduled."""
    return intervals.queue_time_seconds.count


def _requests(num: int) -> str:
    return "request" if num == 1 else "requests"


def _duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"


def _ms(value: float | None) -> str:
    return "–" if value is None else told(value, "ms")


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _share(value: float | None) -> str:
    return "–" if value is None else told(value, "share")
