"""Durations counted in bins: what percentiles of millions of gaps are told from."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
from ddsketch.mapping import LogarithmicMapping

from serving.lab.summaries import Percentiles

_MAPPING: Final = LogarithmicMapping(0.005)
_SMALLEST_SECONDS: Final = 1e-6
PERCENTS: Final = (50, 90, 95, 99)


class DurationCounts:
    """Owns how many durations fell into each of a row of bins that grow by one percent; for one thread.

    A percentile is off by half a percent at most, from a microsecond to a day (Masson et al. 2019, "DDSketch", section
    2); what is shorter counts as that. Mean and largest are exact. Two of them merge without loss.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total_seconds = 0.0
        self.longest_seconds = 0.0

    def add(self, seconds: float, *, count: int = 1) -> None:
        """Count a duration, so many times."""
        place = _MAPPING.key(max(seconds, _SMALLEST_SECONDS))
        counts = self._counts
        counts[place] = counts.get(place, 0) + count
        self.count += count
        self.total_seconds += seconds * count
        if seconds > self.longest_seconds:
            self.longest_seconds = seconds

    def merge(self, other: DurationCounts) -> None:
        """Count all that the other has counted."""
        for place, count in other._counts.items():
            self._counts[place] = self._counts.get(place, 0) + count
        self.count += other.count
        self.total_seconds += other.total_seconds
        self.longest_seconds = max(self.longest_seconds, other.longest_seconds)

    def quantile_seconds(self, share: float) -> float | None:
        """The duration at a share of all in order (`numpy.quantile` by the method `lower`); None of none."""
        if not self.count:
            return None
        places = sorted(self._counts)
        rising = np.cumsum([self._counts[place] for place in places])
        rank = math.floor(share * (self.count - 1))
        place = places[int(np.searchsorted(rising, rank, side="right"))]
        return min(self.longest_seconds, float(_MAPPING.value(place)))

    def percentiles(self) -> Percentiles | None:
        """In milliseconds; None of none."""
        if not self.count:
            return None
        found = [self.quantile_seconds(percent / 100) or 0.0 for percent in PERCENTS]
        p50, p90, p95, p99 = (round(seconds * 1e3, 3) for seconds in found)
        return Percentiles(
            count=self.count,
            mean=round(self.total_seconds / self.count * 1e3, 3),
            p50=p50,
            p90=p90,
            p95=p95,
            p99=p99,
            max=round(self.longest_seconds * 1e3, 3),
        )


def percentiles_of(seconds: list[float]) -> Percentiles | None:
    """Exact percentiles of some durations, in milliseconds; None of none."""
    if not seconds:
        return None
    values: npt.NDArray[np.float64] = np.asarray(seconds) * 1e3
    p50, p90, p95, p99 = (round(float(value), 3) for value in np.percentile(values, PERCENTS))
    return Percentiles(
        count=len(values),
        mean=round(float(values.mean()), 3),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=round(float(values.max()), 3),
    )
