"""The Live page's websocket: what a page is told, and what it costs."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from dashboard import protocol
from dashboard.consumers import Limits, LiveConsumer
from dashboard.rechecks import Rechecks
from dashboard.threads import in_thread
from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.contracts.tunables import Tunables, describe
from serving.telemetry.frames import INTERVAL_NAMES, PERCENTILES, POINT_FIELDS, WINDOWS_SECONDS, encode_live
from serving.worker.host import resident_bytes
from tests.dashboard.conftest import OpenPage
from tests.dashboard.harness import POOL, Closed, Page, Services, console_services, frame_of, new_session, point_of

TICK = 0.01


class Clock:
    """The consumer's clock, which stands still until the test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def consumer_of(
    services: Services, limits: Limits, clock: Clock | None = None, *, rechecks: Rechecks | None = None
) -> Any:
    """The consumer with limits of the test's own, in a scope as the layers above it leave it."""
    consumer = LiveConsumer(limits, clock=clock or Clock(), rechecks=rechecks)

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        cookies = dict(
            pair.split("=", 1) for name, value in scope["headers"] if name == b"cookie" for pair in [value.decode()]
        )
        outer = {"footplate": services, "cookies": cookies, "url_route": {"kwargs": {"pool": POOL}}}
        await consumer({**scope, **outer}, receive, send)

    return application


async def test_a_page_is_told_first_how_to_read_what_follows(page: Page) -> None:
    hello = await page.open()
    assert (hello["pool"], hello["model"]) == (POOL, "a-model")
    assert (hello["user"], hello["may_steer"]) == ("operator", True)
    assert hello["point_fields"] == list(POINT_FIELDS)
    assert hello["windows_seconds"] == list(WINDOWS_SECONDS)
    assert hello["interval_names"] == list(INTERVAL_NAMES)
    assert hello["percentiles"] == list(PERCENTILES)
    assert [spec["name"] for spec in hello["tunables"]] == [spec.name for spec in describe()]
    (version,) = hello["versions"]
    assert (version["number"], version["values"], version["author"]) == (1, Tunables().as_dict(), "first start")
    assert version["created_at"].endswith("+00:00")


async def test_history_follows_hello_and_frames_follow_unchanged(page: Page, services: Services) -> None:
    seconds, _ = await services.redis.time()
    for age in (3, 2, 1):
        row = encode_live(point_of(seconds - age))
        await services.redis.xadd(keys.history(POOL), {keys.FIELD: row})
    await page.open()
    history = await page.receive_any()
    assert history["type"] == "history"
    assert [point[0] for point in history["points"]] == [seconds - 3, seconds - 2, seconds - 1]
    await services.until_subscribed()
    await services.publish(5)
    assert await page.receive_any() == json.loads(frame_of(5))


async def test_history_is_shortened_to_what_the_page_lacks(page: Page, services: Services) -> None:
    seconds, _ = await services.redis.time()
    for age in (3, 2, 1):
        await services.redis.xadd(keys.history(POOL), {keys.FIELD: encode_live(point_of(seconds - age))})
    await page.open(since=float(seconds - 2))
    assert [point[0] for point in (await page.receive("history"))["points"]] == [seconds - 1]


async def test_no_frame_comes_before_the_page_asked(page: Page, services: Services) -> None:
    assert await page.connect()
    await services.until_subscribed()
    await services.publish(1)
    await asyncio.sleep(0.2)
    page.send(type="watch")
    assert (await page.receive_any())["type"] == "hello"
    assert (await page.receive_any())["type"] == "history"


async def test_frames_of_another_pool_do_not_come(page: Page, services: Services) -> None:
    await page.open()
    await services.until_subscribed()
    await services.publish(1, pool=PoolName("another"))
    await services.publish(2)
    assert (await page.receive("frame"))["sequence"] == 2


async def test_a_page_opens_while_redis_is_away(make_page: OpenPage, operator: str, pool: str) -> None:
    async with console_services("unix:///nonexistent/valkey.sock") as away:
        page = make_page(operator, application=consumer_of(away, Limits()))
        hello = await page.open()
        assert (await page.receive("history"))["points"] == []
        answer = await page.ask(type="change", id=1, changes={"max_running": 8}, based_on=1)
        assert (hello["versions"][0]["number"], answer["version"]["number"]) == (1, 2)
        listed = await page.ask(type="list_versions", id=2)
        assert [version["number"] for version in listed["versions"]] == [2, 1]
        await page.leave()


async def test_unknown_pool_is_said(make_page: OpenPage, operator: str) -> None:
    page = make_page(operator, path="/console/live/nowhere")
    assert await page.connect()
    assert await page.until_closed() == protocol.NO_SUCH_POOL


async def test_opening_a_page_reads_little(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[str] = []

    def note(execute: Any, sql: str, *args: Any) -> Any:
        queries.append(sql)
        return execute(sql, *args)

    async def in_noted_thread(function: Callable[..., Any], *args: Any) -> Any:
        def run() -> Any:
            with connection.execute_wrapper(note):
                return function(*args)

        return await in_thread(run)

    for module in ("page_sockets", "consumers"):
        monkeypatch.setattr(f"dashboard.{module}.in_thread", in_noted_thread)
    await page.open()
    # Session, user and pool to let it in; these again, two tables of permissions, and versions to greet it.
    assert 0 < len(queries) <= 9, queries


async def test_watch_is_said_once_a_connection(page: Page) -> None:
    await page.open()
    page.send(type="watch")
    with pytest.raises(Closed, match="once") as closed:
        await page.receive("hello")
    assert closed.value.code == protocol.BAD_MESSAGE


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[1, 2]",
        '{"id": 1}',
        '{"type": "shut_down"}',
        '{"type": "ack"}',
        '{"type": "ack", "sequence": "1"}',
        '{"type": "ack", "sequence": 1, "more": 2}',
        '{"type": "watch", "since": 1e400}',
        '{"type": "change", "id": 1, "changes": {}, "based_on": 1e30}',
        '{"type": "change", "id": 1, "changes": ' + "[" * 20_000 + "]" * 20_000 + "}",
        '{"type": "change", "id": 1, "changes": {}, "based_on": 1, "reason": "' + "x" * 65_536 + '"}',
    ],
)
async def test_what_is_no_message_ends_the_connection(page: Page, text: str) -> None:
    await page.open()
    page.send_text(text)
    assert await page.until_closed() == protocol.BAD_MESSAGE


async def test_binary_frames_end_the_connection(page: Page) -> None:
    await page.open()
    page.send_bytes(b"{}")
    assert await page.until_closed() == protocol.BAD_MESSAGE


async def test_a_flood_of_commands_ends_the_connection(page: Page) -> None:
    await page.open()
    for number in range(Limits().max_waiting + 2):
        page.send(type="list_versions", id=number)
    assert await page.until_closed() == protocol.BAD_MESSAGE


async def test_pages_are_told_to_come_back_when_the_server_stops(make_page: OpenPage, services: Services) -> None:
    pages = [make_page(await new_session(f"operator-{number}")) for number in range(3)]
    for page in pages:
        await page.open()
    await services.feed.close()
    assert [await page.until_closed() for page in pages] == [protocol.RESTARTING] * 3


async def test_a_page_that_takes_nothing_in_is_capped_and_then_closed_and_holds_up_no_other(
    make_page: OpenPage, operator: str, services: Services
) -> None:
    """C92."""
    clock, limits = Clock(), Limits(max_unacked=8, slow_seconds=20, tick_seconds=TICK)
    page = make_page(operator, application=consumer_of(services, limits, clock))
    quick = make_page(operator)
    for each in (page, quick):
        await each.open()
    await services.until_subscribed()
    for sequence in range(8):
        await services.publish(sequence)
        await page.receive("frame")
    seen = [(await quick.receive("frame"))["sequence"] for _ in range(8)]
    quick.send(type="ack", sequence=7)
    await quick.ask(type="list_versions", id=1)  # then the acknowledgement was read, too
    for first in range(8, 500, 4):
        await services.publish(*range(first, first + 4))
        seen += [(await quick.receive("frame"))["sequence"] for _ in range(4)]
        quick.send(type="ack", sequence=first + 3)
    assert seen == list(range(500))
    clock.seconds = 19.9
    answer = await page.ask(type="list_versions", id=1)
    assert answer["type"] == "versions"
    clock.seconds = 20
    assert await page.until_closed() == protocol.TOO_SLOW
    frames = [message for text in page.texts if (message := json.loads(text))["type"] == "frame"]
    assert [frame["sequence"] for frame in frames] == list(range(8))


async def test_a_slow_page_is_closed_while_the_database_hangs(
    make_page: OpenPage, operator: str, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    limits = Limits(recheck_seconds=10, recheck_timeout_seconds=1e6, slow_seconds=20, tick_seconds=TICK)
    page = make_page(operator, application=consumer_of(services, limits, clock))
    await page.open()
    await services.until_subscribed()
    await services.publish(1)
    await page.receive("frame")
    is_asked, is_back = threading.Event(), threading.Event()

    def hang(session_key: str) -> None:
        is_asked.set()
        is_back.wait()

    monkeypatch.setattr("dashboard.page_sockets.read_operator", hang)
    try:
        clock.seconds = 10
        assert await asyncio.to_thread(is_asked.wait, 20)
        clock.seconds = 20
        assert await page.until_closed() == protocol.TOO_SLOW
    finally:
        is_back.set()


async def test_a_page_that_acknowledges_late_sees_a_gap_and_lives(
    make_page: OpenPage, operator: str, services: Services
) -> None:
    page = make_page(operator, application=consumer_of(services, Limits(max_unacked=2)))
    await page.open()
    await page.receive("history")
    await services.until_subscribed()
    seen = []
    for sequence in (1, 2):
        await services.publish(sequence)
        seen.append((await page.receive_any())["sequence"])
    await services.publish(3, 4)
    answer = await page.ask(type="list_versions", id=1)  # commands are not held up by frames that are
    assert answer["type"] == "versions"
    page.send(type="ack", sequence=2)
    await page.ask(type="list_versions", id=2)
    await services.publish(5)
    seen.append((await page.receive("frame"))["sequence"])
    assert seen == [1, 2, 5]


async def test_a_page_that_owes_nothing_is_not_slow(make_page: OpenPage, operator: str, services: Services) -> None:
    clock, limits = Clock(), Limits(recheck_seconds=1e9, tick_seconds=TICK)
    page = make_page(operator, application=consumer_of(services, limits, clock))
    await page.open()
    await services.until_subscribed()
    await services.publish(1)
    await page.receive("frame")
    page.send(type="ack", sequence=1)
    await page.ask(type="list_versions", id=1)
    clock.seconds = 1e6
    await asyncio.sleep(10 * TICK)
    assert (await page.ask(type="list_versions", id=2))["type"] == "versions"


@pytest.mark.waits
@pytest.mark.parametrize("num_pages", [300, pytest.param(5000, marks=pytest.mark.long)])
async def test_connections_come_and_go_and_leave_nothing_behind(
    make_page: OpenPage, operator: str, services: Services, application: Any, num_pages: int
) -> None:
    stays = make_page(operator)
    await stays.open()
    await services.until_subscribed()
    before = len(asyncio.all_tasks())

    async def come_and_go(number: int) -> None:
        page = Page(application, operator)
        await page.connect()
        page.send(type="watch")
        if number % 10 == 0:
            await page.leave(1006)
        elif number % 10 == 1:
            assert page.task is not None
            page.task.cancel()  # as the server does with what is left when it stops
            await asyncio.wait({page.task})
            assert page.task.cancelled()
        else:
            await page.receive("history")
            await page.leave()

    resident = []
    for start in range(0, num_pages, 30):
        await asyncio.gather(*(come_and_go(start + number) for number in range(30)))
        resident.append(resident_bytes())
    # What the first ones made is kept for the later ones; from then on a page that was here costs nothing.
    assert resident[-1] - resident[len(resident) // 2] < 8_000_000
    assert await services.num_subscribers() == 1
    assert len(asyncio.all_tasks()) == before
    await services.publish(7)
    assert (await stays.receive("frame"))["sequence"] == 7
    await stays.leave()
    await services.until_subscribed(0)


async def test_a_page_that_leaves_before_it_is_let_in_is_forgotten(page: Page, services: Services) -> None:
    await page.connect()
    await page.leave(1006)
    await services.until_subscribed(0)
