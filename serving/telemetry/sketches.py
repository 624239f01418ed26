"""Sketches of durations: small, mergeable, and true to 1 % at every percentile.

DDSketch (Masson, Rim and Lee 2019, "DDSketch: A Fast and Fully-Mergeable Quantile Sketch"): a value counts in the bin
ceil(log(value) / log(gamma)), so that any percentile is known to a fixed relative error, and two sketches merge by
adding their bins, in whichever order, without losing any of it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from ddsketch.mapping import LogarithmicMapping

RELATIVE_ACCURACY = 0.01
SHORTEST_SECONDS = 1e-6
"""What took less counts as zero."""
LONGEST_SECONDS = 1e8
"""What took longer, some three years, counts as this."""
LOWEST_KEY, HIGHEST_KEY = -1023, 1023
"""Bins of everything from the shortest to the longest lie between."""

_MAPPING = LogarithmicMapping(RELATIVE_ACCURACY)

# Checked when a sketch is decoded, so that whoever sums many may trust each.
Key = Annotated[int, msgspec.Meta(ge=LOWEST_KEY, le=HIGHEST_KEY)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class Sketch(msgspec.Struct, frozen=True, array_like=True):
    """How many durations fell into which bin; `num_zero` were too short for any. Immutable, and sent as it is."""

    num_zero: Count = 0
    sum_seconds: float = 0.0
    bins: dict[Key, Count] = {}

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


def sketch_values(values: Iterable[float]) -> Sketch:
    """The sketch of durations in seconds."""
    num_zero, sum_seconds = 0, 0.0
    bins: dict[int, int] = {}
    for value in values:
        if value < SHORTEST_SECONDS:
            num_zero += 1
            continue
        value = min(value, LONGEST_SECONDS)
        sum_seconds += value
        key = _MAPPING.key(value)
        bins[key] = bins.get(key, 0) + 1
    return Sketch(num_zero, sum_seconds, bins)


def add_sketches(sketches: Sequence[Sketch]) -> Sketch:
    """The sketch of all durations that any of these, of which there is at least one, holds."""
    if len(sketches) == 1:
        return sketches[0]
    bins: dict[int, int] = {}
    for sketch in sketches:
        for key, count in sketch.bins.items():
            bins[key] = bins.get(key, 0) + count
    num_zero = sum(sketch.num_zero for sketch in sketches)
    return Sketch(num_zero, sum(sketch.sum_seconds for sketch in sketches), bins)


def summarise(sketch: Sketch) -> IntervalSummary:
    """Count, mean and percentiles. A percentile is within 1 % of the duration at rank `floor(q * (count - 1))`."""
    keys = sorted(sketch.bins)
    # Of every frame this is the most: each bin is looked at once.
    reached = list(itertools.accumulate(map(sketch.bins.__getitem__, keys), initial=sketch.num_zero))
    count = reached[-1]
    if not count:
        return IntervalSummary()

    def percentile(q: float) -> float:
        """The value of the first bin that reaches beyond the rank."""
        place = bisect_right(reached, q * (count - 1))
        return float(_MAPPING.value(keys[place - 1])) if place else 0.0

    return IntervalSummary(
        count=count,
        mean=sketch.sum_seconds / count,
        p50=percentile(0.50),
        p90=percentile(0.90),
        p95=percentile(0.95),
        p99=percentile(0.99),
    )
