"""What the Tuning pages read: versions with their effects, and how a pool's engines stand. Blocking."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from django.utils import timezone
from redis import Redis

from dashboard.tuning_effect import Effect, effect_of, stretches_of
from dashboard.tuning_presenters import CanaryRow, HistoryRow, present_canary, present_history
from serving.contracts.errors import Unavailable
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.history_selectors import measured_between
from serving.tuning import selectors
from serving.tuning.canary_figures import figures_since
from serving.tuning.conflicts import Envelope, envelope_of
from serving.tuning.living import envelope_in, living_engines


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """Some versions, newest first. `newest` is the number of the newest stored, `in_force` of the one in force."""

    rows: tuple[HistoryRow, ...]
    newest: int
    in_force: int
    has_older: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CanaryPanel:
    """A version that is tried on one engine. `is_gone` says that the engine does not live, `is_known` that Redis
    told which do."""

    number: int
    engine_id: str
    started_at: datetime.datetime
    rows: tuple[CanaryRow, ...]
    is_gone: bool
    is_known: bool


def read_history(pool: Any, *, before: int | None = None, limit: int) -> HistoryPage:
    """At most `limit` versions, those older than number `before` where it is given, with their effects."""
    found = selectors.versions_of(pool, before=before, limit=limit + 1)
    shown = found[:limit]
    newer = selectors.version_numbered(pool, shown[0].number + 1) if shown and before is not None else None
    canary = selectors.running_canary(pool)
    in_force = selectors.newest_version_of(pool).number
    tried = None if canary is None else canary.version.number
    return HistoryPage(
        rows=present_history(shown, _read_effects(pool.name, found, shown, newer), in_force=in_force, tried=tried),
        newest=in_force if tried is None else tried,
        in_force=in_force,
        has_older=len(found) > limit,
    )


def read_version(pool: Any, number: int) -> HistoryRow | None:
    """One version with its effect; None where there is none of that number."""
    version = selectors.version_numbered(pool, number)
    if version is None:
        return None
    older, newer = (selectors.version_numbered(pool, number + step) for step in (-1, 1))
    canary = selectors.running_canary(pool)
    (row,) = present_history(
        [version],
        {number: _read_effect(pool.name, version, older, newer)} if older is not None else {},
        in_force=selectors.newest_version_of(pool).number,
        tried=None if canary is None else canary.version.number,
    )
    return row


def read_canary(pool: Any, engines: Sequence[EngineSnapshot] | None) -> CanaryPanel | None:
    """What is tried, and how its engine does beside the others; None where nothing is. `engines` are those that live,
    None where that is not known."""
    canary = selectors.running_canary(pool)
    if canary is None:
        return None
    living = engines or ()
    figures = figures_since(
        canary.baseline,
        living,
        canary=EngineId(canary.engine_id),
        seconds=(timezone.now() - canary.started_at).total_seconds(),
    )
    return CanaryPanel(
        number=canary.version.number,
        engine_id=canary.engine_id,
        started_at=canary.started_at,
        rows=present_canary(figures),
        is_gone=engines is not None and not any(engine.engine_id == canary.engine_id for engine in living),
        is_known=engines is not None,
    )


def read_engines(redis: Redis, pool: str) -> list[EngineSnapshot] | None:
    """The pool's engines that live; None where Redis is out of reach."""
    try:
        return living_engines(redis, PoolName(pool))
    except Unavailable:
        return None


def num_taking_work(engines: Sequence[EngineSnapshot] | None) -> int | None:
    """How many of them take work; None where it is not known which live."""
    return None if engines is None else sum(engine.state == "ready" for engine in engines)


def envelope_among(engines: Sequence[EngineSnapshot] | None) -> Envelope | None:
    """The smallest engine; None where none is known."""
    return envelope_of(envelope_in(engine) for engine in engines or ())


def _read_effects(name: str, found: Sequence[Any], shown: Sequence[Any], newest: Any) -> Mapping[int, Effect]:
    neighbours = zip(shown, [*found[1:], None], [newest, *shown], strict=False)
    # A pool's first version has nothing before it.
    return {
        version.number: _read_effect(name, version, older, newer)
        for version, older, newer in neighbours
        if older is not None
    }


def _read_effect(name: str, version: Any, older: Any, newer: Any) -> Effect:
    stretches = stretches_of(version, older=older, newer=newer, now=timezone.now())
    before = measured_between(name, stretches.since, stretches.stored_at)
    return effect_of(stretches, before, measured_between(name, stretches.at, stretches.until))
