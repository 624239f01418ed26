"""What can be seen on PostgreSQL alone: collected by `test_database.py`, in a process over such a database."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from channels.db import database_sync_to_async
from django.conf import settings
from django.db import connection

from dashboard.consumers import Limits
from tests.dashboard.conftest import OpenPage
from tests.dashboard.harness import PATIENCE_SECONDS, Services, new_session
from tests.dashboard.tenancy import browser
from tests.dashboard.test_live import TICK, Clock, consumer_of
from tests.dashboard.test_prompting import ScriptedPrompter, ask, delta

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


async def test_answers_that_take_their_time_hold_no_database_connection(application: Any, services: Services) -> None:
    go_on = asyncio.Event()
    services.prompter = ScriptedPrompter([delta("Hel"), go_on, delta("lo", "stop")])
    cookie = await new_session("operator")
    before = num_held()
    num_prompts = settings.DATABASES["default"]["OPTIONS"]["pool"]["max_size"] + 2
    asking = [asyncio.create_task(ask(application, cookie)) for _ in range(num_prompts)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(services.prompter.asked) < num_prompts or num_held() > before:  # noqa: ASYNC110 (no event tells)
            await asyncio.sleep(TICK)
    assert not any(task.done() for task in asking)
    go_on.set()
    assert [answer.status_code for answer in await asyncio.gather(*asking)] == [200] * num_prompts


@pytest.mark.parametrize("path", ["/console/", "/console/account/", "/console/fleet/", "/console/session.json"])
async def test_pages_that_are_loaded_at_once_do_not_wait_for_each_others_connections(
    application: Any, path: str
) -> None:
    most = settings.DATABASES["default"]["OPTIONS"]["pool"]["max_size"]
    async with browser(application, await new_session("operator")) as client:
        loaded = await asyncio.gather(*(client.get(path) for _ in range(3 * most)))
    assert [page.status_code for page in loaded] == [200] * 3 * most
