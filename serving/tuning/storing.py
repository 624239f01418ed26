"""Writing one more version, in the transaction of whoever calls: what changes, roll-backs and guardrails share."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.utils import timezone
from redis import Redis

from serving.contracts.actors import Author, name_of
from serving.contracts.errors import CanaryRuns, InvalidValue, NothingChanges, StaleVersion
from serving.contracts.ids import PoolName
from serving.contracts.messages import AnnouncedTunables
from serving.contracts.texts import is_storable
from serving.contracts.tunables import Tunables
from serving.tuning.announcing import announce
from serving.tuning.models import CanaryState, Guardrail, GuardrailState, Pool, TunablesVersion
from serving.tuning.selectors import (
    check_configured,
    find_pool,
    newest_stored,
    others_of_its_model,
    running_canary,
    tunables_of,
)

LONGEST_REASON = 500


def lock_pool(name: str) -> Pool:
    """The pool, locked until the transaction ends (in SQLite the transaction itself locks); raises `PoolNotFound`, and
    `PoolNotConfigured` where nothing may be done to it."""
    return check_configured(Pool.objects.select_for_update().get(pk=find_pool(name).pk))


def lock_newest(name: str, *, based_on: int | None) -> TunablesVersion:
    """The newest version, its pool locked, for a change on top of it.

    Raises `PoolNotFound`, `CanaryRuns` while it is tried on one engine, and `StaleVersion` where `based_on` is given
    and another one.
    """
    pool = lock_pool(name)
    canary = running_canary(pool)
    if canary is not None:
        raise CanaryRuns(
            f"version {canary.version.number} is being tried on one engine: take it to all engines or back first"
        )
    current = newest_stored(pool)
    check_base(based_on, current)
    return current


def check_base(based_on: int | None, current: TunablesVersion) -> None:
    """Raise `StaleVersion` where `based_on` is given and is not the number of `current`."""
    if based_on is not None and based_on != current.number:
        raise StaleVersion(f"version {current.number} is in force, not {based_on}: look at it and try again")


def check_reason(reason: str) -> None:
    """Raise `InvalidValue` for a reason that cannot be kept."""
    if not is_storable(reason, longest=LONGEST_REASON):
        raise InvalidValue("reason", reason, f"a text of at most {LONGEST_REASON} characters, without NUL and API keys")


def store(
    current: TunablesVersion, wanted: Tunables, *, reason: str, author: Author, param: str = "changes"
) -> TunablesVersion:
    """The version after `current`, the newest; what watched an older one watches no longer.

    Raises `NothingChanges`, and `InvalidValue` for a `long_prompt_pool` that would not do.
    """
    differences = wanted.differences(tunables_of(current.values))
    if not differences:
        raise NothingChanges(f"nothing would change: version {current.number}, in force, has these values", param=param)
    if "long_prompt_pool" in differences:
        _check_long_prompt_pool(wanted.long_prompt_pool, current.pool)
    version = TunablesVersion.objects.create(
        pool=current.pool,
        number=current.number + 1,
        values=wanted.as_dict(),
        changes=differences,
        reason=reason,
        author=name_of(author),
    )
    watching = Guardrail.objects.filter(version__pool=current.pool, state=GuardrailState.WATCHING)
    watching.update(
        state=GuardrailState.SUPERSEDED, ended_at=timezone.now(), note=f"version {version.number} came before its end"
    )
    return version


def audited_changes(version: TunablesVersion, older: TunablesVersion) -> Mapping[str, Any]:
    """A version's differences for the audit, its number among them."""
    return {**version.changes, "version": [older.number, version.number]}


def announce_on_commit(version: TunablesVersion, *, redis: Redis) -> None:
    """Announce the version once the database has it for good."""
    announced = AnnouncedTunables(version.number, tunables_of(version.values))
    transaction.on_commit(functools.partial(announce, redis, PoolName(version.pool.name), announced))


def end_canary(version: TunablesVersion, state: CanaryState, *, author: Author) -> bool:
    """Whether the version's canary was running; it is no longer."""
    running = type(version.canary).objects.filter(pk=version.canary.pk, state=CanaryState.RUNNING)
    return bool(running.update(state=state, ended_at=timezone.now(), ended_by=name_of(author)))


def _check_long_prompt_pool(name: str, pool: Pool) -> None:
    others = others_of_its_model(pool)
    if not name or name in others:
        return
    if not others:
        raise InvalidValue("long_prompt_pool", name, f"empty, as no other pool serves {pool.model}")
    raise InvalidValue("long_prompt_pool", name, f"empty, or another pool of {pool.model}: {', '.join(others)}")
