"""What the Tuning pages read: versions with their effects, and how a pool's engines stand. Blocking."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from django.utils import timezone
from redis import Redis

from dashboard.tuning_effect import Effect, effect_of
from dashboard.tuning_presenters import CanaryRow, HistoryRow, present_canary, present_history
from dashboard.tuning_verdict import CanaryVerdict, present_verdict
from serving.contracts.errors import Unavailable
from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.history_selectors import measured_between
from serving.tuning import canaries, selectors
from serving.tuning.canary_reading import read_canary
from serving.tuning.conflicts import Envelope, envelope_of
from serving.tuning.effect_keeping import KeptEffect, kept_effects
from serving.tuning.effects import ran_on_all, stretches_of
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
    """A version that is tried on one engine. `verdict` is None where no monitor tells of its requests; `is_gone` says
    that the engine does not live, `is_known` that Redis told which do."""

    number: int
    engine_id: str
    started_at: datetime.datetime
    rows: tuple[CanaryRow, ...]
    verdict: CanaryVerdict | None
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
        {number: _read_effect(pool.name, version, older, newer, kept=kept_effects([version]))}
        if older is not None and ran_on_all(version)
        else {},
        in_force=selectors.newest_version_of(pool).number,
        tried=None if canary is None else canary.version.number,
    )
    return row


def read_panel(pool: Any, engines: Sequence[EngineSnapshot] | None, redis: Redis) -> CanaryPanel | None:
    """What is tried, and how its engine does beside the others; None where nothing is. `engines` are those that live,
    None where that is not known."""
    reading = read_canary(pool, engines or (), redis)
    if reading is None:
        return None
    return CanaryPanel(
        number=reading.number,
        engine_id=reading.engine_id,
        started_at=reading.started_at,
        rows=present_canary(reading.engines),
        verdict=present_verdict(reading),
        is_gone=engines is not None and reading.is_gone,
        is_known=engines is not None,
    )


def read_engines(redis: Redis, pool: str) -> list[EngineSnapshot] | None:
    """The pool's engines that live; None where Redis is out of reach."""
    try:
        return living_engines(redis, PoolName(pool))
    except Unavailable:
        return None


def ids_taking_work(engines: Sequence[EngineSnapshot] | None) -> tuple[str, ...] | None:
    """Those of them that take work, the one first that tries a change where none is chosen; None where it is not known
    which live."""
    return None if engines is None else tuple(engine.engine_id for engine in canaries.taking_work(engines))


def envelope_among(engines: Sequence[EngineSnapshot] | None) -> Envelope | None:
    """The smallest engine; None where none is known."""
    return envelope_of(envelope_in(engine) for engine in engines or ())


def _read_effects(name: str, found: Sequence[Any], shown: Sequence[Any], newest: Any) -> Mapping[int, Effect]:
    neighbours = zip(shown, [*found[1:], None], [newest, *shown], strict=False)
    kept = kept_effects(shown)
    # A pool's first version has nothing before it, and what one engine alone ran did nothing to the pool.
    return {
        version.number: _read_effect(name, version, older, newer, kept=kept)
        for version, older, newer in neighbours
        if older is not None and ran_on_all(version)
    }


def _read_effect(name: str, version: Any, older: Any, newer: Any, *, kept: Mapping[int, KeptEffect]) -> Effect:
    stretches = stretches_of(version, older=older, newer=newer, now=timezone.now())
    own = kept.get(version.number)
    if own is not None:
        return effect_of(stretches, own.before, own.after)
    before = measured_between(name, stretches.since, stretches.stored_at)
    return effect_of(stretches, before, measured_between(name, stretches.at, stretches.until))
