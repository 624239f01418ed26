"""Reading what was measured in the past. Blocking."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from django.utils import timezone

from serving.contracts.decoding import decode_or_none
from serving.contracts.errors import InvalidValue
from serving.contracts.ids import PoolName
from serving.telemetry.events import EventKind, PoolEventInfo
from serving.telemetry.frames import POINT_FIELDS, IntervalSummaries, summarise_intervals
from serving.telemetry.models import PoolEvent, Rollup
from serving.telemetry.retention import kept_for
from serving.telemetry.rollups import (
    RESOLUTIONS,
    RollupContent,
    decode_content,
    highest_of,
    means_of,
    merge,
    row_of,
)

LONGEST = datetime.timedelta(days=31)
"""The longest range that is read at once."""
MOST_POINTS = 1_500
_MOST_STRETCHES = 400


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A pool's past as charts draw it: a row for every stretch of `seconds` of which something is known, oldest first.

    `points` are rows in the order of `fields`, which are a `Point`'s: `unix_seconds` is the middle of the stretch,
    gauges are means, and `percentiles` have one window, the stretch. Beside each row stand the `highest` values of its
    gauges, and how many seconds of the stretch are `covered` at all.
    """

    seconds: int
    fields: tuple[str, ...]
    points: list[list[Any]]
    highest: list[dict[str, float]]
    covered: list[int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that was measured in some stretches, which cover `seconds` of time: percentiles of all intervals together,
    `counts` by name, and `means` by the field of a `Point`, those of rates among them."""

    seconds: int
    intervals: IntervalSummaries
    counts: Mapping[str, int]
    means: Mapping[str, float]


def read_series(
    pool: str,
    since: datetime.datetime,
    until: datetime.datetime,
    *,
    max_points: int = 720,
    least_seconds: int = RESOLUTIONS[0],
) -> Series:
    """The stretches over which the range reaches, and one on either side, but none that is not over: of the shortest
    kind of at least `least_seconds` that is kept for so long and gives no more than `max_points` in the range itself.

    Raises `InvalidValue` for a range of nothing, or of more than 31 days.
    """
    if not since < until:
        raise InvalidValue("until", until.isoformat(), f"a time after {since.isoformat()}")
    if until - since > LONGEST:
        raise InvalidValue("since", since.isoformat(), f"a time at most {LONGEST.days} days before `until`")
    if not 1 <= max_points <= MOST_POINTS:
        raise InvalidValue("max_points", max_points, f"an integer from 1 to {MOST_POINTS}")
    if least_seconds not in RESOLUTIONS:
        raise InvalidValue("least_seconds", least_seconds, f"one of {', '.join(map(str, RESOLUTIONS))}")
    seconds = max(least_seconds, _choose_length(since, until, most=max_points))
    stretches = _read_stretches(pool, seconds, *_widened(since, until, seconds))
    return Series(
        seconds=seconds,
        fields=POINT_FIELDS,
        points=[row_of(content, unix_seconds=at.timestamp() + seconds / 2) for at, content in stretches],
        highest=[highest_of(content) for _, content in stretches],
        covered=[content.seconds for _, content in stretches],
    )


def percentiles_between(pool: str, since: datetime.datetime, until: datetime.datetime) -> IntervalSummaries | None:
    """Count, mean and percentiles of each interval; None where nothing is kept of the range. See `measured_between`."""
    measured = measured_between(pool, since, until)
    return None if measured is None else measured.intervals


def measured_between(pool: str, since: datetime.datetime, until: datetime.datetime) -> Measured | None:
    """All that was measured in the stretches that lie wholly in the range; None where nothing is kept of it.

    Its edges are true to ten seconds for as long as such stretches are kept, to a minute after that, and so on. What
    ended less than some twenty seconds ago may not be stored yet.
    """
    total = content_between(pool, since, until)
    return None if total is None else measured_of(total)


def content_between(pool: str, since: datetime.datetime, until: datetime.datetime) -> RollupContent | None:
    """As `measured_between`, in the form that adds up and can be kept."""
    stretches = _read_stretches(pool, _choose_length(since, until, most=_MOST_STRETCHES), since, until)
    return merge([content for _, content in stretches]) if stretches else None


def measured_of(total: RollupContent) -> Measured:
    """What a content tells, percentiles of its sketches among it."""
    return Measured(
        seconds=total.seconds,
        intervals=summarise_intervals(total.intervals),
        counts=total.counts,
        means=means_of(total),
    )


def events_between(
    pool: str, since: datetime.datetime, until: datetime.datetime, *, limit: int = 500
) -> list[PoolEventInfo]:
    """What happened to the pool in the range, newest first."""
    found = PoolEvent.objects.filter(pool=pool, at__gte=since, at__lt=until)[:limit]
    return [
        PoolEventInfo(
            event_id=event.event_id,
            pool=PoolName(event.pool),
            at=event.at.timestamp(),
            kind=cast("EventKind", event.kind),
            subject=event.subject,
            text=event.text,
        )
        for event in found
    ]


def _choose_length(since: datetime.datetime, until: datetime.datetime, *, most: int) -> int:
    """The shortest kind of stretch that is kept since then and gives no more than `most`; else the longest."""
    now, seconds = timezone.now(), (until - since).total_seconds()
    fitting = (length for length in RESOLUTIONS if now - kept_for(length) <= since and seconds / length <= most)
    return next(fitting, RESOLUTIONS[-1])


def _widened(
    since: datetime.datetime, until: datetime.datetime, seconds: int
) -> tuple[datetime.datetime, datetime.datetime]:
    """To whole stretches and by one on either side, so that a line has two ends however short the range is."""
    first, last = math.floor(since.timestamp() / seconds) - 1, math.ceil(until.timestamp() / seconds) + 1
    over = math.floor(timezone.now().timestamp() / seconds)
    return _time(first * seconds), _time(min(last, over) * seconds)


def _time(unix_seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(unix_seconds, tz=datetime.UTC)


def _read_stretches(
    pool: str, seconds: int, since: datetime.datetime, until: datetime.datetime
) -> list[tuple[datetime.datetime, RollupContent]]:
    rows = Rollup.objects.filter(
        pool=pool,
        seconds=seconds,
        starts_at__gte=since,
        starts_at__lte=until - datetime.timedelta(seconds=seconds),
    ).order_by("starts_at")
    known = ((at, decode_or_none(decode_content, bytes(raw))) for at, raw in rows.values_list("starts_at", "content"))
    return [(at, content) for at, content in known if content is not None]
