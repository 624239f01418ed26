"""The console's pages: read, present, render."""

from __future__ import annotations

from typing import Any

from channels.db import database_sync_to_async
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

from dashboard.presenters import PoolPage, present_pool
from serving.contracts.ids import PoolName
from serving.telemetry.selectors import pool_snapshot
from serving.tuning.selectors import current_tunables, pool_names, versions

_NUM_VERSIONS = 10


@require_safe
@login_required
async def overview(request: HttpRequest) -> HttpResponse:
    """Every pool: its state, its tunables and its latest versions."""
    user = await request.auser()
    if not user.is_staff:
        raise PermissionDenied
    redis = request.scope["footplate"].redis  # type: ignore[attr-defined]
    pages = [await _read_pool(redis, name) for name in await _in_thread(pool_names)()]
    page: HttpResponse = await _in_thread(render)(request, "dashboard/overview.html", {"pools": pages})
    return page


async def _read_pool(redis: Any, name: PoolName) -> PoolPage:
    try:
        snapshot = await pool_snapshot(redis, name)
    except (RedisError, OSError):
        snapshot = None
    announced = await _in_thread(current_tunables)(name)
    newest = await _in_thread(versions)(name, limit=_NUM_VERSIONS)
    return present_pool(name, snapshot=snapshot, announced=announced, versions=newest)


def _in_thread(function: Any) -> Any:
    # Not thread-sensitive: one slow query must not hold up every other page.
    return database_sync_to_async(function, thread_sensitive=False)
