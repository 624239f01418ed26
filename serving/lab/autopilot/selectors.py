"""Reading autopilots. Blocking: async code calls these through `serving.threads.in_thread`."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import msgspec

from serving.contracts.errors import InvalidValue
from serving.contracts.tunables import describe
from serving.lab.autopilot.deciding import Memory
from serving.lab.autopilot.levers import LEVERS
from serving.lab.autopilot.terms import Lever, Objective, Terms, decode_terms
from serving.lab.models import Autopilot, AutopilotMove
from serving.tuning.selectors import configured_pool_names, current_tunables, find_pool

_NUM_MOVES = 30
_ROOM = 4.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One step of an autopilot, and what became of it."""

    field: str
    before: Any
    after: Any
    version: int
    reason: str
    state: str
    verdict: str
    made_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AutopilotView:
    """An autopilot as it stands: `off`, `on` or `paused`, and what it says of itself."""

    pool: str
    state: str
    says: str
    terms: Terms
    changed_by: str
    moves: tuple[Move, ...]


def list_autopilots() -> list[AutopilotView]:
    """One for each configured pool, whether it was ever on or not."""
    return [find_autopilot(pool) for pool in configured_pool_names()]


def find_autopilot(pool: str) -> AutopilotView:
    """The pool's; raises `PoolNotFound`. One that was never on has the terms that would suit the pool."""
    name = find_pool(pool).name
    row = Autopilot.objects.filter(pool=name).first()
    if row is None:
        return AutopilotView(pool=name, state="off", says="", terms=usual_terms(name), changed_by="", moves=())
    memory = msgspec.convert(row.memory, type=Memory)
    moves = AutopilotMove.objects.filter(autopilot=row)[:_NUM_MOVES]
    return AutopilotView(
        pool=name,
        state="off" if not row.is_on else "paused" if row.paused_because else "on",
        says=row.paused_because or (memory.says if row.is_on else ""),
        terms=_terms_of(row.terms, name),
        changed_by=row.changed_by,
        moves=tuple(
            Move(
                field=move.field,
                before=move.before,
                after=move.after,
                version=move.version,
                reason=move.reason,
                state=move.state,
                verdict=move.verdict,
                made_at=move.made_at,
            )
            for move in moves
        ),
    )


def usual_terms(pool: str) -> Terms:
    """Terms to begin with: the pool's own objectives, and bounds of a quarter and four times the values in force."""
    tunables = current_tunables(pool).tunables
    levers = []
    for spec in describe():
        if spec.name not in LEVERS or spec.low is None or spec.high is None:
            continue
        value = getattr(tunables, spec.name)
        low, high = max(spec.low, value / _ROOM), min(spec.high, value * _ROOM)
        if spec.kind == "integer":
            low, high = round(low), round(high)
        if spec.name == "prefill_share":
            low, high = 0.0, 1.0
        if low < high:
            levers.append(Lever(spec.name, low, high))
    objectives = (Objective("ttft_p95", tunables.slo_ttft_ms), Objective("itl_p95", tunables.slo_itl_ms))
    return Terms(objectives=objectives, levers=tuple(levers))


def _terms_of(content: Any, pool: str) -> Terms:
    try:
        return decode_terms(content)
    except InvalidValue:  # Of before it was ever on, or of a version of Footplate that knew other levers.
        return usual_terms(pool)
