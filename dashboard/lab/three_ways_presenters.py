"""What the pages about the three ways of batching show: pure functions."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Final

from dashboard.lab.overloads_presenters import WAYS as WHERE
from dashboard.lab.three_ways_pictures import Drawing, draw, example_of
from serving.lab.experiments.three_ways_figures import MEASURES, Way, is_real
from serving.lab.experiments.three_ways_plan import WAYS, ThreeWaysPlan, WayName
from serving.lab.experiments.three_ways_results import ThreeWaysResult
from serving.lab.experiments.three_ways_selectors import ThreeWays

BAR_WIDTH: Final = 120
TITLES: Final[dict[WayName, str]] = {"static": "Static", "windowed": "Windowed", "continuous": "Continuous"}
_ABOUT: Final[dict[WayName, str]] = {
    "static": (
        "A batch forms, and runs until its longest answer is done; only then does the next one form. Whoever comes a "
        "moment too late waits for all of it, and the places of short answers stand empty until the longest ends."
    ),
    "windowed": (
        "Sequences join a batch that runs, but wait a moment for company first, so that several begin together. Places "
        "fill as they fall free; the wait is added to every first token."
    ),
    "continuous": (
        "Sequences join and leave between any two steps. A place that falls free is taken in the next step, and nobody "
        "waits for anybody else's answer to end."
    ),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WayPanel:
    """One way in words, with a picture of it. `setting` is what it consists of."""

    title: str
    about: str
    setting: str
    drawing: Drawing


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One figure as a bar in units of `BAR_WIDTH`, with its confidence interval. `words` are it in figures, `against`
    how it stands to the continuous way's, where that is real."""

    way: str
    words: str
    against: str
    width: float
    low: float
    span: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRow:
    """One figure of all three ways."""

    title: str
    unit: str
    is_more_better: bool
    bars: tuple[Bar, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WasteRow:
    """What one way leaves unused."""

    way: str
    padded: str
    idle: str
    num_requests: str
    num_refused: str
    num_failed: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ThreeWaysRow:
    """One comparison in the list."""

    id: int
    title: str
    pool: str
    way: str
    state: str
    outcome: str
    author: str
    created_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ThreeWaysPanel:
    """A comparison as it stands. `doing` is what is played now."""

    id: int
    title: str
    pool: str
    workload: str
    way: str
    repeats: int
    state: str
    is_over: bool
    is_stop_asked: bool
    is_simulated: bool
    author: str
    created_at: datetime.datetime
    error: str
    doing: str
    num_done: int
    num_runs: int
    conclusions: tuple[str, ...]
    notes: tuple[str, ...]
    order: str
    ways: tuple[WayPanel, ...]
    measures: tuple[MeasureRow, ...]
    waste: tuple[WasteRow, ...]


def explain() -> tuple[WayPanel, ...]:
    """The three ways in words, each with the same example."""
    plan = {
        "static": "mode static",
        "windowed": "mode continuous, batch_window_ms above 0",
        "continuous": "mode continuous",
    }
    return tuple(
        WayPanel(
            title=TITLES[name],
            about=_ABOUT[name],
            setting=plan[name],
            drawing=draw(example_of(name), note="An example: nine requests and four places."),
        )
        for name in WAYS
    )


def present_row(found: ThreeWays) -> ThreeWaysRow:
    """A comparison in one line."""
    return ThreeWaysRow(
        id=found.id,
        title=found.title,
        pool=found.pool,
        way=WHERE[found.plan.way],
        state=found.state,
        outcome=found.error if found.result is None else " ".join(found.result.conclusions[:1]),
        author=found.author,
        created_at=found.created_at,
    )


def present_three_ways(found: ThreeWays) -> ThreeWaysPanel:
    """A comparison's own page."""
    result, plan = found.result, found.plan
    return ThreeWaysPanel(
        id=found.id,
        title=found.title,
        pool=found.pool,
        workload=plan.workload.name,
        way=WHERE[plan.way],
        repeats=plan.repeats,
        state=found.state,
        is_over=found.is_over,
        is_stop_asked=found.is_stop_asked,
        is_simulated=plan.way == "simulated",
        author=found.author,
        created_at=found.created_at,
        error=found.error,
        doing=_doing(found),
        num_done=found.num_done,
        num_runs=plan.repeats * len(WAYS),
        conclusions=() if result is None else result.conclusions,
        notes=() if result is None else result.notes,
        order="" if result is None else "; ".join(", ".join(ways) for ways in result.order),
        ways=explain() if result is None else tuple(_panel(way, plan, result) for way in result.ways),
        measures=()
        if result is None
        else tuple(_measure(name, result) for name in MEASURES if _is_known(name, result)),
        waste=() if result is None else tuple(_waste(way) for way in result.ways),
    )


def _doing(found: ThreeWays) -> str:
    if found.is_over:
        return ""
    if found.state == "waiting":
        return "It waits for its turn."
    return f"It plays {found.doing}." if found.doing else "It begins."


def _panel(way: Way, plan: ThreeWaysPlan, result: ThreeWaysResult) -> WayPanel:
    setting = ", ".join(f"{name} {_shown(value)}" for name, value in plan.changes_of(way.name).items())
    if way.picture is None:
        drawing = draw(example_of(way.name), note="An example: nine requests and four places.")
    else:
        source = "a simulated engine's" if result.is_simulated else "the engine's own"
        first, last = way.picture.first_step, way.picture.first_step + way.picture.num_steps - 1
        hidden = way.picture.num_hidden_slots
        more = f"; {hidden} more places are not shown" if hidden else ""
        drawing = draw(way.picture, note=f"Steps {first:,} to {last:,} of {source}{more}.")
    return WayPanel(title=TITLES[way.name], about=_ABOUT[way.name], setting=setting, drawing=drawing)


def _is_known(name: str, result: ThreeWaysResult) -> bool:
    return any(name in way.figures for way in result.ways)


def _measure(name: str, result: ThreeWaysResult) -> MeasureRow:
    measure = MEASURES[name]
    most = max((way.figures[name].high for way in result.ways if name in way.figures), default=0.0) or 1.0
    bars = []
    for way in result.ways:
        figure, ratio = way.figures.get(name), way.against.get(name)
        if figure is None:
            bars.append(Bar(way=TITLES[way.name], words="–", against="", width=0, low=0, span=0))
            continue
        bars.append(
            Bar(
                way=TITLES[way.name],
                words=f"{_number(figure.mean)} ± {_number(figure.half_width)}",
                against=f"{ratio.mean:.2f} ×" if ratio is not None and is_real(ratio) else "",
                width=_units(figure.mean, most),
                low=_units(figure.low, most),
                span=round(_units(figure.high, most) - _units(figure.low, most), 1),
            )
        )
    return MeasureRow(title=measure.title, unit=measure.unit, is_more_better=measure.is_more_better, bars=tuple(bars))


def _units(value: float, most: float) -> float:
    return round(BAR_WIDTH * min(1.0, max(0.0, value / most)), 1)


def _waste(way: Way) -> WasteRow:
    return WasteRow(
        way=TITLES[way.name],
        padded=_counted(way.num_padded_tokens, way.padded_share),
        idle=_counted(way.num_idle_slot_steps, way.idle_share),
        num_requests=f"{way.num_requests:,}",
        num_refused=f"{way.num_refused:,}",
        num_failed=f"{way.num_failed:,}",
    )


def _counted(count: int | None, share: float | None) -> str:
    if count is None:
        return "not told"
    return f"{count:,}" if share is None else f"{count:,} ({share:.0%})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
