"""Two groups of runs side by side: what differs, by how much, and whether that is more than chance. Pure functions.

Requests are drawn anew from those of a run, and runs from those of a group where there are several (a bootstrap in two
stages: Davison and Hinkley 1997, "Bootstrap Methods and their Application", section 3.8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from serving.contracts.errors import InvalidValue
from serving.lab.recording import is_good
from serving.lab.summaries import Outcome
from serving.lab.workloads.workload import Slo

Floats = npt.NDArray[np.float64]
Better = Literal["less", "more"]

NUM_DRAWS: Final = 1000
LEVEL: Final = 0.95
"""How sure one is of all that is said to be real together: each figure's interval is as much wider (Bonferroni)."""
MOST_RUNS: Final = 20


class PlayedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a group: its requests, over how many seconds they were measured, and what was asked of each class."""

    outcomes: Sequence[Outcome]
    measured_seconds: float
    slos: Mapping[str, Slo]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both groups. `change` is the second over the first less 1, `low` to `high` its interval, all None
    where the first is nothing. `is_real`: no change lies outside of the interval."""

    name: str
    unit: str
    better: Better
    first: float
    second: float
    change: float | None
    low: float | None
    high: float | None
    is_real: bool


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
    tables = [[_Table(run) for run in group] for group in (first, second)]
    known = [figure for figure in _FIGURES if all(figure.is_known(group) for group in tables)]
    drawn = [_draw(group, known, rng) for group in tables]
    share = (1 - LEVEL) / max(1, len(known))
    return Comparison(
        differences=tuple(
            _difference(figure, tables, drawn[0][:, place], drawn[1][:, place], share=share)
            for place, figure in enumerate(known)
        ),
        num_first=len(first),
        num_second=len(second),
        knows_noise=min(len(first), len(second)) > 1,
    )


class _Table:
    """A run's requests as columns; of one that drew others in their place, the same."""

    def __init__(self, run: PlayedRun) -> None:
        measured = [outcome for outcome in run.outcomes if not outcome.is_warm_up]
        answered = [outcome.ending in ("finished", "cancelled") for outcome in measured]
        self.seconds = run.measured_seconds
        self.columns: dict[str, Floats] = {
            "ttft": _column([outcome.ttft_seconds for outcome in measured]),
            "tpot": _column([outcome.tpot_seconds for outcome in measured]),
            "e2e": _column(
                [outcome.e2e_seconds if is_ok else None for outcome, is_ok in zip(measured, answered, strict=True)]
            ),
            "queue": _column([outcome.queue_seconds for outcome in measured]),
            "tokens": _column([float(outcome.num_output_tokens) for outcome in measured]),
            "good": _column([float(is_good(outcome, run.slos[outcome.request_class])) for outcome in measured]),
            "refused": _column([float(outcome.ending == "refused") for outcome in measured]),
        }

    @property
    def count(self) -> int:
        return len(self.columns["tokens"])

    def drawn(self, rng: np.random.Generator) -> _Table:
        table = object.__new__(_Table)
        places = rng.integers(0, self.count, self.count) if self.count else np.zeros(0, dtype=np.int64)
        table.seconds = self.seconds
        table.columns = {name: column[places] for name, column in self.columns.items()}
        return table


class _Figure(msgspec.Struct, frozen=True):
    """A figure of a group of tables."""

    name: str
    unit: str
    better: Better
    column: str
    value: Callable[[list[_Table]], float]

    def is_known(self, group: list[_Table]) -> bool:
        return any(bool(np.isfinite(table.columns[self.column]).any()) for table in group)


def _percentile(name: str, column: str, percent: int) -> _Figure:
    def value(group: list[_Table]) -> float:
        values = np.concatenate([table.columns[column] for table in group])
        known = values[np.isfinite(values)]
        return float(np.percentile(known, percent) * 1e3) if len(known) else float("nan")

    return _Figure(f"{name} p{percent}", "ms", "less", column, value)


def _rate(name: str, unit: str, column: str) -> _Figure:
    def value(group: list[_Table]) -> float:
        return float(sum(table.columns[column].sum() for table in group) / sum(table.seconds for table in group))

    return _Figure(name, unit, "more", column, value)


def _share(name: str, column: str) -> _Figure:
    def value(group: list[_Table]) -> float:
        count = sum(table.count for table in group)
        return float(sum(table.columns[column].sum() for table in group) / count) if count else float("nan")

    return _Figure(name, "share", "less", column, value)


_FIGURES: Final = (
    _percentile("TTFT", "ttft", 50),
    _percentile("TTFT", "ttft", 95),
    _percentile("TPOT", "tpot", 50),
    _percentile("TPOT", "tpot", 95),
    _percentile("E2E", "e2e", 95),
    _percentile("Queue time", "queue", 95),
    _rate("Output", "tokens/s", "tokens"),
    _rate("Goodput", "requests/s", "good"),
    _share("Refused", "refused"),
)


def _draw(group: list[_Table], figures: Sequence[_Figure], rng: np.random.Generator) -> Floats:
    """`[draws, figures]`: each figure of a group that was drawn from this one."""
    found = np.empty((NUM_DRAWS, len(figures)))
    for number in range(NUM_DRAWS):
        chosen = rng.integers(0, len(group), len(group)) if len(group) > 1 else [0]
        drawn = [group[place].drawn(rng) for place in chosen]
        found[number] = [figure.value(drawn) for figure in figures]
    return found


def _difference(
    figure: _Figure, tables: list[list[_Table]], first: Floats, second: Floats, *, share: float
) -> Difference:
    one, other = (figure.value(group) for group in tables)
    low = high = change = None
    is_real = False
    if one > 0:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = second / first - 1
        usable = ratios[np.isfinite(ratios)]
        change = other / one - 1
        if len(usable) >= NUM_DRAWS // 2:
            low, high = (float(bound) for bound in np.quantile(usable, (share / 2, 1 - share / 2)))
            is_real = low > 0 or high < 0
    else:
        # Of nothing there is no share: it is real where it is hardly ever nothing.
        is_real = bool(np.quantile(second, share) > 0)
    return Difference(
        name=figure.name,
        unit=figure.unit,
        better=figure.better,
        first=round(one, 4),
        second=round(other, 4),
        change=None if change is None else round(change, 4),
        low=None if low is None else round(low, 4),
        high=None if high is None else round(high, 4),
        is_real=is_real,
    )


def _column(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
