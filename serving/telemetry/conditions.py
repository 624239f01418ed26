"""Bounds on what a pool's frames tell, missed for so long: what alerts and guardrails go by. Knows no clock."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Literal

import msgspec

from serving.contracts.errors import InvalidValue
from serving.telemetry.frames import (
    INTERVAL_NAMES,
    SNAPSHOT_WINDOW_SECONDS,
    WINDOWS_SECONDS,
    Frame,
    IntervalSummaries,
    Share,
)

LEAST_SAMPLES = 5
"""Of fewer durations or requests no percentile and no share is judged."""
LONGEST_SECONDS = 3600.0
_WINDOW = WINDOWS_SECONDS.index(SNAPSHOT_WINDOW_SECONDS)
_PERCENTS = (50, 90, 95, 99)
_SHARES = ("error_ratio", "refused_ratio")

Unit = Literal["ms", "share", "requests", "tokens/s", "engines"]


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """A metric's value in its unit, and of how many samples it is (None: it is a count or gauge of its own)."""

    value: float
    num_samples: int | None = None

    @property
    def can_be_judged(self) -> bool:
        """Whether there are enough samples to go by."""
        return self.num_samples is None or self.num_samples >= LEAST_SAMPLES


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Something that a bound may be set on."""

    name: str
    title: str
    unit: Unit
    help: str


def _interval_metrics() -> list[Metric]:
    titles = ("Queue time", "TTFT", "ITL", "E2E")
    return [
        Metric(
            name=f"{_short(interval)}_p{percent}",
            title=f"{title} p{percent}",
            unit="ms",
            help=f"Percentile {percent} of the last minute's {title}.",
        )
        for interval, title in zip(INTERVAL_NAMES, titles, strict=True)
        for percent in _PERCENTS
    ]


def _short(interval: str) -> str:
    return {"queue_time_seconds": "queue"}.get(interval, interval.removesuffix("_seconds"))


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        *_interval_metrics(),
        Metric(
            name="error_ratio",
            title="Failed requests",
            unit="share",
            help="Share of the last minute's requests that failed, of all that ended but were not given up.",
        ),
        Metric(
            name="refused_ratio",
            title="Refused requests",
            unit="share",
            help="Share of the last minute's requests that were refused, of all that ended but were not given up.",
        ),
        Metric(name="waiting", title="Waiting", unit="requests", help="Sequences that wait to be scheduled."),
        Metric(name="kv_used", title="KV memory in use", unit="share", help="Share of KV blocks that sequences hold."),
        Metric(
            name="generated_rate",
            title="Generated tokens",
            unit="tokens/s",
            help="Tokens that the pool's engines generate a second.",
        ),
        Metric(name="engines", title="Engines", unit="engines", help="Engines of the pool that live."),
    )
}


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A bound on a metric, in the metric's unit. It is missed while the metric is above it (or, unless `is_above`,
    below), and that counts once it has lasted for `for_seconds` without a break."""

    metric: str
    bound: float
    for_seconds: float
    is_above: bool = True

    def check(self) -> None:
        """Raise `InvalidValue`, naming field and bounds, for what cannot be watched."""
        if self.metric not in METRICS:
            raise InvalidValue("metric", self.metric, "one of " + ", ".join(METRICS))
        highest = 1.0 if METRICS[self.metric].unit == "share" else 1e9
        if not 0 <= self.bound <= highest:
            raise InvalidValue("bound", self.bound, f"a number from 0 to {highest:g} ({METRICS[self.metric].unit})")
        if not 0 <= self.for_seconds <= LONGEST_SECONDS:
            raise InvalidValue("for_seconds", self.for_seconds, f"a number from 0 to {LONGEST_SECONDS:g} (s)")

    def is_missed_by(self, value: float) -> bool:
        """Whether the value lies on the wrong side of the bound."""
        return value > self.bound if self.is_above else value < self.bound

    def describe(self) -> str:
        """In words: `TTFT p95 above 500 ms for 60 s`."""
        metric = METRICS[self.metric]
        side = "above" if self.is_above else "below"
        return f"{metric.title} {side} {told(self.bound, metric.unit)} for {self.for_seconds:g} s"


def told(value: float, unit: Unit) -> str:
    """A metric's value with its unit, for people."""
    if unit == "share":
        return f"{100 * value:.3g} %"
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return number if unit == "engines" else f"{number} {unit}"


class Readings:
    """Owns the outcomes of a pool's last minute, from which shares are told; for one thread that sees each frame."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, Mapping[str, int]]] = deque()
        self._begun_at = self._seen_at = 0.0

    def see(self, frame: Frame) -> dict[str, Reading]:
        """Every metric of which the frame tells something, by its name. Takes note of the frame's books."""
        return {**_gauges(frame), **_percentiles(frame.windows[_WINDOW]), **self._shares(frame)}

    def is_too_early(self, metric: str, reading: Reading | None) -> bool:
        """Whether nothing can be said of the metric yet, be it missed or met: a share of too few requests is told only
        once a whole minute was seen."""
        return is_too_early(metric, reading, seconds=self._seen_at - self._begun_at)

    def _shares(self, frame: Frame) -> dict[str, Reading]:
        now, ended = frame.unix_seconds, _ended_by_kind(frame.books.counts)
        while self._ended and (now - self._ended[0][0] > SNAPSHOT_WINDOW_SECONDS or now < self._ended[-1][0]):
            self._ended.popleft()
        # Books that shrank began anew: what was before them tells nothing.
        if self._ended and any(ended[kind] < self._ended[0][1][kind] for kind in ended):
            self._ended.clear()
        if not self._ended:
            self._begun_at = now
        self._seen_at = now
        self._ended.append((now, ended))
        earlier = self._ended[0][1]
        grown = {kind: ended[kind] - earlier[kind] for kind in ended}
        return _shares_of(grown)


def readings_of(share: Share) -> dict[str, Reading]:
    """What the percentiles and shares among the metrics are for some of a pool's engines alone."""
    return {**_percentiles(share.intervals), **_shares_of(_ended_by_kind(share.ended))}


def _shares_of(ended: Mapping[str, int]) -> dict[str, Reading]:
    num = sum(ended.values())
    if not num:
        return {}
    return {
        "error_ratio": Reading(ended["failed"] / num, num),
        "refused_ratio": Reading(ended["refused"] / num, num),
    }


def _ended_by_kind(counts: Mapping[str, int]) -> dict[str, int]:
    kinds = dict.fromkeys(("finished", "refused", "failed"), 0)
    for name, count in counts.items():
        kind = name.partition(":")[0]
        if kind in kinds:
            kinds[kind] += count
    return kinds


def _gauges(frame: Frame) -> dict[str, Reading]:
    engines = frame.engines
    total = sum(engine.kv_blocks_total for engine in engines)
    readings = {
        "waiting": Reading(frame.num_unread + sum(engine.num_waiting for engine in engines)),
        "generated_rate": Reading(frame.generated_tokens_per_second),
        "engines": Reading(len(engines)),
    }
    if total:
        readings["kv_used"] = Reading(sum(engine.kv_blocks_used for engine in engines) / total)
    return readings


def _percentiles(window: IntervalSummaries) -> dict[str, Reading]:
    readings = {}
    for interval in INTERVAL_NAMES:
        summary = getattr(window, interval)
        for percent in _PERCENTS:
            seconds = getattr(summary, f"p{percent}")
            if seconds is not None:
                readings[f"{_short(interval)}_p{percent}"] = Reading(1000 * seconds, summary.count)
    return readings


def is_too_early(metric: str, reading: Reading | None, *, seconds: float) -> bool:
    """Whether nothing can be said of the metric yet after so many seconds in which it was seen."""
    if metric not in _SHARES or (reading is not None and reading.can_be_judged):
        return False
    return seconds < SNAPSHOT_WINDOW_SECONDS


class ConditionWatch:
    """Owns since when a condition has been missed without a break; for one thread."""

    def __init__(self, condition: Condition, *, missed_since: float | None = None) -> None:
        self.condition = condition
        self.missed_since = missed_since

    def see(self, reading: Reading | None, *, now: float) -> bool:
        """Whether the condition has by now been missed for its time. `now` is in seconds of any steady clock.

        What is not told, or of too few samples, is no miss: it begins anew.
        """
        if reading is None or not reading.can_be_judged or not self.condition.is_missed_by(reading.value):
            self.missed_since = None
            return False
        if self.missed_since is None or now < self.missed_since:
            self.missed_since = now
        return now - self.missed_since >= self.condition.for_seconds
