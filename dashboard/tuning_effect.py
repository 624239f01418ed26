"""What a version did: the ten minutes before it against the ten minutes after. Pure functions."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from typing import Literal

from serving.telemetry.conditions import LEAST_SAMPLES
from serving.telemetry.history_selectors import Measured
from serving.telemetry.sketches import IntervalSummary
from serving.tuning.effects import LOOK, Stretches

LEAST_LOOK = datetime.timedelta(minutes=3)
"""Before so much of it is over, what a version did is not judged: a cold burst would decide it."""
_SAME_RATIO = 0.05
"""What changed by less is told as unchanged: two quiet ten minutes differ by as much."""
INTERVALS = (
    ("ttft_seconds", "TTFT"),
    ("itl_seconds", "ITL"),
    ("e2e_seconds", "E2E"),
    ("queue_time_seconds", "Queue time"),
)
PERCENTS = (50, 95, 99)
_RATES = (
    ("generated_tokens_per_second", "Generated tokens/s"),
    ("prompt_tokens_per_second", "Prompt tokens/s"),
    ("finished_per_second", "Requests finished/s"),
)
Verdict = Literal["better", "worse", "same", "more", "less", "unknown"]
WORDS: dict[Verdict, str] = {
    "better": "better",
    "worse": "worse",
    "same": "about the same",
    "more": "more",
    "less": "less",
    "unknown": "too few to compare",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measure before and after. `change` has an arrow and a share, and is empty where nothing can be said."""

    title: str
    before: str
    after: str
    samples_before: str
    samples_after: str
    change: str
    verdict: Verdict
    words: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A version's effect. `headline` are the four figures that a row shows, `figures` all of them; `note` says what the
    comparison lacks, and is empty where it lacks nothing; `is_open` says that the ten minutes after it are not over."""

    headline: tuple[Figure, ...]
    figures: tuple[Figure, ...]
    note: str
    is_open: bool


def effect_of(stretches: Stretches, before: Measured | None, after: Measured | None) -> Effect:
    """The comparison of what was measured on both sides; without a verdict in its first minutes."""
    figures = tuple(
        _compare_interval(name, title, percent, before, after) for name, title in INTERVALS for percent in PERCENTS
    )
    rates = tuple(_compare_rate(name, title, before, after) for name, title in _RATES)
    if stretches.is_open and stretches.until - stretches.at < LEAST_LOOK:
        figures, rates = _without_verdicts(figures), _without_verdicts(rates)
    headline = (*(figure for figure in figures if figure.title in {"TTFT p95", "ITL p95", "E2E p95"}), rates[0])
    return Effect(
        headline=headline, figures=(*figures, *rates), note=_note(stretches, before, after), is_open=stretches.is_open
    )


def _without_verdicts(figures: tuple[Figure, ...]) -> tuple[Figure, ...]:
    return tuple(
        figure if figure.verdict == "unknown" else dataclasses.replace(figure, change="", verdict="unknown", words="")
        for figure in figures
    )


def _compare_interval(name: str, title: str, percent: int, before: Measured | None, after: Measured | None) -> Figure:
    old, new = _summary(before, name), _summary(after, name)
    return compare_costs(
        f"{title} p{percent}",
        getattr(old, f"p{percent}"),
        getattr(new, f"p{percent}"),
        told=milliseconds,
        samples=(old.count, new.count),
        is_enough=min(old.count, new.count) >= LEAST_SAMPLES,
    )


def compare_costs(
    title: str,
    first: float | None,
    second: float | None,
    *,
    told: Callable[[float | None], str],
    samples: tuple[int, int] | None,
    is_enough: bool,
) -> Figure:
    """Something of which less is better, on both sides."""
    verdict: Verdict = _judge(first, second, if_less="better", if_more="worse") if is_enough else "unknown"
    return Figure(
        title=title,
        before=told(first),
        after=told(second),
        samples_before="" if samples is None else f"{samples[0]:,}",
        samples_after="" if samples is None else f"{samples[1]:,}",
        change=_change(first, second) if is_enough else "",
        verdict=verdict,
        words=WORDS[verdict],
    )


def _compare_rate(name: str, title: str, before: Measured | None, after: Measured | None) -> Figure:
    first = None if before is None else before.means.get(name, 0.0)
    second = None if after is None else after.means.get(name, 0.0)
    return compare_loads(title, first, second)


def compare_loads(title: str, first: float | None, second: float | None) -> Figure:
    """A rate on both sides: more load is neither better nor worse."""
    verdict = _judge(first, second, if_less="less", if_more="more")
    return Figure(
        title=title,
        before=_rate(first),
        after=_rate(second),
        samples_before="",
        samples_after="",
        change=_change(first, second),
        verdict=verdict,
        words=WORDS[verdict],
    )


def _summary(measured: Measured | None, name: str) -> IntervalSummary:
    return IntervalSummary() if measured is None else getattr(measured.intervals, name)


def _judge(first: float | None, second: float | None, *, if_less: Verdict, if_more: Verdict) -> Verdict:
    if first is None or second is None:
        return "unknown"
    if abs(second - first) <= _SAME_RATIO * first:
        return "same"
    return if_less if second < first else if_more


def _change(first: float | None, second: float | None) -> str:
    if first is None or second is None or not first:
        return ""
    share = (second - first) / first
    if abs(share) <= _SAME_RATIO:
        return "→"
    sign = "↓" if share < 0 else "↑"
    return f"{sign} {100 * abs(share):.0f} %" if abs(share) < 10 else f"{sign} {1 + share:.0f} ×"


def _note(stretches: Stretches, before: Measured | None, after: Measured | None) -> str:
    if before is None and after is None and not stretches.is_open:
        return "Nothing was measured around it, or it is kept no longer."
    if stretches.is_open:
        covered = 0 if after is None else after.seconds
        return f"Not enough yet: {_minutes(covered)} of 10 min after it are measured."
    notes = []
    if before is None:
        notes.append("nothing was measured before it")
    elif before.seconds < LOOK.total_seconds() * 0.9:
        notes.append(f"only {_minutes(before.seconds)} before it are known")
    if after is None:
        notes.append("nothing was measured after it")
    elif stretches.next_number is None and after.seconds < LOOK.total_seconds() * 0.9:
        notes.append(f"only {_minutes(after.seconds)} after it are known")
    elif stretches.next_number is not None:
        notes.append(f"only {_minutes(after.seconds)} after it, until version {stretches.next_number}")
    text = "; ".join(notes)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.2g} min"


def milliseconds(seconds: float | None) -> str:
    """A duration in milliseconds, for people."""
    if seconds is None:
        return "–"
    value = 1000 * seconds
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"
