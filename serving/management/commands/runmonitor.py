"""`manage.py runmonitor`: merges what all processes publish, and keeps tunables and books true."""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from channels.db import database_sync_to_async
from channels.layers import get_channel_layer
from django.conf import settings
from django.core.management.base import BaseCommand
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.config.presence import presence
from serving.contracts.errors import DomainError
from serving.contracts.ids import PoolName
from serving.prepared import check_prepared
from serving.telemetry.alert_rules import rules_in_force
from serving.telemetry.alerts import AlertWatcher, ToWatch
from serving.telemetry.feed import broadcast
from serving.telemetry.monitor import Monitor
from serving.telemetry.reconciler import StoredForPool
from serving.telemetry.rounds import StoredTunables
from serving.tuning.canaries import trial_of
from serving.tuning.selectors import configured_pool_names, current_tunables
from serving.tuning.watch_book import DatabaseBook
from serving.tuning.watching import Watcher

T = TypeVar("T")


class Command(BaseCommand):
    """Runs a monitor until SIGTERM or SIGINT."""

    help = "Merge what owners and engines publish into live frames; of several monitors, one works and the rest wait."

    def handle(self, *_args: Any, **_options: Any) -> None:
        """Run until told to stop; then exit with status 0."""
        check_prepared()
        asyncio.run(_run_monitor(settings.REDIS_URL))


async def _run_monitor(redis_url: str) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    blocking = BlockingRedis.from_url(redis_url, socket_timeout=5.0, socket_connect_timeout=2.0)
    watcher = Watcher(DatabaseBook(blocking))
    async with Redis.from_url(redis_url, socket_timeout=5.0, socket_connect_timeout=2.0) as redis:
        alerts = AlertWatcher(redis, read=_database(to_watch, "alert-rules"))
        monitor = Monitor(
            redis,
            stored_tunables=_database(stored_tunables, "database"),
            broadcast=functools.partial(broadcast, get_channel_layer()),
            observers=[watcher, alerts],
        )
        with presence("monitor", doing=lambda: "at work" if monitor.is_active else "waiting: another is at work"):
            await monitor.run(stopping)
        await watcher.end()
        blocking.close()
        await alerts.end()


def _database(question: Callable[[], T], name: str) -> Callable[[], Awaitable[T]]:
    # A thread of its own: questions that hang would take the loop's threads, which a connection to Redis needs.
    executor = ThreadPoolExecutor(1, thread_name_prefix=name)
    read: Callable[[], Awaitable[T]] = database_sync_to_async(question, thread_sensitive=False, executor=executor)
    return read


def stored_tunables() -> StoredTunables:
    """What every configured pool should run, as the database tells at this moment. Blocking."""
    return {name: _tunables_or_none(name) for name in configured_pool_names()}


def to_watch() -> ToWatch:
    """What alerts are to be raised of, as the database tells at this moment. Blocking."""
    return ToWatch(rules_in_force(), configured_pool_names())


def _tunables_or_none(pool: PoolName) -> StoredForPool | None:
    try:
        return StoredForPool(current_tunables(pool), trial_of(pool))
    except DomainError:  # The pool has just gone, or another version stored what this one does not admit.
        return None
