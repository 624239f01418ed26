"""The feed's place in Redis, through everything that happens to Redis."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.telemetry.feed import LiveFeed, Watcher, broadcast
from serving.telemetry.subscription import Subscription
from tests.telemetry.actions import until
from tests.telemetry.conftest import POOL, Clock
from tests.telemetry.layers import DeafLayer, make_layer
from tests.telemetry.server import Server

pytestmark = [pytest.mark.stack, pytest.mark.waits]


class Broadcaster:
    """Broadcasts ten numbered frames a second, whether anybody can be reached or not."""

    def __init__(self, layer: Any) -> None:
        self.sequence = 0
        self._layer = layer
        self._stopping = False
        self._task = asyncio.create_task(self._broadcast())

    async def stop(self) -> None:
        self._stopping = True
        await self._task
        await self._layer.flush()

    async def _broadcast(self) -> None:
        while not self._stopping:
            self.sequence += 1
            with contextlib.suppress(RedisError, OSError):
                await broadcast(self._layer, POOL, sequence=self.sequence, frame=b"{}")
            await asyncio.sleep(0.1)


@pytest.fixture
async def broadcaster(server: Server) -> AsyncIterator[Broadcaster]:
    broadcaster = Broadcaster(make_layer(server.url))
    yield broadcaster
    await broadcaster.stop()


@pytest.fixture
async def feed(server: Server) -> AsyncIterator[LiveFeed]:
    """A feed of the test's own server, which is not there yet."""
    feed = LiveFeed(make_layer(server.url))
    await feed.start()
    yield feed
    await feed.close()


async def takes_frame(watcher: Watcher, *, later_than: int) -> None:
    async with asyncio.timeout(30):
        while (await watcher.next()).sequence <= later_than:
            pass


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings and worse of the feed and of what it uses; other tests' threads may still be complaining of theirs."""
    return [
        f"{record.name}: {record.getMessage()}"
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith(("serving.telemetry", "channels_redis"))
    ]


@pytest.mark.parametrize("start_again", [Server.start, Server.start_empty], ids=["with data", "without data"])
async def test_frames_come_again_after_a_restart_of_redis(
    server: Server,
    feed: LiveFeed,
    broadcaster: Broadcaster,
    start_again: Callable[[Server], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.start()
    watcher = feed.watch(POOL)
    await takes_frame(watcher, later_than=0)
    caplog.clear()
    server.kill()
    await asyncio.sleep(4)
    last = broadcaster.sequence
    start_again(server)
    await takes_frame(watcher, later_than=last)
    assert len(complaints(caplog)) <= 1, complaints(caplog)


async def test_frames_come_after_a_start_without_redis(
    server: Server, feed: LiveFeed, broadcaster: Broadcaster, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = feed.watch(POOL)
    await asyncio.sleep(2)
    assert len(complaints(caplog)) == 1
    server.start()
    await takes_frame(watcher, later_than=broadcaster.sequence)


@pytest.mark.usefixtures("broadcaster")
async def test_frames_come_again_after_the_connection_was_cut(
    server: Server, feed: LiveFeed, broadcaster: Broadcaster
) -> None:
    server.start()
    watcher = feed.watch(POOL)
    await takes_frame(watcher, later_than=0)
    async with Redis.from_url(server.url) as redis:
        for _ in range(3):
            assert await redis.client_kill_filter(_type="pubsub") >= 1
            await takes_frame(watcher, later_than=broadcaster.sequence)


async def test_feed_closes_while_redis_is_away(server: Server, feed: LiveFeed) -> None:
    server.start()
    feed.watch(POOL)
    await asyncio.sleep(0.5)
    server.kill()
    await asyncio.sleep(0.5)
    async with asyncio.timeout(20):
        await feed.close()


async def subscribe(layer: DeafLayer, clock: Clock) -> Subscription:
    subscription = Subscription(layer, deliver=lambda _message: None, clock=clock)
    subscription.start()
    subscription.want(["live.pool"])

    async def joined() -> bool:
        return layer.groups == {"live.pool"}

    await until(joined)
    return subscription


async def test_begins_anew_where_not_even_its_own_messages_arrive(caplog: pytest.LogCaptureFixture) -> None:
    layer, clock = DeafLayer(deaf=True), Clock()
    subscription = await subscribe(layer, clock)
    clock.now += 3

    async def probed() -> bool:
        return layer.num_sent == 1

    await until(probed)
    assert layer.num_channels == 1
    clock.now += 4

    async def began_anew() -> bool:
        return layer.num_channels == 2 and layer.groups == {"live.pool"}

    await until(began_anew)
    assert len(complaints(caplog)) == 1
    await subscription.stop()
    assert layer.groups == set()


async def test_silence_alone_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    layer, clock = DeafLayer(deaf=False), Clock()
    subscription = await subscribe(layer, clock)
    for number in range(1, 4):
        clock.now += 3

        async def heard(number: int = number) -> bool:
            return layer.num_received == number

        await until(heard)
    assert layer.num_channels == 1
    assert complaints(caplog) == []
    await subscription.stop()


async def test_nothing_is_opened_before_a_group_is_wanted() -> None:
    layer = DeafLayer(deaf=False)
    subscription = Subscription(layer, deliver=lambda _message: None)
    subscription.start()
    await asyncio.sleep(0.1)
    assert layer.num_channels == 0
    await subscription.stop()
