"""Figures that points tell, in a form that adds up over time: plain ones, and those by name. Pure.

By name are who waits by priority, why requests were refused, and what each engine does: whatever names there are, only
so many are kept, and what the rest come to stands under `OTHER`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

OTHER = "other"
MOST_NAMED = 8
"""Names of one moment that are told apart."""
_MOST_KEPT = 24
"""Of a stretch of time, in which names come and go."""


class Gauge(msgspec.Struct, frozen=True, array_like=True):
    """A gauge as `num` points told it: their sum and the highest."""

    num: int
    total: float
    highest: float

    @property
    def mean(self) -> float:
        """Over the points."""
        return self.total / self.num


class NamedGauges(msgspec.Struct, frozen=True, array_like=True):
    """A gauge for each name, of `num` points that told of any; a point that leaves out a name tells nothing of it."""

    num: int
    gauges: dict[str, Gauge] = {}

    @property
    def means(self) -> dict[str, float]:
        """Over the points that told of the name."""
        return {name: gauge.mean for name, gauge in self.gauges.items()}

    @property
    def means_of_all(self) -> dict[str, float]:
        """Over all points, of something that is nought wherever it is left out."""
        return {name: gauge.total / self.num for name, gauge in self.gauges.items()}


def keep_largest(figures: Mapping[str, float]) -> dict[str, float]:
    """The largest of the figures under their names, the others' sum under `OTHER`; what is nought is left out."""
    named = sorted(((name, value) for name, value in figures.items() if value and name != OTHER), key=_by_size)
    rest = figures.get(OTHER, 0) + sum(value for _, value in named[MOST_NAMED:])
    return dict(named[:MOST_NAMED]) | ({OTHER: rest} if rest else {})


def keep_first(figures: Mapping[str, float]) -> dict[str, float]:
    """The first by name, whatever their size, and under `OTHER` the mean of the others."""
    ordered = sorted(figures.items())
    rest = [value for _, value in ordered[MOST_NAMED:]]
    return dict(ordered[:MOST_NAMED]) | ({OTHER: sum(rest) / len(rest)} if rest else {})


def gauge_of(values: Sequence[float]) -> Gauge:
    """Of what points told: at least one value."""
    return Gauge(len(values), float(sum(values)), float(max(values)))


def add_gauges(gauges: Sequence[Gauge]) -> Gauge:
    """The sum of at least one."""
    if len(gauges) == 1:
        return gauges[0]
    return Gauge(
        sum(gauge.num for gauge in gauges),
        sum(gauge.total for gauge in gauges),
        max(gauge.highest for gauge in gauges),
    )


def named_gauges_of(tellings: Iterable[Mapping[str, float] | None]) -> NamedGauges | None:
    """Of what points told by name; None where none did."""
    told = [figures for figures in tellings if figures is not None]
    if not told:
        return None
    values: dict[str, list[float]] = {}
    for figures in told:
        for name, value in figures.items():
            values.setdefault(name, []).append(value)
    return NamedGauges(len(told), _kept({name: [gauge_of(column)] for name, column in values.items()}))


def add_named_gauges(parts: Sequence[NamedGauges]) -> NamedGauges:
    """The sum of at least one, name by name."""
    gauges: dict[str, list[Gauge]] = {}
    for part in parts:
        for name, gauge in part.gauges.items():
            gauges.setdefault(name, []).append(gauge)
    return NamedGauges(sum(part.num for part in parts), _kept(gauges))


def _kept(gauges: Mapping[str, Sequence[Gauge]]) -> dict[str, Gauge]:
    """One a name: of those that were told of longest; the others are one."""
    summed = {name: add_gauges(each) for name, each in gauges.items()}
    named = sorted((name for name in summed if name != OTHER), key=lambda name: (-summed[name].num, name))
    kept = {name: summed[name] for name in named[:_MOST_KEPT]}
    rest = [summed[name] for name in (OTHER, *named[_MOST_KEPT:]) if name in summed]
    return kept | ({OTHER: add_gauges(rest)} if rest else {})


def _by_size(named: tuple[str, float]) -> tuple[float, str]:
    return -named[1], named[0]
