"""Engines that come and go, monitors and Redis that begin anew: noticed once each, and never by mistake."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from serving.contracts.messages import EngineSnapshot
from serving.telemetry.events import EventEntry
from serving.telemetry.pool_monitor import PoolMonitor
from serving.telemetry.pool_watch import PoolWatch
from tests.telemetry.actions import beat, until
from tests.telemetry.chronicles import read_chronicle
from tests.telemetry.conftest import POOL, Consoles, snapshot
from tests.telemetry.server import Server
from tests.telemetry.test_points import frame_of

NOW = 1_750_000_000.0
OLD = 5000.0


@pytest.fixture
def watch(redis: Redis) -> PoolWatch:
    watch = PoolWatch(redis, POOL)
    watch.begin(None)
    return watch


async def told(redis: Redis) -> list[tuple[str, str]]:
    return [
        (entry.event.kind, entry.event.subject)
        for entry in await read_chronicle(redis)
        if isinstance(entry, EventEntry)
    ]


async def look(watch: PoolWatch, seconds: float, *engines: EngineSnapshot) -> None:
    await watch.look(engines, now=NOW + seconds)


async def test_engine_that_joins_is_told_once(redis: Redis, watch: PoolWatch) -> None:
    await look(watch, 0, snapshot("a", uptime_seconds=OLD))
    assert await told(redis) == []
    for second in (1, 2):
        await look(watch, second, snapshot("a", uptime_seconds=OLD), snapshot("b", uptime_seconds=OLD))
    assert await told(redis) == [("engine_joined", "b")]


async def test_engine_that_is_new_as_the_first_monitor_comes_has_joined(redis: Redis, watch: PoolWatch) -> None:
    await look(watch, 0, snapshot("a", uptime_seconds=OLD), snapshot("b", uptime_seconds=3.0))
    assert await told(redis) == [("engine_joined", "b")]


async def test_engine_whose_heart_stops_is_lost_and_comes_back_as_joined(redis: Redis, watch: PoolWatch) -> None:
    engine = snapshot("a", uptime_seconds=OLD)
    await beat(redis, engine)
    await look(watch, 0, engine)
    for second in (1.0, 4.9):
        await look(watch, second)
    assert await told(redis) == []
    for second in (5.0, 6.0, 60.0):
        await look(watch, second)
    assert await told(redis) == [("engine_lost", "a")]
    await look(watch, 61, snapshot("a", uptime_seconds=OLD + 60))
    assert await told(redis) == [("engine_lost", "a"), ("engine_joined", "a")]
    events = [entry.event for entry in await read_chronicle(redis) if isinstance(entry, EventEntry)]
    assert "is back" in events[1].text


async def test_engine_that_drained_or_took_its_name_off_the_list_has_left(redis: Redis, watch: PoolWatch) -> None:
    drained = snapshot("a", uptime_seconds=OLD, state="draining", leaves=True)
    orderly = snapshot("b", uptime_seconds=OLD)
    await beat(redis, drained)
    await look(watch, 0, drained, orderly)
    await look(watch, 1)
    await look(watch, 5)
    assert sorted(await told(redis)) == [("engine_left", "a"), ("engine_left", "b")]


async def test_what_redis_does_not_take_is_told_once_it_does(
    redis: Redis, watch: PoolWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise ResponseError("OOM command not allowed when used memory > 'maxmemory'.")

    await look(watch, 0, snapshot("a", uptime_seconds=OLD))
    joined = snapshot("a", uptime_seconds=OLD), snapshot("b", uptime_seconds=OLD)
    with monkeypatch.context() as patch:
        patch.setattr(redis, "pipeline", full)
        for second in (1, 2):
            with pytest.raises(RedisError):
                await look(watch, second, *joined)
    for second in (3, 4):
        await look(watch, second, *joined)
    assert await told(redis) == [("engine_joined", "b")]


async def test_pause_of_the_heartbeat_is_no_event(redis: Redis, watch: PoolWatch) -> None:
    await look(watch, 0, snapshot("a", uptime_seconds=OLD))
    await look(watch, 1)
    await look(watch, 4, snapshot("a", uptime_seconds=OLD + 4))
    await look(watch, 5)
    await look(watch, 8)
    assert await told(redis) == []


async def test_nobody_is_taken_for_dead_while_redis_cannot_be_reached(redis: Redis, watch: PoolWatch) -> None:
    engine = snapshot("a", uptime_seconds=OLD)
    await look(watch, 0, engine)
    await look(watch, 1)
    watch.forget_silences()
    await look(watch, 20)
    await look(watch, 23)
    await look(watch, 23.5, engine)
    assert await told(redis) == []


async def test_next_monitor_goes_on_with_what_the_one_before_knew(redis: Redis) -> None:
    watch = PoolWatch(redis, POOL)
    earlier = frame_of(snapshot("a", uptime_seconds=OLD), snapshot("b", uptime_seconds=OLD), unix_seconds=NOW - 30)
    for _ in range(2):
        watch.begin(earlier)
    for second in (0, 1, 6):
        await look(watch, second, snapshot("a", uptime_seconds=OLD), snapshot("c", uptime_seconds=OLD))
    assert await told(redis) == [("monitor_took_over", ""), ("engine_joined", "c"), ("engine_left", "b")]


async def test_two_monitors_tell_one_event(redis: Redis) -> None:
    earlier, engine = frame_of(snapshot("a", uptime_seconds=OLD)), snapshot("b", uptime_seconds=2.0)
    for seconds in (0, 0.4):
        watch = PoolWatch(redis, POOL)
        watch.begin(earlier)
        await look(watch, seconds, snapshot("a", uptime_seconds=OLD), engine)
    entries = [entry.event for entry in await read_chronicle(redis) if isinstance(entry, EventEntry)]
    assert len({event.event_id for event in entries}) == len(entries) / 2 == 2


@pytest.mark.stack
async def test_redis_that_was_started_anew_is_told_and_the_engines_stay(server: Server, consoles: Consoles) -> None:
    server.start()
    async with Redis.from_url(server.url, socket_timeout=1.0) as redis:
        monitor = PoolMonitor(redis, POOL, broadcast=consoles)
        await beat(redis, snapshot(uptime_seconds=OLD))
        await monitor.publish_frame()
        server.kill()
        with pytest.raises(RedisError):
            await monitor.publish_frame()
        await asyncio.to_thread(server.start)
        await beat(redis, snapshot(uptime_seconds=OLD + 5))

        async def is_told() -> bool:
            await monitor.publish_frame()
            return ("redis_restarted", "") in await told(redis)

        await until(is_told)
        assert await told(redis) == [("redis_restarted", "")]
