"""What an autopilot sees of a pool: its newest frame."""

from __future__ import annotations

from typing import cast

from redis import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.errors import Unavailable
from serving.contracts.ids import PoolName
from serving.lab.autopilot.deciding import Measured, View
from serving.lab.autopilot.levers import Sight
from serving.lab.autopilot.terms import OBJECTIVES
from serving.telemetry.conditions import Readings
from serving.telemetry.frames import Frame, decode_frame
from serving.tuning import selectors

_OLDEST_SECONDS = 10.0


def look(redis: Redis, pool: str, *, now: float) -> View | None:
    """The pool as its newest frame tells, and its tunables; None where there is no frame of the last seconds, or no
    engine. Raises `PoolNotFound`, and `Unavailable` where Redis is out of reach. Blocking."""
    frame = read_frame(redis, pool)
    if frame is None or abs(now - frame.unix_seconds) > _OLDEST_SECONDS or not frame.engines:
        return None
    readings = Readings().see(frame)
    metrics = {
        name: Measured(value_ms=reading.value, num_samples=reading.num_samples or 0)
        for name in OBJECTIVES
        if (reading := readings.get(name)) is not None
    }
    total = sum(engine.kv_blocks_total for engine in frame.engines)
    sight = Sight(
        num_waiting=frame.num_unread + sum(engine.num_waiting for engine in frame.engines),
        num_running=sum(engine.num_running for engine in frame.engines) // len(frame.engines),
        kv_used_ratio=sum(engine.kv_blocks_used for engine in frame.engines) / total if total else 0.0,
    )
    tunables = selectors.current_tunables(pool).tunables
    return View(now=now, metrics=metrics, sight=sight, tunables=tunables)


def read_frame(redis: Redis, pool: str) -> Frame | None:
    """The pool's newest frame; None where there is none that can be read. Raises `Unavailable`."""
    try:
        stored = cast("bytes | None", redis.get(keys.frame(PoolName(pool))))
    except (RedisError, OSError) as error:
        raise Unavailable(f"Redis is out of reach: {error}") from None
    return decode_or_none(decode_frame, stored)
