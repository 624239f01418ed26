"""The engines of a pool that live, for blocking code."""

from __future__ import annotations

from typing import cast

from redis import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.errors import Unavailable
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot, decode_snapshot
from serving.tuning.conflicts import Envelope


def living_engines(redis: Redis, pool: PoolName) -> list[EngineSnapshot]:
    """The snapshots of the engines whose heart beats, in the order of their ids. Raises `Unavailable` where Redis is
    out of reach."""
    try:
        raw_ids = cast("list[bytes]", redis.zrange(keys.engines(pool), 0, -1))
        ids = sorted(EngineId(raw.decode()) for raw in raw_ids)
        beats = cast("list[bytes | None]", redis.mget([keys.heartbeat(id_) for id_ in ids])) if ids else []
    except (RedisError, OSError) as error:
        raise Unavailable(f"Redis is out of reach, so that nobody knows which engines live: {error}") from None
    return [snapshot for beat in beats if (snapshot := decode_or_none(decode_snapshot, beat)) is not None]


def envelope_in(engine: EngineSnapshot) -> Envelope:
    """An engine's size."""
    return Envelope(
        num_blocks=engine.kv_blocks_total,
        block_size=engine.block_size,
        max_model_len=engine.max_model_len,
        max_step_tokens=engine.max_step_tokens,
    )
