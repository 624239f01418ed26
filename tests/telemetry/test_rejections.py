"""Refusals that no pool's books tell of are counted beside them, over all processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from serving.contracts.ids import OwnerId, PoolName
from serving.telemetry.meter import RequestMeter
from serving.telemetry.rejections import Rejections, read_rejections
from serving.telemetry.selectors import pool_snapshot

POOL = PoolName("default")


@pytest.fixture
async def redis(valkey: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(valkey) as client:
        yield client


async def test_all_processes_count_together_and_pools_books_are_left_alone(redis: Redis) -> None:
    meters = [RequestMeter(redis, owner_id=OwnerId(owner), pools=[POOL]) for owner in ("one", "other")]
    for meter in meters:
        meter.start()
        meter.rejected("invalid_api_key")
    meters[0].rejected("not_found")
    for meter in meters:
        await meter.stop()
    snapshot = await pool_snapshot(redis, POOL)
    assert snapshot["rejected"] == {"invalid_api_key": 2, "not_found": 1}
    assert snapshot["outcomes"] == {"submitted": 0, "waiting": 0, "running": 0}


async def test_each_refusal_is_told_once_and_many_at_a_time(redis: Redis) -> None:
    rejections = Rejections()
    await rejections.publish(redis)
    assert await read_rejections(redis) == {}
    for _ in range(3):
        rejections.count("invalid_json")
    for _ in range(2):
        await rejections.publish(redis)
    assert await read_rejections(redis) == {"invalid_json": 3}


async def test_what_redis_could_not_be_told_is_told_later(redis: Redis) -> None:
    unreachable = Redis.from_url("unix:///nonexistent/valkey.sock")
    rejections = Rejections()
    rejections.count("invalid_json")
    with pytest.raises(RedisConnectionError):
        await rejections.publish(unreachable)
    rejections.count("invalid_json")
    await rejections.publish(redis)
    assert await read_rejections(redis) == {"invalid_json": 2}
    await unreachable.aclose()
