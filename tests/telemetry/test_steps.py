"""Steps on their way to consoles: read once an engine, kept as a page needs them, and no slow reader in the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId, RequestId
from serving.contracts.messages import SequenceKey
from serving.contracts.steps import ROW_FIELDS, SHOWN_STEPS, StepBatch, StepRow, encode_steps
from serving.telemetry.feed import FeedClosed
from serving.telemetry.steps import StepsFeed, StepsWatcher

ENGINE = EngineId("engine-1")
PATIENCE_SECONDS = 20.0


def row_of(step: int) -> StepRow:
    """A step in which the batch's first sequence decodes."""
    values = dict.fromkeys(ROW_FIELDS, 0) | {"step": step, "num_decode_tokens": 1, "is_static": False, "failed": False}
    return StepRow(**values | {"decoding": [0], "others": [], "ended": [], "waiting": []})  # type: ignore[arg-type]


def batch_of(*steps: int) -> bytes:
    """The encoded batch of these steps."""
    return encode_steps(StepBatch(ENGINE, [SequenceKey(RequestId("req_a"), 0)], [row_of(step) for step in steps], 0))


async def publish(redis: Redis, *steps: int, engine: EngineId = ENGINE, content: bytes | None = None) -> None:
    """Add a batch of these steps, as an engine does."""
    await redis.xadd(keys.steps(engine), {keys.FIELD: content or batch_of(*steps)}, id=f"{steps[-1]}-0")


def steps_of(text: Any) -> list[int]:
    return [row[0] for row in json.loads(text.json)["rows"]]


async def taken(watcher: StepsWatcher) -> list[int]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return steps_of(await watcher.next())


@pytest.fixture
async def redis(valkey: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(valkey)
    yield client
    await client.aclose()


@pytest.fixture
async def feed(redis: Redis) -> AsyncIterator[StepsFeed]:
    feed = StepsFeed(redis, read_seconds=0.01)
    yield feed
    await feed.close()


async def test_what_there_was_comes_first_and_what_follows_leaves_no_hole(redis: Redis, feed: StepsFeed) -> None:
    await publish(redis, 1, 2)
    await publish(redis, 3)
    watcher = feed.watch(ENGINE)
    history = await watcher.history()
    assert [steps_of(text) for text in history] == [[1, 2], [3]]
    assert json.loads(history[0].json)["sequences"] == [["req_a", 0]]
    await publish(redis, 4, 5)
    assert await taken(watcher) == [4, 5]
    later = feed.watch(ENGINE)
    assert [steps_of(text) for text in await later.history()] == [[1, 2], [3], [4, 5]]
    await publish(redis, 6)
    assert await taken(watcher) == await taken(later) == [6]


async def test_an_engine_is_read_once_and_only_while_someone_watches(redis: Redis, feed: StepsFeed) -> None:
    watchers = [feed.watch(ENGINE) for _ in range(3)]
    other = feed.watch(EngineId("engine-2"))
    assert feed.num_sources == 2
    for watcher in [*watchers, other]:
        await watcher.history()
        watcher.close()
        watcher.close()
    assert feed.num_sources == 0
    await publish(redis, 1)
    again = feed.watch(ENGINE)
    assert [steps_of(text) for text in await again.history()] == [[1]]


async def test_history_is_bounded(redis: Redis, feed: StepsFeed) -> None:
    for first in range(1, 1201, 25):
        await publish(redis, *range(first, first + 25))
    history = await feed.watch(ENGINE).history()
    shown = [step for text in history for step in steps_of(text)]
    assert shown[-1] == 1200
    assert SHOWN_STEPS <= len(shown) < SHOWN_STEPS + 25


async def test_a_watcher_that_takes_nothing_costs_little_and_delays_nobody(redis: Redis, feed: StepsFeed) -> None:
    """C92."""
    slow, quick = feed.watch(ENGINE), feed.watch(ENGINE)
    await slow.history()
    await quick.history()
    for step in range(1, 41):
        await publish(redis, step)
        assert await taken(quick) == [step]
    assert slow.num_skipped == 8
    assert [await taken(slow) for _ in range(32)] == [[step] for step in range(9, 41)]


async def test_what_another_version_wrote_is_left_out(redis: Redis, feed: StepsFeed) -> None:
    await publish(redis, 1)
    await publish(redis, 2, content=b"\x93what is this")
    newer = StepBatch(ENGINE, [], [row_of(3)], 0, schema_version=99)
    await publish(redis, 3, content=encode_steps(newer))
    await publish(redis, 4)
    assert [steps_of(text) for text in await feed.watch(ENGINE).history()] == [[1], [4]]


async def test_a_page_is_not_kept_waiting_by_redis_and_sees_steps_once_it_is_back() -> None:
    class Away:
        is_away = True

        async def xrange(self, *_args: Any, **_kwargs: Any) -> Any:
            if self.is_away:
                raise ConnectionRefusedError("nobody there")
            return [(b"2-0", {keys.FIELD: batch_of(1, 2)})]

    redis = Away()
    feed = StepsFeed(redis, read_seconds=0.01, pause_seconds=0.01)  # type: ignore[arg-type]
    watcher = feed.watch(ENGINE)
    assert await watcher.history() == []
    redis.is_away = False
    assert await taken(watcher) == [1, 2]
    await feed.close()


async def test_watchers_are_told_when_the_process_stops(feed: StepsFeed) -> None:
    watcher, early = feed.watch(ENGINE), feed.watch(EngineId("engine-2"))
    await watcher.history()
    waiting = asyncio.create_task(watcher.next())
    await asyncio.sleep(0)
    await feed.close()
    for ended in (waiting, early.history(), feed.watch(ENGINE).next()):
        with pytest.raises(FeedClosed):
            await ended
    assert feed.num_sources == 0
