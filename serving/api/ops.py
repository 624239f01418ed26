"""`/ops/v1`: reading and steering pools while they run."""

from __future__ import annotations

from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse
from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.api.context import author_of, services_of
from serving.api.replies import json_reply
from serving.api.steering_schemas import Rollback, TunablesChange
from serving.contracts.ids import PoolName
from serving.contracts.tunables import describe
from serving.telemetry.selectors import pool_snapshot, read_rejections
from serving.threads import in_thread
from serving.tuning import selectors, services
from serving.tuning.models import TunablesVersion


async def list_pools(request: HttpRequest) -> HttpResponse:
    """All pools: model, engines, and the version of tunables that is stored; and how many requests were refused, by
    code, before any pool had them: null while Redis is out of reach. Of a pool that the settings name no longer,
    `not_configured_since` says since when, and its past alone can be read; it is null of all others."""
    stored = await in_thread(_read_pools)
    views = {view.name: view for view in services_of(request).gateway.pools()}
    for pool in stored:
        view = views.get(pool["name"])
        pool["num_engines"] = view.num_engines if view is not None else 0
        pool["max_model_len"] = view.max_model_len if view is not None else None
    return json_reply({"data": stored, "rejected": await _read_rejected(services_of(request).redis)})


async def show_tunables(request: HttpRequest, pool: str) -> HttpResponse:
    """The tunables in force, and what is known of each."""
    current = await in_thread(selectors.current_tunables, pool)
    return json_reply(
        {
            "pool": pool,
            "version": current.version,
            "values": current.tunables.as_dict(),
            "tunables": [msgspec.to_builtins(spec) for spec in describe()],
        }
    )


async def change_tunables(request: HttpRequest, pool: str, body: TunablesChange) -> HttpResponse:
    """Store changed tunables as a new version and announce it; engines take it over between two steps.

    `GET …/snapshot` tells how many engines run it (`applied_by`). A value out of bounds, a name that is no tunable and
    a change that changes nothing are refused. With a `guardrail` the change goes back by itself where a bound is missed
    for too long; with a `canary` one engine runs it first, until `…/canary/promote` or `…/canary/withdraw`.
    """
    version = await in_thread(
        services.change,
        pool,
        body.changes,
        reason=body.reason or "",
        author=author_of(request),
        redis=services_of(request).blocking_redis,
        based_on=body.based_on,
        guardrail=None if body.guardrail is None else body.guardrail.terms(),
        canary=body.canary is not None,
        canary_engine=None if body.canary is None else body.canary.engine,
    )
    await services_of(request).gateway.refresh_pools()
    return json_reply(describe_version(version))


async def roll_back_tunables(request: HttpRequest, pool: str, body: Rollback) -> HttpResponse:
    """Store an older version's values as a new version and announce it."""
    version = await in_thread(
        services.roll_back,
        pool,
        body.version,
        reason=body.reason or "",
        author=author_of(request),
        redis=services_of(request).blocking_redis,
        based_on=body.based_on,
    )
    await services_of(request).gateway.refresh_pools()
    return json_reply(describe_version(version))


async def list_versions(request: HttpRequest, pool: str) -> HttpResponse:
    """The newest hundred versions, newest first: who, when, why, and what changed (`{name: [old, new]}`)."""
    versions = await in_thread(selectors.versions, pool)
    return json_reply({"data": [describe_version(version) for version in versions]})


async def show_snapshot(request: HttpRequest, pool: str) -> HttpResponse:
    """The pool as it is now: queue, batch, KV memory, percentiles of the last minute, outcomes by reason."""
    await in_thread(selectors.find_configured_pool, pool)
    return json_reply(await pool_snapshot(services_of(request).redis, PoolName(pool)))


async def _read_rejected(redis: Redis) -> dict[str, int] | None:
    try:
        return await read_rejections(redis)
    except (RedisError, OSError):
        return None


def _read_pools() -> list[dict[str, Any]]:
    return [
        {
            "name": pool.name,
            "model": pool.model,
            "tunables_version": selectors.newest_version_of(pool).number,
            "not_configured_since": pool.unconfigured_since,
        }
        for pool in selectors.pools()
    ]


def describe_version(version: TunablesVersion) -> dict[str, Any]:
    """A version for JSON."""
    return {
        "pool": version.pool.name,
        "version": version.number,
        "values": version.values,
        "changes": version.changes,
        "reason": version.reason,
        "author": version.author,
        "created_at": version.created_at,
    }
