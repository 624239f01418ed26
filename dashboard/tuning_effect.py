"""What a version did: the ten minutes before it against the ten minutes after. Pure functions."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Literal, Protocol

from serving.telemetry.conditions import LEAST_SAMPLES
from serving.telemetry.history_selectors import Measured
from serving.telemetry.sketches import IntervalSummary

LOOK = datetime.timedelta(minutes=10)
"""How far before and after a version its effect is looked for."""
LEAST_LOOK = datetime.timedelta(minutes=3)
"""Before so much of it is over, what a version did is not judged: a cold burst would decide it."""
_SAME_RATIO = 0.05
"""What changed by less is told as unchanged: two quiet ten minutes differ by as much."""
_INTERVALS = (
    ("ttft_seconds", "TTFT"),
    ("itl_seconds", "ITL"),
    ("e2e_seconds", "E2E"),
    ("queue_time_seconds", "Queue time"),
)
_PERCENTS = (50, 95, 99)
_RATES = (
    ("generated_tokens_per_second", "Generated tokens/s"),
    ("prompt_tokens_per_second", "Prompt tokens/s"),
    ("finished_per_second", "Requests finished/s"),
)
Verdict = Literal["better", "worse", "same", "more", "less", "unknown"]
_WORDS: dict[Verdict, str] = {
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """Where a version's effect is looked for: from `since` to `stored_at`, and from `at`, when all engines were to run
    it, to `until`. `next_number` is the version that cuts the second short, `is_open` says that it is not over."""

    since: datetime.datetime
    stored_at: datetime.datetime
    at: datetime.datetime
    until: datetime.datetime
    next_number: int | None
    is_open: bool


class Dated(Protocol):
    """A version, as far as it bounds the effect of its neighbours."""

    number: int
    created_at: datetime.datetime


def stretches_of(version: Dated, *, older: Dated | None, newer: Dated | None, now: datetime.datetime) -> Stretches:
    """The ten minutes before and after a version, cut where a neighbour was stored: its effect is its own. The time for
    which one engine alone ran it is of neither."""
    stored_at, at = version.created_at, _taken_to_all_at(version)
    since = stored_at - LOOK if older is None else max(stored_at - LOOK, _taken_to_all_at(older))
    is_cut = newer is not None and newer.created_at < at + LOOK
    until = newer.created_at if newer is not None and is_cut else min(at + LOOK, now)
    return Stretches(
        since=since,
        stored_at=stored_at,
        at=at,
        until=max(until, at),
        next_number=newer.number if newer is not None and is_cut else None,
        is_open=not is_cut and now < at + LOOK,
    )


def _taken_to_all_at(version: Dated) -> datetime.datetime:
    canary = getattr(version, "canary", None)
    ended_at: datetime.datetime | None = None if canary is None or canary.state != "promoted" else canary.ended_at
    return ended_at or version.created_at


def effect_of(stretches: Stretches, before: Measured | None, after: Measured | None) -> Effect:
    """The comparison of what was measured on both sides; without a verdict in its first minutes."""
    figures = tuple(
        _compare_interval(name, title, percent, before, after) for name, title in _INTERVALS for percent in _PERCENTS
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
    first, second = getattr(old, f"p{percent}"), getattr(new, f"p{percent}")
    is_enough = min(old.count, new.count) >= LEAST_SAMPLES
    verdict: Verdict = "unknown"
    if is_enough:
        verdict = _judge(first, second, if_less="better", if_more="worse")
    return Figure(
        title=f"{title} p{percent}",
        before=_milliseconds(first),
        after=_milliseconds(second),
        samples_before=f"{old.count:,}",
        samples_after=f"{new.count:,}",
        change=_change(first, second) if is_enough else "",
        verdict=verdict,
        words=_WORDS[verdict],
    )


def _compare_rate(name: str, title: str, before: Measured | None, after: Measured | None) -> Figure:
    first = None if before is None else before.means.get(name, 0.0)
    second = None if after is None else after.means.get(name, 0.0)
    verdict: Verdict = "unknown"
    if first is not None and second is not None:
        # More load is neither better nor worse.
        verdict = _judge(first, second, if_less="less", if_more="more")
    return Figure(
        title=title,
        before=_rate(first),
        after=_rate(second),
        samples_before="",
        samples_after="",
        change=_change(first, second),
        verdict=verdict,
        words=_WORDS[verdict],
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


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    milliseconds = 1000 * seconds
    return f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"
