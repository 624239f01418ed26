"""What can be seen on PostgreSQL alone: collected by `test_database.py`, in a process over such a database."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from channels.db import database_sync_to_async
from django.conf import settings
from django.db import connection

from dashboard.consumers import Limits
from tests.dashboard.conftest import OpenPage
from tests.dashboard.harness import PATIENCE_SECONDS, Services, new_session
from tests.dashboard.test_live import TICK, Clock, consumer_of

NUM_PAGES = 100


def num_open() -> int:
    """Connections to the test's database, this one included."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def num_held() -> int:
    """Connections that someone has taken from the process's pool and not given back."""
    stats = cast(Any, connection).pool.get_stats()
    return int(stats["pool_size"]) - int(stats["pool_available"])


async def test_a_hundred_idle_pages_hold_no_database_connection(make_page: OpenPage, services: Services) -> None:
    clock = Clock()
    application = consumer_of(services, Limits(recheck_seconds=10, tick_seconds=TICK), clock)
    cookie = await new_session("operator")
    before = num_held()  # by the threads that prepared the test
    pages = [make_page(cookie, application=application) for _ in range(NUM_PAGES)]
    await asyncio.gather(*(page.open() for page in pages))
    assert num_held() == before
    for time in (10, 20, 30):
        clock.seconds = time  # all sessions are checked at once
        await asyncio.sleep(2 * TICK)
        answers = await asyncio.gather(*(page.ask(type="list_versions", id=time) for page in pages))
        assert {answer["type"] for answer in answers} == {"versions"}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while num_held() > before:  # noqa: ASYNC110 (the last checks may still run)
            await asyncio.sleep(TICK)
    most = settings.DATABASES["default"]["OPTIONS"]["pool"]["max_size"]
    assert await database_sync_to_async(num_open, thread_sensitive=False)() <= most
