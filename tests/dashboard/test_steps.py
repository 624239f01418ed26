"""The Steps page and its websocket: who may see it, what it is told first, and what it costs."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from django.conf import settings

from dashboard import protocol
from dashboard.models import ConsoleSession
from dashboard.page_sockets import Limits
from dashboard.steps_consumer import StepsConsumer
from serving.contracts import keys
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import encode
from serving.contracts.steps import ROW_FIELDS
from serving.tuning.services import ensure_pool
from tests.dashboard.conftest import OpenPage
from tests.dashboard.harness import POOL, Page, Services, new_session
from tests.dashboard.tenancy import browser, in_thread, session_of
from tests.dashboard.test_live import TICK, Clock
from tests.telemetry.conftest import snapshot
from tests.telemetry.test_steps import publish

PATH = f"/console/steps/{POOL}"
ADDRESS = f"/console/pools/{POOL}/steps/"
ENGINE = EngineId("engine-1")
Live = Callable[..., Awaitable[None]]


@pytest.fixture
def live(services: Services) -> Live:
    """Lets engines live: their heart beats, for long enough."""

    async def beat(*names: str, pool: PoolName = POOL) -> None:
        await services.redis.delete(keys.engines(pool))
        for name in names:
            engine = snapshot(engine_id=EngineId(name), name=f"host:{name}", pool=pool)
            await services.redis.set(keys.heartbeat(engine.engine_id), encode(engine), ex=60)
            await services.redis.zadd(keys.engines(pool), {name: 1e12})

    return beat


@pytest.fixture
async def steps_page(make_page: OpenPage, operator: str) -> Page:
    return make_page(operator, path=PATH)


@pytest.fixture
async def client(application: Any, operator: str) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(application, operator) as client:
        yield client


def steps_in(message: dict[str, Any]) -> list[int]:
    return [row[0] for batch in message["batches"] for row in batch["rows"]]


def consumer_of(services: Services, limits: Limits, clock: Clock) -> Any:
    """The consumer with limits of the test's own, in a scope as the layers above it leave it."""
    consumer = StepsConsumer(limits, clock=clock)

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        cookie = next(value.decode() for name, value in scope["headers"] if name == b"cookie")
        cookies = {settings.SESSION_COOKIE_NAME: cookie.split("=", 1)[1]}
        outer = {"footplate": services, "cookies": cookies, "url_route": {"kwargs": {"pool": POOL}}}
        await consumer({**scope, **outer}, receive, send)

    return application


async def test_a_page_is_told_how_to_read_steps_then_what_there_was_then_what_comes(
    steps_page: Page, services: Services, live: Live
) -> None:
    await live("engine-1")
    await publish(services.redis, 1, 2)
    hello = await steps_page.open()
    assert (hello["pool"], hello["engine"]) == (POOL, "engine-1")
    assert hello["engines"] == [{"engine_id": "engine-1", "name": "host:engine-1"}]
    assert hello["row_fields"] == list(ROW_FIELDS)
    first = await steps_page.receive_any()
    assert (first["type"], first["sequence"], steps_in(first)) == ("steps", 1, [1, 2])
    await publish(services.redis, 3)
    following = await steps_page.receive_any()
    assert (following["sequence"], steps_in(following)) == (2, [3])
    assert following["batches"][0]["sequences"] == [["req_a", 0]]


async def test_a_page_that_comes_back_is_sent_what_it_lacks(steps_page: Page, services: Services, live: Live) -> None:
    await live("engine-1")
    for step in (1, 2, 3):
        await publish(services.redis, step)
    await steps_page.open(engine="engine-1", after=2)
    assert steps_in(await steps_page.receive("steps")) == [3]


async def test_no_engine_is_said_to_have_left_because_redis_is_away(
    steps_page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> Any:
        raise ConnectionError("Redis is away")

    monkeypatch.setattr("dashboard.steps_consumer.live_engines", fail)
    hello = await steps_page.open(engine="engine-1", after=2)
    assert hello["engines"] == [{"engine_id": "engine-1", "name": "engine-1"}]


async def test_the_engine_that_a_page_names_is_shown(steps_page: Page, services: Services, live: Live) -> None:
    await live("engine-1", "engine-2")
    await publish(services.redis, 1)
    await publish(services.redis, 7, engine=EngineId("engine-2"))
    hello = await steps_page.open(engine="engine-2")
    assert hello["engine"] == "engine-2"
    assert steps_in(await steps_page.receive("steps")) == [7]


async def test_a_page_without_an_engine_hears_of_the_first(
    steps_page: Page, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.steps_consumer._ENGINES_EVERY_SECONDS", 0.02)
    assert (await steps_page.open())["engine"] is None
    await live("engine-1")
    heard = await steps_page.receive("engines")
    assert [engine["engine_id"] for engine in heard["engines"]] == ["engine-1"]


async def test_pages_share_one_reader_and_leave_none_behind(
    make_page: OpenPage, operator: str, services: Services, live: Live
) -> None:
    await live("engine-1")
    pages = [make_page(operator, path=PATH) for _ in range(3)]
    for page in pages:
        await page.open()
        await page.receive("steps")
    assert services.steps.num_sources == 1
    for page in pages:
        await page.leave(1006)
    assert services.steps.num_sources == 0


async def test_a_page_that_takes_nothing_in_is_capped_and_then_closed(
    make_page: OpenPage, operator: str, services: Services, live: Live
) -> None:
    """C92."""
    await live("engine-1")
    clock = Clock()
    application = consumer_of(services, Limits(max_unacked=4, slow_seconds=20, tick_seconds=TICK), clock)
    slow, quick = make_page(operator, application=application), make_page(operator, path=PATH)
    for page in (slow, quick):
        await page.open()
        await page.receive("steps")
    for step in range(1, 31):
        await publish(services.redis, step)
        message = await quick.receive("steps")
        assert steps_in(message) == [step]
        quick.send(type="ack", sequence=message["sequence"])
    clock.seconds = 20
    assert await slow.until_closed() == protocol.TOO_SLOW
    messages = [json.loads(text) for text in slow.texts]
    assert [steps_in(message) for message in messages if message["type"] == "steps"] == [[], [1], [2], [3]]


async def test_pages_are_told_to_come_back_when_the_server_stops(
    steps_page: Page, services: Services, live: Live
) -> None:
    await live("engine-1")
    await steps_page.open()
    await services.steps.close()
    assert await steps_page.until_closed() == protocol.RESTARTING


@pytest.mark.parametrize(
    "message",
    [
        {"type": "watch"},
        {"type": "change", "id": 1, "changes": {}, "based_on": 1},
        {"type": "ack", "sequence": "1"},
    ],
)
async def test_what_is_no_message_here_ends_the_connection(steps_page: Page, message: dict[str, Any]) -> None:
    await steps_page.open()
    steps_page.send(**message)
    assert await steps_page.until_closed() == protocol.BAD_MESSAGE


@pytest.mark.parametrize("watch", [{"engine": ""}, {"engine": "x" * 201}, {"after": -1}])
async def test_a_watch_out_of_bounds_ends_the_connection(steps_page: Page, watch: dict[str, Any]) -> None:
    await steps_page.connect()
    steps_page.send(type="watch", **watch)
    assert await steps_page.until_closed() == protocol.BAD_MESSAGE


async def test_only_who_may_watch_is_let_in(make_page: OpenPage, services: Services) -> None:
    """C87."""
    stranger = make_page(await new_session("stranger", is_staff=False), path=PATH)
    nobody, elsewhere = make_page(None, path=PATH), make_page(await new_session("o"), path="/console/steps/none")
    foreign = make_page(await new_session("p"), path=PATH)
    assert not await foreign.connect(headers=[(b"origin", b"https://evil.example")])
    for page in (stranger, nobody, elsewhere):
        await page.connect()
    assert [await page.until_closed() for page in (stranger, nobody, elsewhere)] == [
        protocol.NOT_ALLOWED,
        protocol.SIGNED_OUT,
        protocol.NO_SUCH_POOL,
    ]


async def test_a_page_whose_session_ended_is_closed(
    make_page: OpenPage, operator: str, services: Services, live: Live
) -> None:
    await live("engine-1")
    clock = Clock()
    limits = Limits(recheck_seconds=10, tick_seconds=TICK)
    page = make_page(operator, application=consumer_of(services, limits, clock))
    await page.open()
    await in_thread(ConsoleSession.objects.all().delete)()
    clock.seconds = 10
    assert await page.until_closed() == protocol.SIGNED_OUT


async def test_the_page_names_the_engines_and_which_is_shown(client: httpx.AsyncClient, live: Live) -> None:
    await live("engine-1", "engine-2")
    text = (await client.get(ADDRESS)).text
    assert f'data-socket-path="{PATH}"' in text
    assert re.findall(r'<a href="[^"]*engine=([^"]+)"( aria-current="true")?>host:', text) == [
        ("engine-1", ' aria-current="true"'),
        ("engine-2", ""),
    ]
    text = (await client.get(f"{ADDRESS}?engine=engine-2")).text
    assert re.findall(r'engine=([^"]+)" aria-current="true"', text) == ["engine-2"]
    assert 'data-engine="engine-2"' in text
    assert 'data-engine="engine-2"' in (await client.get(f"{ADDRESS}?engine=host:engine-2")).text


async def test_what_an_address_names_is_shown_as_text(client: httpx.AsyncClient) -> None:
    text = (await client.get(ADDRESS, params={"engine": '"><script>'})).text
    assert "<script>" not in text.replace('<script src="', "").replace('<script type="module"', "")


async def test_the_first_pool_is_shown_where_none_is_named(client: httpx.AsyncClient) -> None:
    assert (await client.get("/console/steps/")).text.count(f'data-socket-path="{PATH}"') == 1
    assert (await client.get("/console/pools/nowhere/steps/")).status_code == 404


async def test_several_pools_are_a_click_apart(client: httpx.AsyncClient) -> None:
    await in_thread(ensure_pool)("bulk", "a-model")
    assert 'href="/console/pools/bulk/steps/"' in (await client.get(ADDRESS)).text


async def test_who_may_not_watch_sees_no_page(application: Any, pool: str) -> None:
    async with browser(application, None) as nobody:
        assert (await nobody.get(ADDRESS)).status_code == 302
    async with browser(application, await new_session("stranger", is_staff=False)) as stranger:
        assert (await stranger.get(ADDRESS)).status_code == 403


async def test_only_who_may_see_requests_is_led_to_them(application: Any, client: httpx.AsyncClient) -> None:
    assert 'data-requests-url=""' in (await client.get(ADDRESS)).text
    async with browser(application, await session_of("admin")) as admin:
        assert 'data-requests-url="/console/requests/"' in (await admin.get(ADDRESS)).text
