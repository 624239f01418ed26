"""Canaries: a version that one engine of its pool runs first, until somebody takes it to all, or back. Blocking."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

from django.db import transaction
from django.utils import timezone
from redis import Redis

from serving.audit.actions import Action
from serving.audit.services import record
from serving.contracts.actors import Author
from serving.contracts.errors import InvalidValue, StaleVersion
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import AnnouncedTunables, EngineSnapshot
from serving.contracts.tunables import describe
from serving.telemetry.reconciler import Trial
from serving.tuning.announcing import announce_to
from serving.tuning.canary_figures import baseline_of
from serving.tuning.happenings import note
from serving.tuning.models import Canary, CanaryState, Guardrail, GuardrailState, TunablesVersion
from serving.tuning.selectors import newest_stored, running_canary, tunables_of
from serving.tuning.storing import (
    announce_on_commit,
    audited_changes,
    check_reason,
    end_canary,
    lock_pool,
    store,
)

LEAST_ENGINES = 2


def begin(
    version: TunablesVersion,
    engines: Sequence[EngineSnapshot],
    *,
    author: Author,
    redis: Redis,
    engine: str | None = None,
) -> Canary:
    """Let one of the pool's living engines run the version first, in the transaction that stores it: the one of the id
    `engine`, otherwise the first by name that takes work.

    Raises `InvalidValue` where fewer than two engines take work, where `engine` is none of them, and where nothing of
    the change acts in an engine.
    """
    acting = [spec.name for spec in describe() if spec.name in version.changes and spec.effect == "next step"]
    if not acting:
        raise InvalidValue(
            "canary", "on", f"off: {', '.join(version.changes)} acts at the door, for all engines of the pool at once"
        )
    ready = taking_work(engines)
    if len(ready) < LEAST_ENGINES:
        raise InvalidValue(
            "canary", "on", f"off: it needs two engines of the pool that take work, and there are {len(ready)}"
        )
    engine_id = ready[0].engine_id if engine is None else _chosen(engine, ready)
    canary = Canary.objects.create(version=version, engine_id=engine_id, baseline=baseline_of(engines))
    _audit("canary begun", version, author=author, reason=version.reason)
    announced = AnnouncedTunables(version.number, tunables_of(version.values))
    transaction.on_commit(functools.partial(announce_to, redis, engine_id, announced))
    _note(redis, version, f"version {version.number} is tried on {engine_id}")
    return canary


def taking_work(engines: Iterable[EngineSnapshot]) -> list[EngineSnapshot]:
    """Those that may try a version, by name: the first of them does where none is named. Pure."""
    return sorted((e for e in engines if e.state == "ready"), key=lambda e: (e.name, e.engine_id))


def take_to_all(name: str, number: int, *, reason: str, author: Author, redis: Redis) -> TunablesVersion:
    """Put the version that is tried in force on every engine; a guardrail of it, unless it was called off, watches anew
    from now on.

    Raises `PoolNotFound`, and `StaleVersion` where version `number` is not being tried.
    """
    check_reason(reason)
    with transaction.atomic():
        version = _lock_tried(name, number, CanaryState.PROMOTED, author=author)
        _audit("canary taken to all", version, author=author, reason=reason)
        # One that passed has seen one engine alone.
        kept = Guardrail.objects.filter(version=version, state__in=(GuardrailState.WATCHING, GuardrailState.PASSED))
        kept.update(state=GuardrailState.WATCHING, starts_at=timezone.now(), missed_since=None, ended_at=None, note="")
        announce_on_commit(version, redis=redis)
        _note(redis, version, f"version {version.number} is taken to all engines")
    return version


def take_back(name: str, number: int, *, reason: str, author: Author, redis: Redis) -> TunablesVersion:
    """Store a new version with the values in force, so that the engine that tried `number` runs them again.

    Raises `PoolNotFound`, and `StaleVersion` where version `number` is not being tried.
    """
    check_reason(reason)
    with transaction.atomic():
        tried = _lock_tried(name, number, CanaryState.WITHDRAWN, author=author)
        in_force = tried.pool.versions.get(number=tried.number - 1)
        reason = reason or f"version {number} taken back from its canary"
        version = store(tried, tunables_of(in_force.values), reason=reason, author=author)
        _audit("canary taken back", version, author=author, reason=reason, older=tried)
        announce_on_commit(version, redis=redis)
        _note(redis, tried, f"version {number} is taken back")
    return version


def trial_of(name: str) -> Trial | None:
    """What is tried in the pool of that name, if something is."""
    canary = (
        Canary.objects.filter(version__pool__name=name, state=CanaryState.RUNNING).select_related("version").first()
    )
    if canary is None:
        return None
    announced = AnnouncedTunables(canary.version.number, tunables_of(canary.version.values))
    return Trial(EngineId(canary.engine_id), announced, canary.started_at.timestamp())


def move(name: str, *, old: EngineId, new: EngineId, engines: Iterable[EngineSnapshot] = ()) -> bool:
    """Let `new` try what `old`, which is gone, tried: what is measured begins anew with what `engines`, those that
    live, have counted by now. False where that changed meanwhile."""
    running = Canary.objects.filter(version__pool__name=name, state=CanaryState.RUNNING, engine_id=old)
    return bool(running.update(engine_id=new, started_at=timezone.now(), baseline=baseline_of(engines)))


def successor_of(trial: Trial, engines: Iterable[EngineSnapshot], *, now: float) -> EngineId | None:
    """The engine that takes the place of one that is gone: of those that live, the one that started last, if that was
    after the trial began. Engines of one machine share their name, so that nothing else tells a restarted one. None
    while the engine lives, or none has started. `now` is in unix seconds. Pure."""
    living = list(engines)
    if any(engine.engine_id == trial.engine_id for engine in living):
        return None
    started = [engine for engine in living if engine.state == "ready" and now - engine.uptime_seconds > trial.since]
    return min(started, key=lambda engine: engine.uptime_seconds).engine_id if started else None


def _lock_tried(name: str, number: int, state: CanaryState, *, author: Author) -> TunablesVersion:
    pool = lock_pool(name)
    canary = running_canary(pool)
    newest = newest_stored(pool)
    if canary is None or canary.version.number != number or not end_canary(canary.version, state, author=author):
        came = f"version {newest.number} came" if newest.number != number else "it is the newest, and on every engine"
        raise StaleVersion(f"version {number} is not being tried any more: {came}")
    return newest


def _chosen(engine: str, ready: Sequence[EngineSnapshot]) -> EngineId:
    known = [snapshot.engine_id for snapshot in ready]
    if engine not in known:
        raise InvalidValue("canary engine", engine, "the id of an engine that takes work: " + ", ".join(known))
    return EngineId(engine)


def _audit(
    action: Action, version: TunablesVersion, *, author: Author, reason: str, older: TunablesVersion | None = None
) -> None:
    name = version.pool.name
    changes = (
        audited_changes(version, older) if older is not None else {"version": [version.number - 1, version.number]}
    )
    record(action, actor=author, subject_kind="pool", subject=name, pool=name, changes=changes, reason=reason)


def _note(redis: Redis, version: TunablesVersion, text: str) -> None:
    note(redis, PoolName(version.pool.name), "canary", subject=f"version {version.number}", text=text)
