"""The sweep: one dimension at a time, gradually, in place, until the SLO breaks; and what it proposes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from serving.contracts.errors import InvalidValue
from serving.lab.experiments.bench import Bench, BrokenOff
from serving.lab.experiments.sweep_judging import axis_of, choose, find_knee, three_best, why_stop
from serving.lab.experiments.sweep_plan import (
    LOADS,
    Dimension,
    Guard,
    SweepPlan,
    decode_plan,
    value_in_force,
    values_of,
    with_load,
)
from serving.lab.experiments.sweep_points import Point, bound_of, has_slo, point_of
from serving.lab.experiments.sweep_results import Ended, Leg, SweepResult
from serving.lab.experiments.tuning import Overtaken
from serving.lab.summaries import RunSummary
from serving.lab.workloads.workload import Workload
from serving.telemetry.conditions import METRICS, Condition, ConditionWatch, told

ALL_PLAYED: Final = "all values were played"


def play(plan: Mapping[str, Any], bench: Bench) -> dict[str, Any]:
    """Play the sweep that an experiment's plan asks for (a `SweepPlan`); its `SweepResult`, as JSON holds them. Raises
    as `play_sweep`."""
    from serving.lab.experiments.sweep_simulated import simulated_bench_of

    result = play_sweep(decode_plan(plan), bench, simulated=lambda: simulated_bench_of(bench))
    return dict(msgspec.to_builtins(result))


def play_sweep(plan: SweepPlan, bench: Bench, *, simulated: Callable[[], Bench] | None = None) -> SweepResult:
    """Play the sweep to its end. `simulated` makes the bench that stands for the pool where the plan simulates.

    Raises `InvalidValue` for a plan that cannot be swept, `Stopped` once it is asked to end, and what the bench raises
    where the pool cannot be experimented on.
    """
    plan.check()
    player = _Player(plan, bench)
    legs: list[Leg] = []
    try:
        for dimension in plan.dimensions:
            legs.extend(_sweep_dimension(plan, dimension, player, simulated))
    except _Ended as ended:
        player.close_leg()
        return _result(plan, bench.pool, player, ended=ended.how, says=ended.reason)
    return _result(plan, bench.pool, player, ended="finished", says=player.legs[-1].stopped_because)


def _sweep_dimension(
    plan: SweepPlan, dimension: Dimension, player: _Player, simulated: Callable[[], Bench] | None
) -> Sequence[Leg]:
    values = values_of(dimension, tunables=player.tunables(), workload=player.workload)
    if plan.way == "played":
        return [player.sweep(dimension.name, values)]
    if simulated is None:
        raise InvalidValue("way", plan.way, "played, as there is nothing here that simulates")
    leg = player.on_simulated(simulated()).sweep(dimension.name, values)
    if plan.way == "simulated":
        return [leg]
    best = three_best(leg.points, margin=plan.margin, in_force=leg.in_force)
    return [leg, player.back().sweep(dimension.name, best)]


class _Ended(Exception):
    """The sweep is over before its last point."""

    def __init__(self, how: Ended, reason: str) -> None:
        super().__init__(reason)
        self.how: Ended = how
        self.reason = reason


class _Player:
    """Owns the legs of one sweep, and the values that were chosen so far; on the thread that plays it."""

    def __init__(self, plan: SweepPlan, bench: Bench) -> None:
        self._plan = plan
        self._own = self._bench = bench
        self._is_simulating = False
        self._baseline = bench.tunables()
        self._chosen: dict[str, Any] = {}
        """Every tunable that was swept already, at the value that was found best, or in force before."""
        self.workload = plan.workload
        self.legs: list[Leg] = []
        self._open: Leg | None = None
        self._has_seen_others = False

    @property
    def has_seen_others(self) -> bool:
        """Whether the guardrail had any traffic of others to go by."""
        return self._has_seen_others

    def tunables(self) -> dict[str, Any]:
        """The values that the next dimension starts from."""
        return {**self._baseline, **self._chosen}

    def on_simulated(self, bench: Bench) -> _Player:
        """Play on that bench, which simulates, from now on."""
        self._bench, self._is_simulating = bench, True
        return self

    def back(self) -> _Player:
        """Play on the pool's own engines again."""
        self._bench, self._is_simulating = self._own, False
        return self

    def sweep(self, name: str, values: Sequence[Any]) -> Leg:
        """Play one dimension's values until there is no more to learn, and go on from the best."""
        in_force = value_in_force(name, self.tunables(), self.workload)
        self._open = Leg(name=name, in_force=in_force, values=tuple(values), is_simulated=self._is_simulating)
        stopped_because = ALL_PLAYED
        for value in values:
            self._check_overtaken()
            point = self._play_point(name, value)
            self._open = msgspec.structs.replace(self._open, points=(*self._open.points, point))
            self._tell(value)
            if (
                reason := why_stop(self._open.points, num_beyond=self._plan.num_beyond, is_load=name in LOADS)
            ) is not None:
                stopped_because = reason
                break
        self._open = msgspec.structs.replace(self._open, stopped_because=stopped_because)
        return self.close_leg()

    def close_leg(self) -> Leg:
        """Judge the open leg by the points that it has."""
        assert self._open is not None, "a leg is open while it is swept"
        leg, self._open = self._judged(self._open), None
        self.legs.append(leg)
        self._keep_choice(leg)
        self._tell(None)
        return leg

    def _judged(self, leg: Leg) -> Leg:
        latency = axis_of(leg.points)
        return msgspec.structs.replace(
            leg,
            latency=latency,
            slo_ms=bound_of(self._plan.workload, latency),
            knee=find_knee(leg.points, latency),
            proposal=choose(
                leg.points, margin=self._plan.margin, in_force=leg.in_force, has_slo=has_slo(self._plan.workload)
            ),
        )

    def _keep_choice(self, leg: Leg) -> None:
        """What the next dimension is swept with. A simulated leg before a played one chooses nothing yet."""
        if not _counts(leg, self._plan):
            return
        proposal = leg.proposal
        is_none = proposal is None or proposal.index is None
        value = leg.in_force if proposal is None or proposal.index is None else leg.points[proposal.index].value
        if leg.name not in LOADS:
            self._chosen[leg.name] = value
        elif not is_none:
            self.workload = with_load(self.workload, leg.name, value)

    def _play_point(self, name: str, value: Any) -> Point:
        workload, version = self.workload, 0
        if name in LOADS:
            workload = with_load(workload, name, value)
        changes = self._chosen if name in LOADS else {**self._chosen, name: value}
        if changes:
            version = self._retune(changes, name, value)
        self._bench.pause(self._plan.settle_seconds)
        summaries: list[RunSummary] = []
        for repeat in range(1, self._plan.repeats + 1):
            self._tell(value, repeat=repeat)
            summaries.append(self._play(workload, name, value, repeat=repeat))
        return point_of(value, summaries, workload, version=version)

    def _retune(self, changes: Mapping[str, Any], name: str, value: Any) -> int:
        try:
            return self._bench.retune(changes, reason=f"sweep of {name}: {value}")
        except Overtaken as error:
            raise _Ended("overtaken", error.message) from None

    def _play(self, workload: Workload, name: str, value: Any, *, repeat: int) -> RunSummary:
        seeded = msgspec.structs.replace(workload, seed=workload.seed + repeat - 1)
        watch = _Watch(self._bench, None if self._is_simulating else self._plan.guard)
        try:
            return self._bench.play(
                seeded,
                title=f"{name} {value}, {repeat} of {self._plan.repeats}",
                point={name: value, "repeat": repeat},
                watch=watch,
            )
        except BrokenOff as error:
            raise _Ended(watch.how, error.reason) from None
        finally:
            self._has_seen_others = self._has_seen_others or watch.has_seen_others

    def _check_overtaken(self) -> None:
        if (said := self._bench.overtaken()) is not None:
            raise _Ended("overtaken", said)

    def _tell(self, value: Any, *, repeat: int = 0) -> None:
        legs = [*self.legs, *([] if self._open is None else [self._open])]
        self._own.tell(
            {
                "legs": msgspec.to_builtins(legs),
                "value": value,
                "repeat": repeat,
                "repeats": self._plan.repeats,
                "is_simulating": self._is_simulating,
            }
        )


class _Watch:
    """Owns since when the guardrail of a sweep is missed, during one run; on the thread that plays it."""

    def __init__(self, bench: Bench, guard: Guard | None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._bench = bench
        self._guard = guard
        self._now = now
        self._condition = None if guard is None else _condition_of(guard)
        self._missed = None if self._condition is None else ConditionWatch(self._condition)
        self.how: Ended = "guardrail"
        self.has_seen_others = False

    def __call__(self) -> str | None:
        """Why the run must end at once, or None."""
        if (said := self._bench.overtaken()) is not None:
            self.how = "overtaken"
            return said
        if self._guard is None or self._missed is None or self._condition is None:
            return None
        reading = self._bench.others().get(self._guard.metric)
        self.has_seen_others = self.has_seen_others or (reading is not None and reading.can_be_judged)
        if not self._missed.see(reading, now=self._now()) or reading is None:
            return None
        value = told(reading.value, METRICS[self._guard.metric].unit)
        return f"the pool's other traffic broke the guardrail: {self._condition.describe()}, last {value}"


def _condition_of(guard: Guard) -> Condition:
    return Condition(metric=guard.metric, bound=guard.bound, for_seconds=guard.window_seconds)


def _result(plan: SweepPlan, pool: str, player: _Player, *, ended: Ended, says: str) -> SweepResult:
    judged = [leg for leg in player.legs if _counts(leg, plan)]
    is_whole = ended == "finished"
    chosen = {
        leg.name: [leg.in_force, leg.points[leg.proposal.index].value]
        for leg in judged
        if is_whole and leg.proposal is not None and leg.proposal.index is not None and leg.proposal.is_change
    }
    return SweepResult(
        pool=pool,
        workload=plan.workload.name,
        legs=tuple(player.legs),
        changes={name: change for name, change in chosen.items() if name not in LOADS},
        load={name: change[1] for name, change in chosen.items() if name in LOADS},
        is_simulated=plan.way == "simulated",
        ended=ended,
        says=says,
        notes=_notes(plan, player),
    )


def _counts(leg: Leg, plan: SweepPlan) -> bool:
    """Whether a leg's proposal is the sweep's: a simulated one that was to be checked is not."""
    return plan.way != "simulated_first" or not leg.is_simulated


def _notes(plan: SweepPlan, player: _Player) -> tuple[str, ...]:
    notes = []
    if plan.way == "simulated":
        notes.append("Every point is simulated: check the proposal on the engines before you trust it.")
    if plan.repeats == 1:
        notes.append("Each point was played once: its confidence interval is an assumed one.")
    if plan.guard is not None and plan.way != "simulated" and not player.has_seen_others:
        notes.append("The guardrail had too little of others' traffic to go by.")
    return tuple(notes)
