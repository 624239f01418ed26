"""Requests in flight in the console: who may see them, and who may end them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from serving.audit.models import AuditEvent
from serving.contracts import keys
from serving.contracts.ids import OwnerId
from serving.telemetry.models import RequestRecord
from serving.telemetry.running_board import RunningBoard
from tests.dashboard.harness import Services
from tests.dashboard.requests_log import REQUESTS, ids_at, ids_on, log_requests
from tests.dashboard.tenancy import browser, errors_of, in_thread, page_of, session_of, submit, words
from tests.telemetry.running import FakeOwner, in_flight

RUNNING = "/console/running-requests/"


@pytest.fixture
async def operator(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(application, await session_of("operator", "olga")) as client:
        yield client


@pytest.fixture
async def board(valkey: str) -> AsyncIterator[tuple[FakeOwner, RunningBoard]]:
    """A process with one request in flight."""
    owner = FakeOwner(in_flight("req_running", arrived_at=97.5), in_flight("req_waiting", started=False, num_ahead=3))
    async with Redis.from_url(valkey) as redis:
        board = RunningBoard(redis, owner_id=OwnerId("web"), owner=owner, clock=lambda: 100.0)
        yield owner, board
        await board.stop()


@pytest.mark.parametrize(
    ("role", "may_see", "may_abort"),
    [("viewer", False, False), ("operator", True, True), ("admin", True, True), ("auditor", True, False)],
)
async def test_who_may_see_requests_and_who_may_end_them(
    application: Any, board: tuple[FakeOwner, RunningBoard], role: str, *, may_see: bool, may_abort: bool
) -> None:
    await board[1].tell()
    (known,) = await log_requests()
    async with browser(application, await session_of(role)) as client:
        for path in (REQUESTS, "/console/requests.csv", f"{REQUESTS}{known}/", RUNNING, f"{REQUESTS}?tail=0"):
            assert (await client.get(path)).status_code == (200 if may_see else 403), path
        assert (await client.get(f"{REQUESTS}req_running/abort/")).status_code == (200 if may_abort else 403)
        if may_see:
            page = await page_of(client, REQUESTS)
            assert ("Abort" in page) == may_abort
        assert ('href="/console/requests/"' in await page_of(client, "/console/")) == may_see


async def test_who_is_not_signed_in_is_sent_to_sign_in(application: Any) -> None:
    async with browser(application, None) as client:
        for path in (REQUESTS, RUNNING, f"{REQUESTS}req_1/", f"{REQUESTS}req_1/abort/"):
            response = await client.get(path)
            assert (response.status_code, response.headers["location"].split("?")[0]) == (302, "/console/login/")


async def test_what_is_in_flight_stands_above_the_log_and_alone(
    operator: httpx.AsyncClient, board: tuple[FakeOwner, RunningBoard]
) -> None:
    await board[1].tell()
    for path in (REQUESTS, RUNNING):
        text = words(await page_of(operator, path))
        assert "2 in flight: 1 running, 1 waiting." in text
        assert "req_waiting waiting 3 ahead acme fp-0123456789ab-… default chat 10.0 s 3 → 2" in text
        assert "req_running running acme fp-0123456789ab-… default chat 2.50 s 3 → 2" in text
    alone = words(await page_of(operator, f"{REQUESTS}req_running/"))
    assert "In flight: it runs" in alone


async def test_an_operator_ends_a_request_and_it_is_written_down(
    operator: httpx.AsyncClient, board: tuple[FakeOwner, RunningBoard]
) -> None:
    owner, telling = board
    await telling.tell()
    page = await page_of(operator, f"{REQUESTS}req_running/abort/")
    assert "Abort this request?" in page
    telling.start()
    response = await submit(operator, f"{REQUESTS}req_running/abort/", reason="runs for ever")
    assert (response.status_code, response.headers["location"]) == (302, REQUESTS)
    assert owner.aborted == ["req_running"]
    assert "req_running is aborted: its client was told so." in words(await page_of(operator, REQUESTS))
    (event,) = await in_thread(lambda: list(AuditEvent.objects.filter(action="request aborted")))()
    assert (event.actor, event.subject, event.request_id) == ("olga", "req_running", "req_running")
    assert (event.pool, event.tenant, event.reason) == ("default", "acme", "runs for ever")


async def test_what_has_ended_meanwhile_is_said_so_and_nothing_is_written_down(
    operator: httpx.AsyncClient, board: tuple[FakeOwner, RunningBoard]
) -> None:
    owner, telling = board
    await telling.tell()
    form = f"{REQUESTS}req_running/abort/"
    page = await page_of(operator, form)
    owner.requests.clear()
    telling.start()
    token = re.search(r'csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token is not None
    await operator.post(form, data={"csrfmiddlewaretoken": token[1], "reason": ""})
    assert "req_running had ended already" in words(await page_of(operator, REQUESTS))
    assert "It is in flight no more" in await page_of(operator, form)
    assert not await in_thread(AuditEvent.objects.filter(action="request aborted").exists)()


async def test_a_reason_that_is_too_long_stays_and_ends_nothing(
    operator: httpx.AsyncClient, board: tuple[FakeOwner, RunningBoard]
) -> None:
    await board[1].tell()
    response = await submit(operator, f"{REQUESTS}req_running/abort/", reason="x" * 501)
    assert response.status_code == 400
    assert "x" * 501 in response.text
    assert "reason" in errors_of(response.text)
    assert board[0].aborted == []


async def test_an_abort_is_written_down_also_where_redis_goes_before_the_answer(
    operator: httpx.AsyncClient,
    board: tuple[FakeOwner, RunningBoard],
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await board[1].tell()
    await page_of(operator, f"{REQUESTS}req_running/abort/")
    monkeypatch.setattr(services.blocking_redis, "blpop", _away)
    await submit(operator, f"{REQUESTS}req_running/abort/", reason="runs for ever")
    assert "Not every process answered about req_running" in words(await page_of(operator, REQUESTS))
    assert await in_thread(AuditEvent.objects.filter(action="request aborted").exists)()


async def test_pages_say_so_when_redis_is_away(
    operator: httpx.AsyncClient, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    (known,) = await log_requests()
    monkeypatch.setattr(services.blocking_redis, "smembers", _away)
    monkeypatch.setattr("dashboard.requests_running.order_abort", _away)
    page = await page_of(operator, REQUESTS)
    assert "Redis does not answer: what is in flight is not known." in page
    assert ids_on(page) == [known]
    assert (await operator.get(f"{REQUESTS}req_unknown/")).status_code == 404
    assert "It is in flight no more" in await page_of(operator, f"{REQUESTS}req_x/abort/")


def _away(*_args: Any, **_options: Any) -> Any:
    raise ConnectionError("Redis is away")


async def test_the_log_is_the_databases_own(services: Services, operator: httpx.AsyncClient) -> None:
    """What is in flight lives in Redis for seconds; what ended does not."""
    (known,) = await log_requests()
    await services.redis.flushall()
    assert await ids_at(operator, "") == [known]
    assert await in_thread(RequestRecord.objects.count)() == 1
    assert await services.redis.exists(keys.running_owners()) == 0
