"""Sketches of durations: small, mergeable, and true to 1 % at every percentile.

DDSketch (Masson, Rim and Lee 2019, "DDSketch: A Fast and Fully-Mergeable Quantile Sketch"): a value counts in the bin
ceil(log(value) / log(gamma)), so that any percentile is known to a fixed relative error, and two sketches merge by
adding their bins, in whichever order, without losing any of it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from ddsketch.ddsketch import BaseDDSketch
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import DenseStore

RELATIVE_ACCURACY = 0.01
SHORTEST_SECONDS = 1e-6
"""What took less counts as zero."""

_MAPPING = LogarithmicMapping(RELATIVE_ACCURACY)


class Sketch(msgspec.Struct, frozen=True, array_like=True):
    """How many durations fell into which bin; `num_zero` were too short for any. Immutable, and sent as it is."""

    num_zero: int = 0
    sum_seconds: float = 0.0
    bins: dict[int, int] = {}

    @property
    def count(self) -> int:
        """How many durations it holds."""
        return self.num_zero + sum(self.bins.values())


class IntervalSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator is shown of many durations, in seconds; None where there are none."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


class SketchSum:
    """Owns a growing sum of sketches; used by one thread."""

    def __init__(self) -> None:
        self._num_zero = 0
        self._sum_seconds = 0.0
        self._bins: dict[int, int] = {}

    def add(self, sketch: Sketch) -> None:
        """Merge `sketch` in."""
        self._num_zero += sketch.num_zero
        self._sum_seconds += sketch.sum_seconds
        for key, count in sketch.bins.items():
            self._bins[key] = self._bins.get(key, 0) + count

    def total(self) -> Sketch:
        """The sum so far."""
        return Sketch(self._num_zero, self._sum_seconds, dict(self._bins))


def sketch_values(values: Iterable[float]) -> Sketch:
    """The sketch of durations in seconds."""
    num_zero, sum_seconds = 0, 0.0
    bins: dict[int, int] = {}
    for value in values:
        if value < SHORTEST_SECONDS:
            num_zero += 1
            continue
        sum_seconds += value
        key = _MAPPING.key(value)
        bins[key] = bins.get(key, 0) + 1
    return Sketch(num_zero, sum_seconds, bins)


def merge(sketches: Iterable[Sketch]) -> Sketch:
    """The sketch of all their durations together."""
    result = SketchSum()
    for sketch in sketches:
        result.add(sketch)
    return result.total()


def summarise(sketch: Sketch) -> IntervalSummary:
    """Count, mean and percentiles. A percentile is within 1 % of the duration at rank `floor(q * (count - 1))`."""
    count = sketch.count
    if not count:
        return IntervalSummary()
    store = DenseStore()
    for key, weight in sketch.bins.items():
        store.add(key, weight)
    quantiles = BaseDDSketch(_MAPPING, store, DenseStore(), sketch.num_zero)
    return IntervalSummary(
        count=count,
        mean=sketch.sum_seconds / count,
        p50=quantiles.get_quantile_value(0.50),
        p90=quantiles.get_quantile_value(0.90),
        p95=quantiles.get_quantile_value(0.95),
        p99=quantiles.get_quantile_value(0.99),
    )
