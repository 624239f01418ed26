"""What was measured in a stretch of time, in a form that adds up: an hour is the sum of its 360 stretches.

Percentiles are never averaged: stretches hold sketches, whose bins are added, and percentiles are taken of the sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from serving.contracts.ids import PoolName
from serving.telemetry.frames import POINT_FIELDS, Point, summarise_intervals
from serving.telemetry.gauges import (
    Gauge,
    NamedGauges,
    add_gauges,
    add_named_gauges,
    gauge_of,
    keep_largest,
    named_gauges_of,
)
from serving.telemetry.intervals import Intervals
from serving.telemetry.packing import add_up, pack, unpack
from serving.telemetry.points import percentiles_of
from serving.telemetry.tallies import outcomes_of, refusals_of

T = TypeVar("T", Gauge, NamedGauges)

RESOLUTIONS = (10, 60, 600, 3600)
"""Lengths of the stretches that are kept, in seconds: each is a multiple of the one before."""
STRETCH_SECONDS = RESOLUTIONS[0]

_OUTCOME_RATES = ("finished_per_second", "refused_per_second", "failed_per_second", "aborted_per_second")
_GOODPUT = "goodput_per_second"
_REFUSALS = "refusals_per_second"
_NOUGHT_WHERE_LEFT_OUT = ("waiting_by_priority",)
NAMED_GAUGES = (*_NOUGHT_WHERE_LEFT_OUT, "utilisation_by_engine", "memory_by_engine")
# Whatever else a point tells is a gauge, whose mean and highest value are kept.
_NO_GAUGES = {"unix_seconds", "tunables_version", "percentiles", *_OUTCOME_RATES, _GOODPUT, _REFUSALS, *NAMED_GAUGES}
GAUGES = tuple(name for name in POINT_FIELDS if name not in _NO_GAUGES)

_GAUGE_DIGITS, _RATE_DIGITS = 4, 6
"""One of an hour is 0.000278 a second."""


class RollupContent(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a pool in a stretch of time, of which `seconds` are covered at all.

    `counts` are counters by name, as owners keep them (`submitted`, `finished:stop`, `refused:queue_full`, …), and
    `rejected:<code>` for what was refused before any pool had it. `gauges` and `named_gauges` are by the field of a
    `Point`, and without those that no point told; `tunables_version` is the last one that was in force everywhere.
    """

    seconds: int
    intervals: Intervals = Intervals()
    counts: dict[str, int] = {}
    gauges: dict[str, Gauge] = {}
    named_gauges: dict[str, NamedGauges] = {}
    tunables_version: int | None = None


class StretchEntry(msgspec.Struct, frozen=True, tag="stretch", kw_only=True):
    """Ten seconds of a pool from `starts_at` (unix seconds, a multiple of ten) in the chronicle."""

    pool: PoolName
    starts_at: int
    content: RollupContent


encode_entry = msgspec.msgpack.Encoder().encode
encode_content = msgspec.msgpack.Encoder().encode
decode_content = msgspec.msgpack.Decoder(RollupContent).decode


def content_of(intervals: Intervals, *, counts: Mapping[str, int], points: Sequence[Point]) -> RollupContent | None:
    """Of one stretch of ten seconds; None where nothing at all is known of it. `points` are in the order of time."""
    kept = {name: count for name, count in counts.items() if count}
    if not points and not kept and not any(sketch.count for sketch in msgspec.structs.astuple(intervals)):
        return None
    versions = [point.tunables_version for point in points if point.tunables_version is not None]
    return RollupContent(
        seconds=STRETCH_SECONDS,
        intervals=intervals,
        counts=kept,
        gauges=_gauges_of(points),
        named_gauges=_named_gauges_of(points),
        tunables_version=versions[-1] if versions else None,
    )


def merge(contents: Sequence[RollupContent]) -> RollupContent:
    """The sum of contents in the order of their time; at least one."""
    if len(contents) == 1:
        return contents[0]
    counts: Counter[str] = Counter()
    for content in contents:
        counts.update(content.counts)
    versions = [content.tunables_version for content in contents if content.tunables_version is not None]
    return RollupContent(
        seconds=sum(content.seconds for content in contents),
        intervals=unpack(add_up([pack(content.intervals) for content in contents])),
        counts=dict(counts),
        gauges={name: add_gauges(parts) for name, parts in _by_field(content.gauges for content in contents).items()},
        named_gauges={
            name: add_named_gauges(parts)
            for name, parts in _by_field(content.named_gauges for content in contents).items()
        },
        tunables_version=versions[-1] if versions else None,
    )


def means_of(content: RollupContent) -> dict[str, float]:
    """The means of the gauges, and requests a second by outcome."""
    ended = outcomes_of(content.counts)
    rates = {f"{kind}_per_second": count / content.seconds for kind, count in ended.items()}
    rates[_GOODPUT] = content.counts.get("slo_met", 0) / content.seconds
    return {name: gauge.mean for name, gauge in content.gauges.items()} | rates


def row_of(content: RollupContent, *, unix_seconds: float) -> list[Any]:
    """A stretch as a row of a chart, in the order of `POINT_FIELDS`; None for what was not measured.

    Its `percentiles` have one window, which is the stretch.
    """
    values: dict[str, Any] = {
        name: round(mean, _RATE_DIGITS if name.endswith("_per_second") else _GAUGE_DIGITS)
        for name, mean in means_of(content).items()
    }
    values["unix_seconds"] = unix_seconds
    values["tunables_version"] = content.tunables_version
    values["percentiles"] = [percentiles_of(summarise_intervals(content.intervals))]
    values |= _by_name(content)
    return [values.get(name) for name in POINT_FIELDS]


def highest_of(content: RollupContent) -> dict[str, float]:
    """The highest value of each gauge."""
    return {name: gauge.highest for name, gauge in content.gauges.items()}


def _by_name(content: RollupContent) -> dict[str, dict[str, float]]:
    """What a row tells by name."""
    rates = {code: count / content.seconds for code, count in refusals_of(content.counts).items()}
    told = {_REFUSALS: keep_largest(rates)}
    for field, named in content.named_gauges.items():
        told[field] = named.means_of_all if field in _NOUGHT_WHERE_LEFT_OUT else named.means
    return {
        field: {name: round(value, _RATE_DIGITS) for name, value in figures.items()} for field, figures in told.items()
    }


def _gauges_of(points: Iterable[Point]) -> dict[str, Gauge]:
    values: dict[str, list[float]] = {name: [] for name in GAUGES}
    for point in points:
        for name, column in values.items():
            value = getattr(point, name)
            if value is not None:
                column.append(value)
    return {name: gauge_of(column) for name, column in values.items() if column}


def _named_gauges_of(points: Sequence[Point]) -> dict[str, NamedGauges]:
    told = {field: named_gauges_of(getattr(point, field) for point in points) for field in NAMED_GAUGES}
    return {field: named for field, named in told.items() if named is not None}


def _by_field(parts: Iterable[Mapping[str, T]]) -> dict[str, list[T]]:
    gathered: dict[str, list[T]] = {}
    for part in parts:
        for name, gauge in part.items():
            gathered.setdefault(name, []).append(gauge)
    return gathered
