"""A websocket is as good as its session: what ends the one ends the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import AsyncClient
from django.utils import timezone

from dashboard import protocol
from dashboard.consumers import Limits
from tests.dashboard.conftest import OpenPage
from tests.dashboard.harness import Page, Services, new_session
from tests.dashboard.test_live import TICK, Clock, consumer_of


async def sign_out(cookie: str) -> None:
    client = AsyncClient()
    client.cookies["sessionid"] = cookie
    assert (await client.post("/console/logout/")).status_code == 302


async def expire(cookie: str) -> None:
    sessions = Session.objects.filter(session_key=cookie)
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


@pytest.mark.parametrize(("end", "code"), ENDINGS)
@pytest.mark.parametrize(
    "command",
    [
        {"type": "list_versions", "id": 1},
        {"type": "change", "id": 1, "changes": {"max_running": 8}, "based_on": 1},
        {"type": "watch"},
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
async def test_silent_watchers_are_closed_as_well(
    make_page: OpenPage, operator: str, services: Services, end: Ending, code: int
) -> None:
    clock = Clock()
    page = make_page(operator, application=consumer_of(services, Limits(recheck_seconds=10, tick_seconds=TICK), clock))
    await page.open()
    await end(operator)
    clock.seconds = 10
    assert await page.until_closed() == code


async def test_silent_watchers_stay_while_the_database_is_away(
    make_page: OpenPage, operator: str, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = Clock(), []
    page = make_page(operator, application=consumer_of(services, Limits(recheck_seconds=10, tick_seconds=TICK), clock))
    await page.open()
    await page.receive("history")
    await services.until_subscribed()
    with monkeypatch.context() as patched:

        def fail(session_key: str) -> None:
            asked.append(session_key)
            clock.seconds += 10
            raise OSError("no database")

        patched.setattr("dashboard.consumers.read_operator", fail)
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
        return Session.objects.get(session_key=operator).expire_date

    before = await database_sync_to_async(expiry)()
    await page.open()
    await page.ask(type="list_versions", id=1)
    assert await database_sync_to_async(expiry)() == before
