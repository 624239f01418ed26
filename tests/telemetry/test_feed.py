"""Frames from whoever broadcasts to whoever watches, over a real Valkey."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from redis.asyncio import Redis

from serving.contracts.ids import PoolName
from serving.telemetry.feed import FeedClosed, FeedFrame, LiveFeed, Watcher, broadcast
from tests.telemetry.actions import until
from tests.telemetry.conftest import POOL
from tests.telemetry.layers import make_layer

ROOT = Path(__file__).resolve().parents[2]
OTHER = PoolName("other")

StartFeed = Callable[[], Awaitable[LiveFeed]]


@pytest.fixture
async def layer(valkey: str) -> AsyncIterator[Any]:
    """The broadcasting process's layer."""
    layer = make_layer(valkey)
    yield layer
    await layer.flush()


@pytest.fixture
async def start_feed(valkey: str) -> AsyncIterator[StartFeed]:
    """Starts feeds, each with a layer of its own as if in a process of its own."""
    feeds: list[LiveFeed] = []

    async def start() -> LiveFeed:
        feeds.append(LiveFeed(make_layer(valkey)))
        await feeds[-1].start()
        return feeds[-1]

    yield start
    for feed in feeds:
        await feed.close()


async def send(layer: Any, sequence: int, *, pool: PoolName = POOL) -> None:
    await broadcast(layer, pool, sequence=sequence, frame=b'{"sequence":%d}' % sequence)


def frame(sequence: int) -> FeedFrame:
    return FeedFrame(sequence, f'{{"sequence":{sequence}}}')


async def take(watcher: Watcher) -> FeedFrame:
    async with asyncio.timeout(20):
        return await watcher.next()


async def subscribed_groups(redis: Redis) -> set[bytes]:
    return {channel for channel in await redis.pubsub_channels() if b"__group__" in channel}


async def until_subscribed(redis: Redis, pool: PoolName = POOL, *, num_feeds: int = 1) -> None:
    async def subscribed() -> bool:
        counts = await redis.pubsub_numsub(*await subscribed_groups(redis))
        return any(channel.endswith(pool.encode()) and count == num_feeds for channel, count in counts)

    await until(subscribed)


async def test_two_feeds_get_the_same_frames_in_order(redis: Redis, layer: Any, start_feed: StartFeed) -> None:
    watchers = [(await start_feed()).watch(POOL) for _ in range(2)]
    await until_subscribed(redis, num_feeds=2)
    for sequence in (1, 2, 3):
        await send(layer, sequence)
        assert [await take(watcher) for watcher in watchers] == [frame(sequence)] * 2
    assert [watcher.num_skipped for watcher in watchers] == [0, 0]


async def test_all_watchers_of_a_process_share_one_subscription(
    redis: Redis, layer: Any, start_feed: StartFeed
) -> None:
    feed = await start_feed()
    watchers = [feed.watch(POOL) for _ in range(50)]
    await until_subscribed(redis, num_feeds=1)
    await send(layer, 1)
    frames = [await take(watcher) for watcher in watchers]
    assert all(taken is frames[0] for taken in frames)


async def test_frames_reach_another_process(valkey: str, layer: Any) -> None:
    command = [sys.executable, "-m", "tests.telemetry.feed_process", valkey]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    reading = asyncio.create_task(process.stdout.readline())
    try:
        for sequence in range(1, 1200):
            await send(layer, sequence)
            if (await asyncio.wait({reading}, timeout=0.1))[0]:
                break
        number, text = reading.result().decode().split()
        assert text == f'{{"sequence":{number}}}'
    finally:
        process.kill()
        await process.wait()


async def test_frames_of_pools_that_nobody_watches_are_not_received(
    redis: Redis, layer: Any, start_feed: StartFeed
) -> None:
    feed = await start_feed()
    watcher, other = feed.watch(POOL), feed.watch(OTHER)
    await until_subscribed(redis, POOL)
    await until_subscribed(redis, OTHER)
    await send(layer, 1, pool=OTHER)
    assert await take(other) == frame(1)
    other.close()

    async def only_one_left() -> bool:
        return {channel.rpartition(b".")[2] for channel in await subscribed_groups(redis)} == {POOL.encode()}

    await until(only_one_left)
    await send(layer, 2)
    assert await take(watcher) == frame(2)


async def test_watcher_that_never_reads_holds_one_frame_and_counts_the_rest(
    redis: Redis, layer: Any, start_feed: StartFeed
) -> None:
    feed = await start_feed()
    lazy, keen = feed.watch(POOL), feed.watch(POOL)
    await until_subscribed(redis)
    for sequence in range(1, 501):
        await send(layer, sequence)
        await take(keen)
    gc.collect()
    assert [thing for thing in gc.get_objects() if type(thing) is FeedFrame] == [frame(500)]
    assert lazy.num_skipped == 499
    assert await take(lazy) == frame(500)
    assert keen.num_skipped == 0


@pytest.mark.heavy
async def test_thousands_of_watchers_that_came_and_went_leave_nothing_behind(
    redis: Redis, layer: Any, start_feed: StartFeed
) -> None:
    feed = await start_feed()
    stays = feed.watch(OTHER)
    await until_subscribed(redis, OTHER)
    num_keys, num_clients = await redis.dbsize(), len(await redis.client_list())
    for cycle in range(1, 5001):
        watcher = feed.watch(POOL)
        if cycle % 50 == 0:
            await until_subscribed(redis)
            await send(layer, cycle)
            assert await take(watcher) == frame(cycle)
        elif cycle % 10 == 0:
            await asyncio.sleep(0)
        watcher.close()

    async def left() -> bool:
        return len(await subscribed_groups(redis)) == 1

    await until(left)
    del watcher
    gc.collect()
    assert [thing for thing in gc.get_objects() if type(thing) is Watcher] == [stays]
    assert await redis.dbsize() == num_keys
    assert len(await redis.client_list()) <= num_clients + 1  # the broadcaster's
    hearing = asyncio.create_task(take(stays))
    while not hearing.done():
        # A process that was kept from running for seconds takes its subscription for lost, and with it what was sent.
        await send(layer, 1, pool=OTHER)
        await asyncio.wait({hearing}, timeout=0.5)
    assert hearing.result() == frame(1)


async def test_closing_a_feed_ends_its_watchers_and_its_connections(redis: Redis, start_feed: StartFeed) -> None:
    num_clients = len(await redis.client_list())
    feed = await start_feed()
    watcher = feed.watch(POOL)
    await until_subscribed(redis)
    waiting = asyncio.create_task(watcher.next())
    await asyncio.sleep(0)
    await feed.close()
    with pytest.raises(FeedClosed):
        await waiting
    with pytest.raises(FeedClosed):
        await feed.watch(POOL).next()

    async def disconnected() -> bool:
        return len(await redis.client_list()) == num_clients and not await redis.pubsub_channels()

    await until(disconnected)


async def test_closing_a_watcher_ends_its_reader_alone(redis: Redis, layer: Any, start_feed: StartFeed) -> None:
    feed = await start_feed()
    closed, other = feed.watch(POOL), feed.watch(POOL)
    await until_subscribed(redis)
    waiting = asyncio.create_task(closed.next())
    await asyncio.sleep(0)
    closed.close()
    closed.close()
    with pytest.raises(FeedClosed):
        await waiting
    await send(layer, 1)
    assert await take(other) == frame(1)


async def test_reader_that_gives_up_waiting_loses_no_frame(redis: Redis, layer: Any, start_feed: StartFeed) -> None:
    watcher = (await start_feed()).watch(POOL)
    await until_subscribed(redis)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(watcher.next(), 0.01)
    await send(layer, 1)
    assert await take(watcher) == frame(1)
    assert watcher.num_skipped == 0


@pytest.mark.parametrize(
    "malformed",
    [
        {"type": "live.frame", "pool": "default"},
        {"type": "live.frame", "pool": "default", "sequence": 1, "frame": "text"},
        {"type": "live.frame", "pool": ["default"], "sequence": 1, "frame": b"{}"},
        {"type": "live.frame", "pool": "default", "sequence": 1, "frame": b"\xff"},
        {"type": "something.else"},
        {},
    ],
)
async def test_message_that_is_not_understood_costs_nothing_but_one_warning(
    redis: Redis, layer: Any, start_feed: StartFeed, malformed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    watcher = (await start_feed()).watch(POOL)
    await until_subscribed(redis)
    for sequence in (1, 2, 3):
        await layer.group_send(f"live.{POOL}", malformed)
        await send(layer, sequence)
        assert await take(watcher) == frame(sequence)
    assert len([record for record in caplog.records if record.name.startswith("serving.telemetry")]) == 1


async def test_synchronous_code_broadcasts_again_and_again(redis: Redis, valkey: str, start_feed: StartFeed) -> None:
    watcher = (await start_feed()).watch(POOL)
    await until_subscribed(redis)
    layer = make_layer(valkey)  # one for the whole process, as a task of Celery finds it

    def send_from_a_task(sequence: int) -> None:
        async_to_sync(broadcast)(layer, POOL, sequence=sequence, frame=b'{"sequence":%d}' % sequence)

    for sequence in (1, 2, 3):
        await asyncio.to_thread(send_from_a_task, sequence)
        assert await take(watcher) == frame(sequence)
