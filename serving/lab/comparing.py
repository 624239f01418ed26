"""Two groups of runs side by side: what differs, by how much, and whether that is more than chance. Pure functions.

What is known request by request is drawn anew (`serving.lab.comparing_draws`); of what only a whole run tells, as the
gaps between tokens and memory, runs are compared with runs where there are several, and else a run's stretches of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from serving.contracts.errors import InvalidValue
from serving.lab.comparing_draws import PERCENTS, Floats, Ints, choose_runs, draw_column, draw_means, draw_rate
from serving.lab.recording import is_good
from serving.lab.summaries import Outcome
from serving.lab.workloads.workload import Slo

Better = Literal["less", "more", "neither"]

LEVEL: Final = 0.95
"""How sure one is of all that is said to be real together: each change's interval is as much wider (Bonferroni)."""
MOST_RUNS: Final = 20
_FEWEST_BEYOND: Final = 5.0
"""So many requests lie beyond a percentile that is judged: drawing anew says little of the end of a tail."""
_FEWEST_VALUES: Final = 20
_NUM_BLOCKS: Final = 20
_NUM_RUN_DRAWS: Final = 200_000


class RunFigure(msgspec.Struct, frozen=True, kw_only=True):
    """What a run as a whole told, one number; `blocks` are what it was in equal stretches of the run, where that is
    known."""

    name: str
    unit: str
    better: Better
    value: float
    blocks: tuple[float, ...] = ()


class PlayedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a group: its requests, over how many seconds they were measured, which began at `began_seconds`, what
    was asked of each class, and what else it told."""

    outcomes: Sequence[Outcome]
    measured_seconds: float
    began_seconds: float = 0.0
    slos: Mapping[str, Slo]
    figures: Sequence[RunFigure] = ()


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group's own figure lies, at `LEVEL` for it alone."""

    low: float
    high: float


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both groups, each with its own interval where there is one. `change` is the second over the first
    less 1, `low` to `high` its interval, all None where the first is nothing. `is_real`: no change lies outside of the
    interval. `not_judged` says why nothing is said of it, and is empty where something is."""

    name: str
    unit: str
    better: Better
    first: float
    second: float
    first_interval: Interval | None = None
    second_interval: Interval | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    is_real: bool = False
    not_judged: str = ""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All figures that both groups have. `knows_noise`: there were several runs of each, so that what differs from run
    to run by itself is part of the intervals."""

    differences: tuple[Difference, ...]
    num_first: int
    num_second: int
    knows_noise: bool
    level: float = LEVEL


def compare(first: Sequence[PlayedRun], second: Sequence[PlayedRun], *, seed: int = 1) -> Comparison:
    """The second group against the first. Raises `InvalidValue` for groups without runs, or with too many."""
    for name, group in (("first", first), ("second", second)):
        if not 1 <= len(group) <= MOST_RUNS:
            raise InvalidValue(name, f"{len(group)} runs", f"1 to {MOST_RUNS} runs")
    rng = np.random.default_rng(seed)
    sides = [{each.name: each for each in _figures_of(group, rng)} for group in (first, second)]
    pairs = [(one, sides[1][name]) for name, one in sides[0].items() if name in sides[1]]
    num_judged = sum(not (one.not_judged or other.not_judged) for one, other in pairs)
    share = (1 - LEVEL) / max(1, num_judged)
    return Comparison(
        differences=tuple(_difference(one, other, share=share) for one, other in pairs),
        num_first=len(first),
        num_second=len(second),
        knows_noise=min(len(first), len(second)) > 1,
    )


def interval_of(draws: Floats) -> Interval | None:
    """Between which most draws lie (percentiles, ibid. section 5.3); None of too few that are numbers."""
    known = draws[np.isfinite(draws)]
    if len(known) < len(draws) // 2:
        return None
    low, high = (float(bound) for bound in np.quantile(known, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)))
    return Interval(low=round(low, 4), high=round(high, 4))


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a group: its value, and the same of the group drawn anew, `[draws]`. `is_of_runs`: of what whole
    runs told."""

    name: str
    unit: str
    better: Better
    value: float
    draws: Floats
    is_of_runs: bool = False
    not_judged: str = ""


def figures_of(group: Sequence[PlayedRun], *, seed: int = 1) -> Iterator[tuple[Figure, Interval | None]]:
    """A group's figures, each with its interval. Raises `InvalidValue` as `compare`."""
    if not 1 <= len(group) <= MOST_RUNS:
        raise InvalidValue("runs", f"{len(group)} runs", f"1 to {MOST_RUNS} runs")
    for figure in _figures_of(group, np.random.default_rng(seed)):
        yield figure, None if figure.not_judged else interval_of(figure.draws)


def _figures_of(group: Sequence[PlayedRun], rng: np.random.Generator) -> Iterator[Figure]:
    columns = [_columns_of(run) for run in group]
    chosen = choose_runs(len(group), rng)
    seconds = np.array([run.measured_seconds for run in group])
    for column, title in _INTERVALS.items():
        yield from _of_interval(title, [each[column] for each in columns], chosen, rng)
    for column, (title, unit) in _RATES.items():
        values = [each[column] for each in columns]
        if num_known := _num_known(values):
            blocks = [
                _in_blocks(each[column], each["end"] - run.began_seconds, run.measured_seconds)
                for each, run in zip(columns, group, strict=True)
            ]
            yield Figure(
                name=title,
                unit=unit,
                better="more",
                value=float(sum(np.nansum(each) for each in values) / seconds.sum()),
                draws=draw_rate(blocks, seconds, chosen, rng),
                not_judged="" if num_known >= _FEWEST_VALUES else f"too few requests: {num_known:,}",
            )
    for column, (title, better) in _SHARES.items():
        values = [each[column] for each in columns]
        if _num_known(values):
            drawn = draw_column(values, chosen, rng)
            value = float(np.nanmean(np.concatenate(values)))
            yield Figure(name=title, unit="share", better=better, value=value, draws=drawn.mean)
    yield from _of_runs(group, rng)


def _of_interval(title: str, values: list[Floats], chosen: Ints, rng: np.random.Generator) -> Iterator[Figure]:
    known = np.concatenate(values)
    known = known[np.isfinite(known)]
    if not len(known):
        return
    drawn = draw_column(values, chosen, rng)

    def figure(name: str, value: float, draws: Floats, *, beyond: float) -> Figure:
        is_enough = len(known) >= _FEWEST_VALUES and beyond >= _FEWEST_BEYOND
        why = "" if is_enough else f"too few requests: {len(known):,}"
        return Figure(
            name=f"{title} {name}", unit="ms", better="less", value=value * 1e3, draws=draws * 1e3, not_judged=why
        )

    yield figure("mean", float(known.mean()), drawn.mean, beyond=len(known))
    for percent in PERCENTS:
        beyond = len(known) * (1 - percent / 100)
        yield figure(
            f"p{percent}", float(np.percentile(known, percent)), drawn.percentiles[percent], beyond=beyond + 1e-9
        )


def _of_runs(group: Sequence[PlayedRun], rng: np.random.Generator) -> Iterator[Figure]:
    """What whole runs told, where each did."""
    for first in group[0].figures:
        found = [each for run in group for each in run.figures if each.name == first.name]
        if len(found) < len(group):
            continue
        values = [each.value for each in found]
        varying = values if len(values) > 1 else first.blocks
        center, is_judged = float(np.mean(values)), len(varying) > 1
        draws = np.array(values)
        if is_judged:
            # A percentile of the whole is not the mean of those of its stretches; it varies as that does.
            draws = draw_means(varying, rng, num_draws=_NUM_RUN_DRAWS) + (center - float(np.mean(varying)))
        yield Figure(
            name=first.name,
            unit=first.unit,
            better=first.better,
            value=center,
            draws=draws,
            is_of_runs=True,
            not_judged="" if is_judged else "one run tells no spread: play it again",
        )


_INTERVALS: Final = {"queue": "Queue time", "ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
_RATES: Final = {
    "finished": ("Requests", "requests/s"),
    "tokens": ("Output", "tokens/s"),
    "good": ("Goodput", "requests/s"),
}
_SHARES: Final[Mapping[str, tuple[str, Better]]] = {
    "met": ("SLO met", "more"),
    "refused": ("Refused", "less"),
    "failed": ("Failed", "less"),
}


def _columns_of(run: PlayedRun) -> dict[str, Floats]:
    """A run's requests as columns, without those of the warm-up: intervals as `serving.lab.recording` takes them."""
    measured = [outcome for outcome in run.outcomes if not outcome.is_warm_up]

    def column(value: Callable[[Outcome], float | None]) -> Floats:
        found = [value(outcome) for outcome in measured]
        return np.array([np.nan if each is None else each for each in found], dtype=np.float64)

    def of_answered(value: Callable[[Outcome], float | None]) -> Floats:
        return column(lambda outcome: value(outcome) if outcome.ending in ("finished", "cancelled") else None)

    good = column(lambda outcome: float(is_good(outcome, run.slos[outcome.request_class])))
    is_judged = np.array([outcome.ending != "cancelled" for outcome in measured], dtype=bool)
    return {
        "ttft": of_answered(lambda outcome: outcome.ttft_seconds),
        "tpot": of_answered(lambda outcome: outcome.tpot_seconds),
        "queue": of_answered(lambda outcome: outcome.queue_seconds),
        "e2e": column(lambda outcome: outcome.e2e_seconds if outcome.ending == "finished" else None),
        "tokens": of_answered(lambda outcome: float(outcome.num_output_tokens)),
        "good": good,
        "met": np.where(is_judged, good, np.nan),
        "end": column(lambda outcome: outcome.end_seconds),
        "finished": column(lambda outcome: float(outcome.ending == "finished")),
        "refused": column(lambda outcome: float(outcome.ending == "refused")),
        "failed": column(lambda outcome: float(outcome.ending == "failed")),
    }


def _in_blocks(column: Floats, end_seconds: Floats, measured_seconds: float) -> Floats:
    """`[blocks]`: what came in equal stretches of a run's time, by when requests ended."""
    known = np.isfinite(column)
    place = np.clip((end_seconds[known] / measured_seconds * _NUM_BLOCKS).astype(np.int64), 0, _NUM_BLOCKS - 1)
    return np.bincount(place, weights=column[known], minlength=_NUM_BLOCKS).astype(np.float64)


def _num_known(values: Sequence[Floats]) -> int:
    return sum(int(np.isfinite(each).sum()) for each in values)


def _difference(one: Figure, other: Figure, *, share: float) -> Difference:
    not_judged = one.not_judged or other.not_judged
    low = high = None
    is_real = False
    if not not_judged:
        low, high, is_real = _judged(one, other, share=share)
    return Difference(
        name=one.name,
        unit=one.unit,
        better=one.better,
        first=round(one.value, 4),
        second=round(other.value, 4),
        first_interval=None if one.not_judged else interval_of(one.draws),
        second_interval=None if other.not_judged else interval_of(other.draws),
        change=round(other.value / one.value - 1, 4) if one.value > 0 else None,
        low=low,
        high=high,
        is_real=is_real,
        not_judged=not_judged,
    )


def _judged(one: Figure, other: Figure, *, share: float) -> tuple[float | None, float | None, bool]:
    """The change's interval (no bound: None), and whether it leaves no room for none."""
    if one.value <= 0 or other.value <= 0:
        # Of nothing there is no share, and nothing drawn anew is nothing: real is what is hardly ever nothing.
        some = other.draws if one.value <= 0 else one.draws
        return None, None, bool(np.nanquantile(some, share) > 0)
    if one.is_of_runs:
        changes = (other.draws - one.draws) / one.value
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            changes = np.where(one.draws == other.draws, 0.0, other.draws / one.draws - 1)
    known = changes[~np.isnan(changes)]
    if len(known) < len(changes) // 2:
        return None, None, False
    low, high = (float(bound) for bound in np.quantile(known, (share / 2, 1 - share / 2), method="inverted_cdf"))
    return (
        round(low, 4) if np.isfinite(low) else None,
        round(high, 4) if np.isfinite(high) else None,
        low > 0 or high < 0,
    )
