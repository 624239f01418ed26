"""Changing tunables: each change is a new version, stored first and announced once the database has it for good.

Blocking: async code calls these through `database_sync_to_async`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction
from redis import Redis

from serving.contracts.errors import InvalidValue, NothingChanges, StaleVersion
from serving.contracts.ids import PoolName
from serving.contracts.messages import AnnouncedTunables
from serving.contracts.texts import is_storable
from serving.contracts.tunables import Tunables
from serving.tuning.announcing import announce
from serving.tuning.models import Pool, TunablesVersion
from serving.tuning.selectors import find_pool, newest_version_of, others_of_its_model, tunables_of

LONGEST_REASON = 500


def ensure_pool(name: str, model: str, *, author: str = "first start") -> Pool:
    """The pool of that name, made with version 1 (every tunable at its default) where there is none.

    A pool that exists takes `model` over: it serves what its engines are started with.
    """
    try:
        with transaction.atomic():
            pool, created = Pool.objects.get_or_create(name=name, defaults={"model": model})
            if created:
                pool.versions.create(number=1, values=Tunables().as_dict(), reason="the defaults", author=author)
    except IntegrityError:
        pool = find_pool(name)  # another process made it in between
    if pool.model != model:
        pool.model = model
        pool.save(update_fields=["model"])
    return pool


def change(
    name: str,
    changes: Mapping[str, Any],
    *,
    reason: str,
    author: str,
    redis: Redis,
    based_on: int | None = None,
) -> TunablesVersion:
    """Store the pool's tunables with `changes` applied as a new version, then announce it.

    Raises `PoolNotFound`, `UnknownField` and `InvalidValue` for what is named wrongly, `NothingChanges` where nothing
    would change, and `StaleVersion` where `based_on` is given and no longer the newest version. A `long_prompt_pool`
    that the change names must be another pool of the same model.
    """
    _check_reason(reason)
    with transaction.atomic():
        current = _lock_newest(name)
        _check_base(based_on, current)
        before = tunables_of(current.values)
        version = _store(current, before.changed(changes), reason=reason, author=author, param="changes")
        _announce_on_commit(version, redis=redis)
    return version


def roll_back(
    name: str, to_number: int, *, reason: str, author: str, redis: Redis, based_on: int | None = None
) -> TunablesVersion:
    """Store a new version whose values equal those of version `to_number`, then announce it.

    Raises `PoolNotFound`, `InvalidValue` where there is no such version or the `long_prompt_pool` that it brings back
    would do no longer, `NothingChanges` where its values are in force, and `StaleVersion` where `based_on` is given and
    no longer the newest version.
    """
    _check_reason(reason)
    with transaction.atomic():
        current = _lock_newest(name)
        _check_base(based_on, current)
        target = current.pool.versions.filter(number=to_number).first()
        if target is None:
            raise InvalidValue("version", to_number, f"a stored version, from 1 to {current.number}")
        reason = reason or f"roll back to version {to_number}"
        version = _store(current, tunables_of(target.values), reason=reason, author=author, param="version")
        _announce_on_commit(version, redis=redis)
    return version


def _lock_newest(name: str) -> TunablesVersion:
    """The newest version, its pool locked until the transaction ends (in SQLite the transaction itself locks)."""
    return newest_version_of(Pool.objects.select_for_update().get(pk=find_pool(name).pk))


def _check_base(based_on: int | None, current: TunablesVersion) -> None:
    if based_on is not None and based_on != current.number:
        raise StaleVersion(f"version {current.number} is in force, not {based_on}: look at it and try again")


def _store(current: TunablesVersion, wanted: Tunables, *, reason: str, author: str, param: str) -> TunablesVersion:
    differences = wanted.differences(tunables_of(current.values))
    if not differences:
        raise NothingChanges(f"nothing would change: version {current.number}, in force, has these values", param=param)
    if "long_prompt_pool" in differences:
        _check_long_prompt_pool(wanted.long_prompt_pool, current.pool)
    return TunablesVersion.objects.create(
        pool=current.pool,
        number=current.number + 1,
        values=wanted.as_dict(),
        changes=differences,
        reason=reason,
        author=author,
    )


def _check_long_prompt_pool(name: str, pool: Pool) -> None:
    others = others_of_its_model(pool)
    if not name or name in others:
        return
    if not others:
        raise InvalidValue("long_prompt_pool", name, f"empty, as no other pool serves {pool.model}")
    raise InvalidValue("long_prompt_pool", name, f"empty, or another pool of {pool.model}: {', '.join(others)}")


def _announce_on_commit(version: TunablesVersion, *, redis: Redis) -> None:
    announced = AnnouncedTunables(version.number, tunables_of(version.values))
    transaction.on_commit(functools.partial(announce, redis, PoolName(version.pool.name), announced))


def _check_reason(reason: str) -> None:
    if not is_storable(reason, longest=LONGEST_REASON):
        raise InvalidValue("reason", reason, f"a text of at most {LONGEST_REASON} characters, without NUL and API keys")
