"""Changing tunables: each change is a new version, stored first and announced once the database has it for good.

Blocking: async code calls these through `database_sync_to_async`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from redis import Redis

from serving.audit.services import record
from serving.contracts.actors import Actor, Author, name_of
from serving.contracts.errors import InvalidValue
from serving.contracts.guardrails import GuardrailTerms
from serving.contracts.ids import PoolName
from serving.contracts.tunables import Tunables
from serving.tuning import canaries, guardrails
from serving.tuning.living import living_engines
from serving.tuning.models import Pool, TunablesVersion
from serving.tuning.selectors import find_pool, tunables_of
from serving.tuning.storing import announce_on_commit, audited_changes, check_reason, lock_newest, store

_FIRST_START = Actor("first start", "system")
_START = Actor("start", "system")
_LEFT_OUT = "FOOTPLATE_POOLS names it no longer"


def ensure_pool(name: str, model: str, *, author: Author = _FIRST_START) -> Pool:
    """The pool of that name, made with version 1 (every tunable at its default) where there is none.

    A pool that exists takes `model` over: it serves what its engines are started with. One that was no longer
    configured is so again.
    """
    try:
        with transaction.atomic():
            pool, created = Pool.objects.get_or_create(name=name, defaults={"model": model})
            if created:
                _store_first(pool, author=author)
            elif pool.unconfigured_since is not None:
                _take_in_again(pool, author=_START)
    except IntegrityError:
        pool = find_pool(name)  # another process made it in between
    if pool.model != model:
        pool.model = model
        pool.save(update_fields=["model"])
    return pool


def leave_out_others(names: Collection[str], *, author: Author = _START) -> list[str]:
    """Note of the pools that are not among `names` that they are no longer configured, and end the watch over their
    versions; gives whose note is new."""
    with transaction.atomic():
        others = Pool.objects.select_for_update().filter(unconfigured_since=None).exclude(name__in=names)
        left_out = sorted(others.values_list("name", flat=True))
        Pool.objects.filter(name__in=left_out).update(unconfigured_since=timezone.now())
        guardrails.call_off_all_of(left_out)
        for name in left_out:
            record("pool left out", actor=author, subject_kind="pool", subject=name, pool=name, reason=_LEFT_OUT)
    return left_out


def change(
    name: str,
    changes: Mapping[str, Any],
    *,
    reason: str,
    author: Author,
    redis: Redis,
    based_on: int | None = None,
    guardrail: GuardrailTerms | None = None,
    canary: bool = False,
    canary_engine: str | None = None,
) -> TunablesVersion:
    """Store the pool's tunables with `changes` applied as a new version, then announce it.

    `guardrail` is stored with it: the monitor rolls the version back where its bound is missed for too long. With
    `canary`, one engine of at least two runs the version until somebody takes it to all, or back: the one of the id
    `canary_engine`, otherwise the first by name. The guardrail then watches that engine alone.

    Raises `PoolNotFound`, `UnknownField` and `InvalidValue` for what is named wrongly, `NothingChanges` where nothing
    would change, `StaleVersion` where `based_on` is given and no longer the newest version, and `CanaryRuns` while
    another version is tried on one engine. A `long_prompt_pool` that the change names must be another pool of the same
    model.
    """
    check_reason(reason)
    if guardrail is not None:
        guardrail.check()
    # Asked first: a Redis that is slow to answer must not hold the lock on the database.
    engines = living_engines(redis, PoolName(name)) if canary else []
    with transaction.atomic():
        current = lock_newest(name, based_on=based_on)
        version = store(current, tunables_of(current.values).changed(changes), reason=reason, author=author)
        _audit_change(version, current, author=author, reason=reason)
        if guardrail is not None:
            guardrails.attach(version, guardrail)
        if canary:
            canaries.begin(version, engines, author=author, redis=redis, engine=canary_engine)
        else:
            announce_on_commit(version, redis=redis)
    return version


def roll_back(
    name: str, to_number: int, *, reason: str, author: Author, redis: Redis, based_on: int | None = None
) -> TunablesVersion:
    """Store a new version whose values equal those of version `to_number`, then announce it.

    Raises `PoolNotFound`, `InvalidValue` where there is no such version or the `long_prompt_pool` that it brings back
    would do no longer, `NothingChanges` where its values are in force, `StaleVersion` where `based_on` is given and
    no longer the newest version, and `CanaryRuns` while a version is tried on one engine.
    """
    check_reason(reason)
    with transaction.atomic():
        current = lock_newest(name, based_on=based_on)
        target = current.pool.versions.filter(number=to_number).first()
        if target is None:
            raise InvalidValue("version", to_number, f"a stored version, from 1 to {current.number}")
        reason = reason or f"roll back to version {to_number}"
        version = store(current, tunables_of(target.values), reason=reason, author=author, param="version")
        record(
            "tunables rolled back",
            actor=author,
            subject_kind="pool",
            subject=name,
            pool=name,
            changes=audited_changes(version, current),
            reason=reason,
        )
        announce_on_commit(version, redis=redis)
    return version


def _store_first(pool: Pool, *, author: Author) -> None:
    reason = "the defaults"
    pool.versions.create(number=1, values=Tunables().as_dict(), reason=reason, author=name_of(author))
    record("pool made", actor=author, subject_kind="pool", subject=pool.name, pool=pool.name, reason=reason)


def _take_in_again(pool: Pool, *, author: Author) -> None:
    since = Pool.objects.filter(pk=pool.pk).exclude(unconfigured_since=None)
    pool.unconfigured_since = None
    if since.update(unconfigured_since=None):
        record("pool taken in again", actor=author, subject_kind="pool", subject=pool.name, pool=pool.name)


def _audit_change(version: TunablesVersion, older: TunablesVersion, *, author: Author, reason: str) -> None:
    name = version.pool.name
    record(
        "tunables changed",
        actor=author,
        subject_kind="pool",
        subject=name,
        pool=name,
        changes=audited_changes(version, older),
        reason=reason,
    )
