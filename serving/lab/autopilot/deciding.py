"""What an autopilot does next: a pure function of its terms, what it remembers, and what it sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from serving.contracts.tunables import Tunables
from serving.lab.autopilot.levers import LEVERS, REMEDIES, Direction, Remedy, Sight, moved
from serving.lab.autopilot.terms import OBJECTIVES, Objective, Terms

_MOST_PATIENCE = 5
"""After how many times `judged_seconds` a move is undone of which nothing could be said."""
_SETTLING_SECONDS = 60.0
"""Figures are of the last minute: until it is over, what they tell is partly of before a move."""
_MUCH_WORSE = 1.25


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A move that is not judged yet. `metric` is what it is to better (empty: it gives back what is needed no longer),
    `value_ms` what that was before, `missed` which objectives were missed then."""

    move_id: int
    field: str
    before: Any
    after: Any
    metric: str
    value_ms: float | None
    missed: tuple[str, ...]
    made_at: float


class Standing(msgspec.Struct, frozen=True):
    """A move that was kept, and stands: `field` was `before`, and became `after`."""

    move_id: int
    field: str
    before: Any
    after: Any


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What an autopilot remembers. `version` is the newest of the pool's versions that it knows of (None: it has not
    looked yet). Times are unix seconds; `missed_since` is by objective. `tried_until` says until when a move of
    `field:direction` is not tried again. `standing` are the moves that were kept, the latest last. While experiments
    change the pool, `before_experiment` is the version before theirs, and nothing is done until `held_until`."""

    version: int | None = None
    missed_since: dict[str, float] = {}
    calm_since: float | None = None
    trial: Trial | None = None
    tried_until: dict[str, float] = {}
    standing: tuple[Standing, ...] = ()
    before_experiment: int | None = None
    held_until: float | None = None
    says: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """An objective's metric over the last minute, in milliseconds, and of how many samples it is."""

    value_ms: float
    num_samples: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is seen at one moment, `now` in unix seconds."""

    now: float
    metrics: Mapping[str, Measured]
    sight: Sight
    tunables: Tunables


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Change `field` to `value`, for `metric` (empty: to give back what is needed no longer)."""

    field: str
    before: Any
    value: Any
    metric: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What became of the move on trial, and why."""

    verdict: Literal["kept", "undone"]
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, and what to remember of it. At most one of `judgement` and `move` is there."""

    memory: Memory
    judgement: Judgement | None = None
    move: Move | None = None


def decide(terms: Terms, memory: Memory, view: View) -> Decision:
    """Judge the move on trial if it is time, else move if an objective has been missed for long enough, else give back
    what is needed no longer. `memory` is as it is before anything is stored."""
    seen = _remember(terms, memory, view)
    if memory.trial is not None:
        return _judge(terms, seen, memory.trial, view)
    due = [each for each in terms.objectives if _is_due(each, terms, seen, view)]
    if due:
        return _choose(terms, seen, due, view)
    if seen.calm_since is not None and view.now - seen.calm_since >= terms.calm_seconds and seen.standing:
        return _give_back(seen, view)
    return Decision(memory=msgspec.structs.replace(seen, says=_state_of(terms, seen, view)))


def after_judgement(terms: Terms, memory: Memory, judgement: Judgement, *, now: float) -> Memory:
    """What is remembered once the judgement is carried out."""
    trial = memory.trial
    assert trial is not None, "nothing was on trial"
    standing = memory.standing
    tried_until = dict(memory.tried_until)
    gives_back = not trial.metric
    if judgement.verdict == "undone":
        tried_until[_name_of_try(trial)] = now + terms.retry_seconds
    elif gives_back:
        standing = standing[:-1]
    else:
        standing = (*standing, Standing(trial.move_id, trial.field, trial.before, trial.after))
    return msgspec.structs.replace(
        memory,
        trial=None,
        standing=standing,
        tried_until=tried_until,
        missed_since={},
        calm_since=None,
        says=judgement.reason,
    )


def _remember(terms: Terms, memory: Memory, view: View) -> Memory:
    missed_since: dict[str, float] = {}
    for objective in terms.objectives:
        if _is_missed(objective, terms, view):
            missed_since[objective.metric] = min(view.now, memory.missed_since.get(objective.metric, view.now))
    calm = all(_is_calm(objective, terms, view) for objective in terms.objectives)
    calm_since = (view.now if memory.calm_since is None else min(view.now, memory.calm_since)) if calm else None
    tried_until = {name: until for name, until in memory.tried_until.items() if until > view.now}
    return msgspec.structs.replace(memory, missed_since=missed_since, calm_since=calm_since, tried_until=tried_until)


def _judge(terms: Terms, memory: Memory, trial: Trial, view: View) -> Decision:
    age = view.now - trial.made_at
    newly_missed = [metric for metric in memory.missed_since if metric not in trial.missed]
    if age >= _SETTLING_SECONDS and newly_missed:
        metric = newly_missed[0]
        return _undo(memory, f"{_told(metric, view)}, which is above its bound since the move")
    measured = view.metrics.get(trial.metric) if trial.metric else None
    is_known = not trial.metric or (measured is not None and measured.num_samples >= terms.least_samples)
    if not is_known:
        if age >= _MOST_PATIENCE * terms.judged_seconds:
            return _undo(memory, "too little traffic came to say whether it helped")
        return Decision(memory=msgspec.structs.replace(memory, says="waits for enough traffic to judge its last move"))
    if not trial.metric:
        if age < terms.judged_seconds:
            return Decision(memory=msgspec.structs.replace(memory, says="watches what it has given back"))
        return _keep(memory, "all objectives are met without it")
    assert measured is not None, "a metric that is known was measured"
    before, now_ms = trial.value_ms or 0.0, measured.value_ms
    if age >= _SETTLING_SECONDS and now_ms > _MUCH_WORSE * before:
        return _undo(memory, f"{OBJECTIVES[trial.metric]} rose from {before:.0f} to {now_ms:.0f} ms")
    if age < terms.judged_seconds:
        return Decision(memory=msgspec.structs.replace(memory, says="watches what its last move does"))
    if now_ms <= before * (1 - terms.least_gain_ratio):
        return _keep(memory, f"{OBJECTIVES[trial.metric]} fell from {before:.0f} to {now_ms:.0f} ms")
    return _undo(memory, f"{OBJECTIVES[trial.metric]} was {before:.0f} ms before and {now_ms:.0f} ms after: no help")


def _keep(memory: Memory, reason: str) -> Decision:
    return Decision(memory=memory, judgement=Judgement(verdict="kept", reason=reason))


def _undo(memory: Memory, reason: str) -> Decision:
    return Decision(memory=memory, judgement=Judgement(verdict="undone", reason=reason))


def _choose(terms: Terms, memory: Memory, due: list[Objective], view: View) -> Decision:
    """The first remedy that is left for what is missed worst."""
    worst_first = sorted(due, key=lambda each: -view.metrics[each.metric].value_ms / each.bound_ms)
    for objective in worst_first:
        for remedy in REMEDIES[objective.metric]:
            move = _move_by(remedy, objective, terms, memory, view)
            if move is not None:
                return Decision(memory=memory, move=move)
    worst = worst_first[0]
    says = f"{_told(worst.metric, view)}, above {worst.bound_ms:.0f} ms, and no lever is left that may help"
    return Decision(memory=msgspec.structs.replace(memory, says=says))


def _move_by(remedy: Remedy, objective: Objective, terms: Terms, memory: Memory, view: View) -> Move | None:
    lever = terms.lever(remedy.field)
    if lever is None or f"{remedy.field}:{remedy.direction}" in memory.tried_until:
        return None
    if not remedy.applies(view.sight, view.tunables):
        return None
    before = getattr(view.tunables, remedy.field)
    value = moved(remedy.field, before, remedy.direction, low=lever.low, high=lever.high)
    if value is None:
        return None
    reason = (
        f"{_told(objective.metric, view)}, above {objective.bound_ms:.0f} ms; {_seen(view.sight, view.tunables)}: "
        f"{remedy.field} from {before:g} to {value:g}, so that {remedy.because}"
    )
    return Move(field=remedy.field, before=before, value=value, metric=objective.metric, reason=reason)


def _give_back(memory: Memory, view: View) -> Decision:
    last = memory.standing[-1]
    before = getattr(view.tunables, last.field)
    direction: Direction = 1 if last.before > last.after else -1
    if before != last.after or f"{last.field}:{direction}" in memory.tried_until:
        return Decision(memory=msgspec.structs.replace(memory, says="all objectives are met, with room"))
    reason = f"all objectives are met, with room: {last.field} from {before:g} back to {last.before:g}"
    move = Move(field=last.field, before=before, value=last.before, metric="", reason=reason)
    return Decision(memory=memory, move=move)


def _is_missed(objective: Objective, terms: Terms, view: View) -> bool:
    measured = view.metrics.get(objective.metric)
    is_known = measured is not None and measured.num_samples >= terms.least_samples
    return is_known and measured is not None and measured.value_ms > objective.bound_ms


def _is_calm(objective: Objective, terms: Terms, view: View) -> bool:
    """Met with room; without traffic nothing can be said, and nothing is given back."""
    measured = view.metrics.get(objective.metric)
    if measured is None or measured.num_samples < terms.least_samples:
        return False
    return measured.value_ms < terms.slack_ratio * objective.bound_ms


def _is_due(objective: Objective, terms: Terms, memory: Memory, view: View) -> bool:
    since = memory.missed_since.get(objective.metric)
    return since is not None and view.now - since >= terms.missed_seconds


def _name_of_try(trial: Trial) -> str:
    return f"{trial.field}:{1 if trial.after > trial.before else -1}"


def _told(metric: str, view: View) -> str:
    return f"{OBJECTIVES[metric]} of the last minute is {view.metrics[metric].value_ms:.0f} ms"


def _seen(sight: Sight, tunables: Tunables) -> str:
    return (
        f"{sight.num_running} of {tunables.max_running} places taken, {sight.num_waiting} waiting, "
        f"{sight.kv_used_ratio:.0%} of KV memory in use"
    )


def _state_of(terms: Terms, memory: Memory, view: View) -> str:
    if memory.missed_since:
        metric = next(iter(memory.missed_since))
        return f"{_told(metric, view)}, above its bound: moves if that lasts"
    known = [each for each in terms.objectives if each.metric in view.metrics]
    return "all objectives are met" if known else "nothing was measured in the last minute"


def title_of(field: str) -> str:
    """A lever in a word or two."""
    return LEVERS[field]
