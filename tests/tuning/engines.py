"""Engines as their heartbeats tell of them."""

from __future__ import annotations

from typing import Any, cast

from redis import Redis

from serving.contracts import keys
from serving.contracts.messages import Control, EngineSnapshot, decode_control, encode
from tests.telemetry.conftest import snapshot
from tests.tuning.conftest import POOL


def beat(redis: Redis, *names: str, **changes: Any) -> list[EngineSnapshot]:
    """Let engines of these ids live."""
    engines = [snapshot(name, **changes) for name in names]
    for engine in engines:
        redis.set(keys.heartbeat(engine.engine_id), encode(engine))
        redis.zadd(keys.engines(POOL), {engine.engine_id: 1})
    return engines


def sent_to(redis: Redis, engine: EngineSnapshot) -> list[Control]:
    """What lies in the engine's control stream."""
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", redis.xrange(keys.control(engine.engine_id)))
    return [decode_control(fields[keys.FIELD]) for _, fields in entries]
