"""Reading pools and versions. Blocking: async code calls these through `database_sync_to_async`."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from serving.contracts.errors import PoolNotConfigured, PoolNotFound
from serving.contracts.ids import PoolName
from serving.contracts.messages import AnnouncedTunables
from serving.contracts.tunables import Tunables, describe
from serving.tuning.models import Canary, CanaryState, Guardrail, Pool, TunablesVersion


def pool_names() -> list[PoolName]:
    """The names of all pools, in order: of those too that are no longer configured."""
    return [PoolName(name) for name in Pool.objects.order_by("name").values_list("name", flat=True)]


def configured_pool_names() -> list[PoolName]:
    """The names of the pools that the settings name, in order."""
    return [PoolName(pool.name) for pool in configured_pools()]


def pools() -> list[Pool]:
    """All pools, by name: those too that are no longer configured."""
    return list(Pool.objects.order_by("name"))


def configured_pools() -> list[Pool]:
    """The pools that the settings name, by name."""
    return list(Pool.objects.filter(unconfigured_since=None).order_by("name"))


def others_of_its_model(pool: Pool) -> list[PoolName]:
    """The names of the other pools that are configured and serve a pool's model, in order."""
    others = Pool.objects.filter(model=pool.model, unconfigured_since=None).exclude(pk=pool.pk).order_by("name")
    return [PoolName(name) for name in others.values_list("name", flat=True)]


def find_pool(name: str) -> Pool:
    """The pool of that name; raises `PoolNotFound`."""
    # PostgreSQL cannot be asked for a text with NUL.
    pool = None if "\0" in name else Pool.objects.filter(name=name).first()
    if pool is None:
        raise PoolNotFound(f"there is no pool named {name[:100]!r}")
    return pool


def find_configured_pool(name: str) -> Pool:
    """The pool of that name; raises `PoolNotFound`, and `PoolNotConfigured` where the settings name it no longer."""
    return check_configured(find_pool(name))


def check_configured(pool: Pool) -> Pool:
    """The pool itself; raises `PoolNotConfigured` where the settings name it no longer."""
    if pool.unconfigured_since is None:
        return pool
    since = pool.unconfigured_since.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    raise PoolNotConfigured(
        f"pool {pool.name} is not configured since {since}: nothing can be done to it until FOOTPLATE_POOLS names it"
    )


def current_version(name: str) -> TunablesVersion:
    """The pool's version in force; raises `PoolNotFound`."""
    return newest_version_of(find_pool(name))


def newest_version_of(pool: Pool) -> TunablesVersion:
    """The version of a pool that is in force: the newest but for one that is tried on one engine. Every pool has one
    from its making."""
    in_force = pool.versions.select_related("pool").exclude(canary__state=CanaryState.RUNNING)
    return in_force.latest("number")


def newest_stored(pool: Pool) -> TunablesVersion:
    """The newest version of a pool, be it in force or tried on one engine."""
    return pool.versions.select_related("pool").latest("number")


def running_canary(pool: Pool) -> Canary | None:
    """The trial of the pool's newest version on one engine, where there is one."""
    running = Canary.objects.filter(version__pool=pool, state=CanaryState.RUNNING)
    return running.select_related("version__pool").first()


def newest_guardrail(pool: Pool) -> Guardrail | None:
    """The pool's newest guardrail, whatever became of it; None where no version ever had one."""
    found = Guardrail.objects.filter(version__pool=pool).select_related("version__pool")
    return found.order_by("-version__number").first()


def current_tunables(name: str) -> AnnouncedTunables:
    """What the pool should run; raises `PoolNotFound`."""
    version = current_version(name)
    return AnnouncedTunables(version.number, tunables_of(version.values))


def versions(name: str, *, before: int | None = None, limit: int = 100) -> list[TunablesVersion]:
    """The pool's versions, newest first, at most `limit`, only those older than number `before` where it is given.

    Raises `PoolNotFound`.
    """
    return versions_of(find_pool(name), before=before, limit=limit)


def versions_of(pool: Pool, *, before: int | None = None, limit: int = 100) -> list[TunablesVersion]:
    """As `versions`, for a pool that was read already."""
    found = pool.versions.select_related("pool", "guardrail", "canary")
    return list((found if before is None else found.filter(number__lt=before))[:limit])


def version_numbered(pool: Pool, number: int) -> TunablesVersion | None:
    """One version of a pool; None where there is none of that number."""
    return pool.versions.select_related("pool", "guardrail", "canary").filter(number=number).first()


def versions_after(name: str, number: int, *, limit: int = 100) -> list[TunablesVersion]:
    """The versions stored after `number`, newest first, at most `limit`; raises `PoolNotFound`."""
    return list(find_pool(name).versions.select_related("pool").filter(number__gt=number)[:limit])


def versions_between(
    pool: Pool, since: datetime.datetime, until: datetime.datetime, *, limit: int = 200
) -> list[TunablesVersion]:
    """The versions stored in a range of time, newest first, at most `limit`, and behind them the newest before it."""
    found = pool.versions.select_related("pool")
    within = list(found.filter(created_at__gte=since, created_at__lt=until)[:limit])
    return [*within, *found.filter(created_at__lt=since)[:1]]


def tunables_of(values: Mapping[str, Any]) -> Tunables:
    """Stored values as tunables: a tunable younger than they are takes its default, one that is gone is left out."""
    known = {spec.name for spec in describe()}
    return Tunables().changed({name: value for name, value in values.items() if name in known})
