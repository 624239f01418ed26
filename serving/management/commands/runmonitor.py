"""`manage.py runmonitor`: merges what all processes publish, and keeps tunables and books true."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Sequence
from typing import Any

from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from django.conf import settings
from django.core.management.base import BaseCommand
from redis.asyncio import Redis

from serving.contracts.errors import PoolNotFound
from serving.contracts.ids import PoolName
from serving.contracts.messages import AnnouncedTunables
from serving.telemetry.feed import broadcast
from serving.telemetry.monitor import Monitor
from serving.tuning.selectors import current_tunables, pool_names


class Command(BaseCommand):
    """Runs a monitor until SIGTERM or SIGINT."""

    help = "Merge what owners and engines publish into live frames; of several monitors, one works and the rest wait."

    def handle(self, *_args: Any, **_options: Any) -> None:
        """Run until told to stop; then exit with status 0."""
        asyncio.run(_run_monitor(settings.REDIS_URL))


async def _run_monitor(redis_url: str) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with Redis.from_url(redis_url, socket_timeout=5.0, socket_connect_timeout=2.0) as redis:
        monitor = Monitor(
            redis,
            pools=_read_pools,
            stored_tunables=_read_tunables,
            broadcast=functools.partial(broadcast, get_channel_layer()),
        )
        await monitor.run(stopping)


async def _read_pools() -> Sequence[PoolName]:
    names: list[PoolName] = await database_sync_to_async(pool_names, thread_sensitive=False)()
    return names


async def _read_tunables(pool: PoolName) -> AnnouncedTunables | None:
    try:
        stored: AnnouncedTunables = await database_sync_to_async(current_tunables, thread_sensitive=False)(pool)
    except PoolNotFound:
        return None
    return stored
