"""The tunables that a pool's engines are told to run."""

from __future__ import annotations

from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import PoolName
from serving.contracts.messages import AnnouncedTunables, decode_announced


async def read_announced(redis: Redis, pool: PoolName) -> AnnouncedTunables | None:
    """What is announced; None where nothing is, or nothing that this version understands."""
    return decode_or_none(decode_announced, await redis.get(keys.announced_tunables(pool)))


async def announced_version(redis: Redis, pool: PoolName) -> int | None:
    """The version of what is announced."""
    announced = await read_announced(redis, pool)
    return None if announced is None else announced.version
