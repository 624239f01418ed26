"""Distributions from what was counted: lengths and gaps. Pure functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from serving.lab.workloads.arrivals import Gamma, Poisson
from serving.lab.workloads.distributions import MAX_TOKENS, Fixed, Histogram, Lengths, LogNormal
from serving.lab.workloads.drawing import Floats, Ints, mean_length, quantiles, share_above

_MOST_BINS = 40
_AS_GOOD = 0.02
"""A fitted distribution is preferred to what was counted where its distance is greater by no more than this, or than
chance alone would make it."""
_BY_CHANCE = 0.886
"""Over the root of the number measured: the distance that chance exceeds once in 20 times, of a normal distribution
whose mean and deviation were fitted (Lilliefors 1967, table 1)."""
_ALIKE_POISSON = 0.1
_LEAST_CV = 0.01
_MOST_CV = 100.0


class FittedLengths(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths that were measured, and what describes them. The distances are Kolmogorov and Smirnov's: the largest
    difference of two cumulative shares, 0 to 1. `lognormal` is None where all are of one length, or there are fewer
    than 3."""

    num_measured: int
    mean: float
    p50: int
    p95: int
    p99: int
    longest: int
    histogram: Histogram
    histogram_distance: float
    lognormal: LogNormal | None = None
    lognormal_distance: float | None = None
    chosen: Literal["fixed", "histogram", "lognormal"]

    @property
    def lengths(self) -> Lengths:
        """The distribution that was chosen."""
        if self.chosen == "lognormal" and self.lognormal is not None:
            return self.lognormal
        return Fixed(self.longest) if self.chosen == "fixed" else self.histogram


class FittedArrivals(msgspec.Struct, frozen=True, kw_only=True):
    """Gaps that were measured. `cv` is their coefficient of variation; None where there are fewer than 3."""

    rate: float
    cv: float | None

    @property
    def arrivals(self) -> Poisson | Gamma:
        """Poisson where the gaps vary as at random, give or take a tenth, or too few are known; gamma otherwise."""
        if self.cv is None or abs(self.cv - 1) <= _ALIKE_POISSON:
            return Poisson(self.rate)
        return Gamma(rate=self.rate, cv=round(min(_MOST_CV, max(_LEAST_CV, self.cv)), 3))


def fit_lengths(lengths: Sequence[int]) -> FittedLengths:
    """What describes lengths in tokens, of which there is one at least; those below 1 count as 1.

    A lognormal distribution is fitted by maximum likelihood: mean and deviation of the logarithms (Johnson, Kotz and
    Balakrishnan, "Continuous Univariate Distributions", vol. 1, section 14.4.1), and bounded by the shortest and the
    longest. It is taken unless the histogram lies nearer to what was counted by more than 0.02 and more than chance
    explains.
    """
    values = np.clip(np.array(lengths, dtype=np.int64), 1, MAX_TOKENS)
    assert len(values), "there is something to fit"
    histogram = count_lengths(values)
    lognormal = _fit_lognormal(values)
    counted = distance(values, histogram)
    fitted = None if lognormal is None else distance(values, lognormal)
    chosen: Literal["fixed", "histogram", "lognormal"] = "histogram"
    if values.min() == values.max():
        chosen = "fixed"
    elif fitted is not None and fitted <= counted + max(_AS_GOOD, _BY_CHANCE / math.sqrt(len(values))):
        chosen = "lognormal"
    p50, p95, p99 = np.quantile(values, (0.5, 0.95, 0.99), method="inverted_cdf").tolist()
    return FittedLengths(
        num_measured=len(values),
        mean=round(float(values.mean()), 2),
        p50=p50,
        p95=p95,
        p99=p99,
        longest=int(values.max()),
        histogram=histogram,
        histogram_distance=round(counted, 4),
        lognormal=lognormal,
        lognormal_distance=None if fitted is None else round(fitted, 4),
        chosen=chosen,
    )


def fit_gaps(moments: Sequence[float], *, range_seconds: float) -> FittedArrivals:
    """The rate of arrivals at rising moments, in seconds, and how much their gaps vary, by moments. The rate is taken
    from the first to the last of them, and of a single one or of simultaneous ones over the whole range."""
    times = np.array(moments, dtype=np.float64)
    span = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    if span <= 0:
        return FittedArrivals(rate=len(times) / range_seconds, cv=None)
    gaps = np.diff(times)
    cv = float(gaps.std() / gaps.mean()) if len(gaps) > 2 else None
    return FittedArrivals(rate=float(f"{(len(times) - 1) / span:.4g}"), cv=None if cv is None else round(cv, 3))


def rates_over(moments: Sequence[float], *, num_bins: int) -> tuple[float, tuple[float, ...]]:
    """The seconds of one of `num_bins` equal parts from the first moment to the last, and the arrivals a second in
    each."""
    span = max(moments[-1] - moments[0], 1e-3)
    counts, _ = np.histogram(np.array(moments) - moments[0], bins=num_bins, range=(0.0, span))
    width = span / num_bins
    return width, tuple(float(f"{count / width:.4g}") for count in counts.tolist())


def count_lengths(values: Ints) -> Histogram:
    """Counts in at most 40 bins whose widths grow as the lengths do: `[num_values]` whole numbers of tokens."""
    low, high = int(values.min()), int(values.max())
    rising = np.unique(np.rint(np.geomspace(low, high + 1, _MOST_BINS + 1)).astype(np.int64))
    if len(rising) < 2:
        rising = np.array([low, low + 1])
    counts, _ = np.histogram(values, bins=rising)
    # The last bin of numpy's holds its upper edge too, which no value is at: it is the longest and one.
    return Histogram(edges=tuple(rising.tolist()), counts=tuple(counts.tolist()))


def distance(values: Ints, lengths: Lengths) -> float:
    """The largest difference between the share of values up to a length and the distribution's (Kolmogorov 1933,
    Smirnov 1948), over all lengths that occur."""
    found, counts = np.unique(values, return_counts=True)
    measured = np.cumsum(counts) / len(values)
    before = np.concatenate(([0.0], measured[:-1]))
    described = 1 - np.array([share_above(lengths, int(length)) for length in found])
    just_below = 1 - np.array([share_above(lengths, int(length) - 1) for length in found])
    return float(max(np.abs(described - measured).max(), np.abs(just_below - before).max()))


def cumulative(lengths: Lengths, at: Floats) -> list[float]:
    """The share of lengths up to each of those."""
    return [round(1 - share_above(lengths, int(length)), 5) for length in at]


def shares_in_bins(lengths: Lengths, edges: Sequence[int]) -> list[float]:
    """The share of all lengths that each bin holds: what a histogram with these edges is drawn over."""
    below = [1 - share_above(lengths, edge - 1) for edge in edges]
    return [round(high - low, 5) for low, high in itertools.pairwise(below)]


def figures_of(lengths: Lengths) -> dict[str, float]:
    """Mean and percentiles of a distribution, in tokens."""
    p50, p95, p99 = quantiles(lengths, np.array([0.5, 0.95, 0.99])).tolist()
    return {"mean": round(mean_length(lengths), 1), "p50": p50, "p95": p95, "p99": p99}


def _fit_lognormal(values: Ints) -> LogNormal | None:
    if len(values) < 3 or values.min() == values.max():
        return None
    logs = np.log(values)
    sigma = min(5.0, round(float(logs.std()), 4))
    median = round(math.exp(float(logs.mean())), 2)
    return LogNormal(median=median, sigma=sigma, low=int(values.min()), high=int(values.max()))
