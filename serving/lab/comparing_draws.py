"""A group of runs drawn anew, many times: from its runs, and from the requests of each (a bootstrap in two stages:
Davison and Hinkley 1997, "Bootstrap Methods and their Application", section 3.8). Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NUM_DRAWS: Final = 4000
PERCENTS: Final = (50, 90, 95, 99)
_MOST_BINS = 1000
"""Into how many a group's values are put together, so that a large run takes no longer than a small one."""
_FEWEST_BINS = 50


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """What a column of numbers came to in each of the draws, arrays of `[draws]`: its sum, the number of its known
    values, their mean (nan where there are none) and percentiles. Values are in the column's unit."""

    total: Floats
    count: Ints
    mean: Floats
    percentiles: dict[int, Floats]


def choose_runs(num_runs: int, rng: np.random.Generator) -> Ints:
    """`[draws, runs]`: how often each run is drawn, in all as many as there are."""
    if num_runs == 1:
        return np.ones((NUM_DRAWS, 1), dtype=np.int64)
    return rng.multinomial(num_runs, np.full(num_runs, 1 / num_runs), size=NUM_DRAWS)


def draw_column(columns: Sequence[Floats], chosen: Ints, rng: np.random.Generator) -> Drawn:
    """The same column of each of a group's runs, a value a request (nan: it has none), whose runs were `chosen`."""
    most = max(_FEWEST_BINS, _MOST_BINS // len(columns))
    parts = [_Bins.of(column, most=most) for column in columns]
    counts = np.concatenate(
        [part.drawn(chosen[:, place], rng) for place, part in enumerate(parts)], axis=1, dtype=np.int64
    )
    low, mean, high = (np.concatenate([getattr(part, name) for part in parts]) for name in ("low", "mean", "high"))
    order = np.argsort(mean, kind="stable")
    counts, low, mean, high = counts[:, order], low[order], mean[order], high[order]
    total = counts @ mean
    rising = counts.cumsum(axis=1)
    count = rising[:, -1] if counts.shape[1] else np.zeros(NUM_DRAWS, dtype=np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = total / count
    percentiles = {percent: _percentile(percent, counts, rising, low, high) for percent in PERCENTS}
    return Drawn(total=total, count=count, mean=means, percentiles=percentiles)


def draw_means(values: Sequence[float] | Floats, rng: np.random.Generator, *, num_draws: int = NUM_DRAWS) -> Floats:
    """Where the mean lies that such values have, many times: Student's distribution around theirs; for the difference
    of two such means, that of Behrens and Fisher (Box and Tiao 1973, "Bayesian Inference in Statistical Analysis",
    section 2.5.1). Of two values or more."""
    assert len(values) > 1, "one value says nothing of what values differ by"
    known = np.asarray(values, dtype=np.float64)
    spread = known.std(ddof=1) / np.sqrt(len(known))
    return np.asarray(known.mean() + spread * rng.standard_t(len(known) - 1, num_draws))


def draw_rate(blocks: Sequence[Floats], seconds: Floats, chosen: Ints, rng: np.random.Generator) -> Floats:
    """`[draws]`: a rate of a group whose runs, `chosen` and of so many `seconds` each, came to these sums in equal
    stretches of their time. How much came in a stretch is what varies, and not alone what each request brought: runs of
    which every request was answered would have no spread otherwise (Kunsch 1989, "The Jackknife and the Bootstrap for
    General Stationary Observations"; of a single run, batch means: Law and Kelton, "Simulation Modeling and Analysis",
    section 9.5.3)."""
    if len(blocks) == 1:
        return draw_means(blocks[0] * len(blocks[0]) / seconds[0], rng)
    return np.asarray(draw_column(blocks, chosen, rng).total / (chosen @ seconds))


class _Bins(msgspec.Struct, frozen=True, kw_only=True):
    """Values in order, neighbours put together: how many, and between which they lie. `num_requests` counts those
    without a value, too."""

    num_requests: int
    counts: Ints
    low: Floats
    mean: Floats
    high: Floats

    @classmethod
    def of(cls, column: Floats, *, most: int) -> _Bins:
        """The known values of a column, in at most `most` bins."""
        values, counts = np.unique(column[np.isfinite(column)], return_counts=True)
        if len(values) <= most:
            return cls(num_requests=len(column), counts=counts, low=values, mean=values, high=values)
        repeated = np.repeat(values, counts)
        edges = np.linspace(0, len(repeated), most + 1).astype(np.int64)
        sizes = np.diff(edges)
        return cls(
            num_requests=len(column),
            counts=sizes,
            low=repeated[edges[:-1]],
            mean=np.add.reduceat(repeated, edges[:-1]) / sizes,
            high=repeated[edges[1:] - 1],
        )

    def drawn(self, times: Ints, rng: np.random.Generator) -> Ints:
        """`[draws, bins]`: how many requests of each were drawn, where the run itself was so many `times`."""
        if not len(self.counts):
            return np.zeros((len(times), 0), dtype=np.int64)
        without = self.num_requests - int(self.counts.sum())
        shares = np.append(self.counts, without) / self.num_requests
        return rng.multinomial(times * self.num_requests, shares)[:, :-1]


def _percentile(percent: int, counts: Ints, rising: Ints, low: Floats, high: Floats) -> Floats:
    """`[draws]`. Within a bin values lie evenly between its ends; nan where a draw has none."""
    if not counts.shape[1]:
        return np.full(len(counts), np.nan)
    rank = np.maximum(0.0, percent / 100 * (rising[:, -1] - 1))
    place = np.minimum((rising <= rank[:, None]).sum(axis=1), counts.shape[1] - 1)
    rows = np.arange(len(counts))
    inside = counts[rows, place]
    before = rising[rows, place] - inside
    share = np.clip((rank - before) / np.maximum(1, inside), 0, 1)
    found = low[place] + share * (high[place] - low[place])
    return np.asarray(np.where(rising[:, -1] > 0, found, np.nan))
