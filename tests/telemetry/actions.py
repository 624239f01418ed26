"""What other processes do to Redis, in a line each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import OwnerId
from serving.contracts.messages import Control, EngineSnapshot, decode_control, encode
from serving.telemetry.frames import Frame, decode_frame
from tests.telemetry.conftest import POOL


async def beat(redis: Redis, engine: EngineSnapshot) -> None:
    """An engine's heartbeat."""
    seconds, _ = await redis.time()
    await redis.set(keys.heartbeat(engine.engine_id), encode(engine), px=60_000)
    await redis.zadd(keys.engines(POOL), {engine.engine_id: seconds})


async def beat_owner(redis: Redis, owner: str) -> None:
    """An owner's heartbeat."""
    await redis.set(keys.owner_alive(OwnerId(owner)), b"1", px=60_000)


async def sent_to(redis: Redis, engine: EngineSnapshot) -> list[Control]:
    """What lies in the engine's control stream."""
    return [decode_control(fields[keys.FIELD]) for _, fields in await redis.xrange(keys.control(engine.engine_id))]


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = 20.0) -> None:
    """Return once `condition` holds; fail where it never does."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 (another process's doing sets no event here)
            await asyncio.sleep(0.02)


async def read_frame(redis: Redis) -> Frame | None:
    """The pool's frame, if there is one."""
    value = await redis.get(keys.frame(POOL))
    return None if value is None else decode_frame(value)
