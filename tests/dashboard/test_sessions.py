"""A websocket is as good as its session: what ends the one ends the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import Permission, User
from django.test import AsyncClient
from django.utils import timezone

from dashboard import protocol
from dashboard.consumers import Limits
from dashboard.models import ConsoleSession
from dashboard.rechecks import Rechecks
from dashboard.sessions import read_operator
from serving.tuning import services as tuning
from tests.dashboard.conftest import OpenPage
from tests.dashboard.harness import PATIENCE_SECONDS, Page, Services, new_session
from tests.dashboard.test_live import TICK, Clock, consumer_of


async def sign_out(cookie: str) -> None:
    client = AsyncClient()
    client.cookies["sessionid"] = cookie
    assert (await client.post("/console/logout/")).status_code == 302


async def expire(cookie: str) -> None:
    sessions = ConsoleSession.objects.filter(session_key=cookie)
    assert await sessions.aupdate(expire_date=timezone.now() - timedelta(seconds=1)) == 1


async def deactivate(cookie: str) -> None:
    assert await User.objects.aupdate(is_active=False) == 1


async def change_password(cookie: str) -> None:
    user = await User.objects.aget()
    user.set_password("another long password")
    await user.asave()


async def delete_user(cookie: str) -> None:
    await User.objects.all().adelete()


async def demote(cookie: str) -> None:
    assert await User.objects.aupdate(is_staff=False) == 1


ENDINGS = [
    (sign_out, protocol.SIGNED_OUT),
    (expire, protocol.SIGNED_OUT),
    (deactivate, protocol.SIGNED_OUT),
    (change_password, protocol.SIGNED_OUT),
    (delete_user, protocol.SIGNED_OUT),
    (demote, protocol.NOT_ALLOWED),
]
Ending = Callable[[str], Awaitable[None]]


class CountedReads:
    """Counts the checks of open pages, told from other reads by their thread, and leaves them as they are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_checks = 0
        monkeypatch.setattr("dashboard.page_sockets.read_operator", self._read)

    def _read(self, session_key: str | None) -> Any:
        operator = read_operator(session_key)
        self.num_checks += threading.current_thread().name.startswith("recheck")
        return operator

    async def until(self, count: int) -> None:
        """Wait until so many checks have ended, and what they found has been taken note of."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.num_checks < count:  # noqa: ASYNC110 (it counts on other threads)
                await asyncio.sleep(TICK)
        await asyncio.sleep(5 * TICK)


@pytest.mark.parametrize(("end", "code"), ENDINGS)
@pytest.mark.parametrize(
    "command",
    [
        {"type": "list_versions", "id": 1},
        {"type": "change", "id": 1, "changes": {"max_running": 8}, "based_on": 1},
    ],
)
async def test_no_command_outlives_the_session(
    page: Page, operator: str, end: Ending, code: int, command: dict[str, Any]
) -> None:
    await page.open()
    await page.receive("history")
    num_texts = len(page.texts)
    await end(operator)
    page.send(**command)
    assert await page.until_closed() == code
    assert len(page.texts) == num_texts


@pytest.mark.parametrize(("end", "code"), ENDINGS)
async def test_no_page_begins_after_its_session(
    page: Page, services: Services, operator: str, end: Ending, code: int
) -> None:
    await page.connect()
    await services.until_subscribed()
    await end(operator)
    page.send(type="watch")
    assert await page.until_closed() == code
    assert page.texts == []


@pytest.mark.parametrize(("end", "code"), ENDINGS)
async def test_silent_watchers_are_closed_as_well(
    make_page: OpenPage, operator: str, services: Services, end: Ending, code: int
) -> None:
    clock = Clock()
    page = make_page(operator, application=consumer_of(services, Limits(recheck_seconds=10, tick_seconds=TICK), clock))
    await page.open()
    await end(operator)
    clock.seconds = 10
    assert await page.until_closed() == code


async def test_pages_are_not_all_checked_at_the_same_moment(
    make_page: OpenPage, operator: str, services: Services
) -> None:
    clock, chances = Clock(), iter([0.0, 0.5])
    rechecks = Rechecks(chance=lambda: next(chances))
    application = consumer_of(services, Limits(recheck_seconds=10, tick_seconds=TICK), clock, rechecks=rechecks)
    pages = [make_page(operator, application=application) for _ in range(2)]
    for page in pages:
        await page.open()
    await sign_out(operator)
    for page, seconds in zip(pages, (5, 7.5), strict=True):
        assert page.task is not None
        assert not page.task.done()
        clock.seconds = seconds
        assert await page.until_closed() == protocol.SIGNED_OUT


async def test_silent_watchers_stay_while_the_database_is_away(
    make_page: OpenPage, operator: str, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = Clock(), []
    # It acknowledges nothing, which is not what this is about.
    limits = Limits(recheck_seconds=10, tick_seconds=TICK, slow_seconds=1e9)
    page = make_page(operator, application=consumer_of(services, limits, clock))
    await page.open()
    await page.receive("history")
    await services.until_subscribed()
    with monkeypatch.context() as patched:

        def fail(session_key: str) -> None:
            asked.append(session_key)
            clock.seconds += 10
            raise OSError("no database")

        patched.setattr("dashboard.page_sockets.read_operator", fail)
        clock.seconds = 10
        await services.publish(1)
        assert (await page.receive_any())["sequence"] == 1
        answer = await page.ask(type="change", id=1, changes={"max_running": 8}, based_on=1)
        assert answer["code"] == "internal_error"
    assert len(asked) >= 1
    assert (await page.ask(type="list_versions", id=2))["type"] == "versions"


@pytest.mark.parametrize("cookie", [None, "", "x" * 32, "é\x7f"])
async def test_strangers_are_told_to_sign_in(make_page: OpenPage, cookie: str | None) -> None:
    page = make_page(cookie)
    assert await page.connect()
    assert await page.until_closed() == protocol.SIGNED_OUT
    assert page.texts == []


async def test_a_user_who_is_no_operator_sees_nothing(make_page: OpenPage) -> None:
    page = make_page(await new_session("someone", is_staff=False))
    assert await page.connect()
    assert await page.until_closed() == protocol.NOT_ALLOWED
    assert page.texts == []


async def test_watching_does_not_prolong_the_session(page: Page, operator: str) -> None:
    def expiry() -> Any:
        return ConsoleSession.objects.get(session_key=operator).expire_date

    before = await database_sync_to_async(expiry)()
    await page.open()
    await page.ask(type="list_versions", id=1)
    assert await database_sync_to_async(expiry)() == before


async def grant(right: bool) -> None:
    user = await User.objects.aget(username="operator")
    permission = await Permission.objects.aget(codename="add_tunablesversion")
    await (user.user_permissions.aadd if right else user.user_permissions.aremove)(permission)


async def test_an_open_page_is_told_of_rights_that_changed(
    make_page: OpenPage, operator: str, services: Services
) -> None:
    clock = Clock()
    page = make_page(operator, application=consumer_of(services, Limits(recheck_seconds=10, tick_seconds=TICK), clock))
    assert (await page.open())["may_steer"] is True
    await page.ask(type="change", id=1, changes={"max_running": 8}, based_on=1)
    for right in (False, True):
        await grant(right)
        clock.seconds += 10
        hello = await page.receive("hello")
        assert hello["may_steer"] is right
        assert [version["number"] for version in hello["versions"]] == [2, 1]
    assert (await page.ask(type="change", id=2, changes={"max_running": 9}, based_on=2))["type"] == "stored"


async def test_a_page_whose_rights_are_the_same_is_not_greeted_again(
    make_page: OpenPage, operator: str, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, checks = Clock(), CountedReads(monkeypatch)
    page = make_page(operator, application=consumer_of(services, Limits(recheck_seconds=10, tick_seconds=TICK), clock))
    await page.open()
    for _ in range(2):
        num_checks = checks.num_checks
        clock.seconds += 10
        await checks.until(num_checks + 1)
    await page.ask(type="list_versions", id=1)
    assert sum('"type":"hello"' in text for text in page.texts) == 1


async def test_a_greeting_waits_for_the_commands_before_it(
    make_page: OpenPage, operator: str, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, checks = Clock(), CountedReads(monkeypatch)
    page = make_page(operator, application=consumer_of(services, Limits(recheck_seconds=10, tick_seconds=TICK), clock))
    await page.open()
    await page.receive("history")
    has_begun, may_store, change = threading.Event(), threading.Event(), tuning.change

    def slow_change(*args: Any, **kwargs: Any) -> Any:
        has_begun.set()
        may_store.wait()
        return change(*args, **kwargs)

    monkeypatch.setattr("serving.tuning.services.change", slow_change)
    try:
        page.send(type="change", id=1, changes={"max_running": 8}, based_on=1)
        assert await asyncio.to_thread(has_begun.wait, PATIENCE_SECONDS)
        await grant(False)
        clock.seconds = 10
        await checks.until(1)
    finally:
        may_store.set()
    assert (await page.receive_any())["type"] == "stored"
    hello = await page.receive_any()
    assert (hello["type"], hello["may_steer"], len(hello["versions"])) == ("hello", False, 2)
