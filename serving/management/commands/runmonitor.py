"""`manage.py runmonitor`: merges what all processes publish, and keeps tunables and books true."""

from __future__ import annotations

import asyncio
import functools
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from django.conf import settings
from django.core.management.base import BaseCommand
from redis.asyncio import Redis

from serving.contracts.errors import DomainError
from serving.contracts.ids import PoolName
from serving.contracts.messages import AnnouncedTunables
from serving.telemetry.feed import broadcast
from serving.telemetry.monitor import Monitor
from serving.telemetry.rounds import StoredTunables, TunablesSource
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
            stored_tunables=_database(ThreadPoolExecutor(1, thread_name_prefix="database")),
            broadcast=functools.partial(broadcast, get_channel_layer()),
        )
        await monitor.run(stopping)


def _database(executor: ThreadPoolExecutor) -> TunablesSource:
    # A thread of its own: questions that hang would take the loop's threads, which a connection to Redis needs.
    read: TunablesSource = database_sync_to_async(stored_tunables, thread_sensitive=False, executor=executor)
    return read


def stored_tunables() -> StoredTunables:
    """What every pool should run, as the database tells at this moment. Blocking."""
    return {name: _tunables_or_none(name) for name in pool_names()}


def _tunables_or_none(pool: PoolName) -> AnnouncedTunables | None:
    try:
        return current_tunables(pool)
    except DomainError:  # The pool has just gone, or another version stored what this one does not admit.
        return None
