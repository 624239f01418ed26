"""What a sweep came to, leg by leg."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from serving.lab.experiments.sweep_judging import Proposal
from serving.lab.experiments.sweep_points import Point

Ended = Literal["finished", "guardrail", "overtaken"]


class Leg(msgspec.Struct, frozen=True, kw_only=True):
    """One dimension's points, in the order in which they were played, and what they tell. `latency` is the
    `<class> <interval>` that is drawn against throughput, `slo_ms` its bound (None: it has none). `knee` is an index of
    `points`."""

    name: str
    in_force: Any
    values: tuple[Any, ...]
    is_simulated: bool
    points: tuple[Point, ...] = ()
    latency: str = ""
    slo_ms: float | None = None
    knee: int | None = None
    proposal: Proposal | None = None
    stopped_because: str = ""


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep came to. `changes` are the tunables that are proposed, `{name: [value in force, value]}`; `load` is
    what the load may be, `{name: value}`. `ended` says whether it came to its end by itself, `says` how, in words."""

    pool: str
    workload: str
    legs: tuple[Leg, ...]
    changes: dict[str, list[Any]]
    load: dict[str, Any]
    is_simulated: bool
    ended: Ended
    says: str
    notes: tuple[str, ...] = ()
