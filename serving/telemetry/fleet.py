"""The whole fleet at one moment: pools with their engines, and processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot, decode_announced, decode_snapshot
from serving.telemetry.processes import SeenProcess, read_processes


class SeenEngine(msgspec.Struct, frozen=True):
    """An engine whose heart beats, and how long ago it beat last."""

    snapshot: EngineSnapshot
    seconds_ago: float


class PoolFleet(msgspec.Struct, frozen=True, kw_only=True):
    """A pool's engines in the order of their names and ids, the tunables' version that they are told to run (None: none
    is announced), and the sequences that no engine has read yet."""

    pool: PoolName
    announced_version: int | None
    num_unread: int
    engines: list[SeenEngine]


class Fleet(msgspec.Struct, frozen=True):
    """All pools and all processes of the last hour."""

    pools: list[PoolFleet]
    processes: list[SeenProcess]


async def read_fleet(redis: Redis, pools: Sequence[PoolName]) -> Fleet:
    """The fleet, its pools in the order given. Writes nothing; errors of Redis pass through."""
    pipe = redis.pipeline(transaction=False)
    pipe.time()
    for pool in pools:
        pipe.zrange(keys.engines(pool), 0, -1, withscores=True)
        pipe.xlen(keys.inbox(pool))
        pipe.get(keys.announced_tunables(pool))
    (seconds, microseconds), *answers = await pipe.execute()
    now = seconds + microseconds / 1e6
    scored = [{EngineId(raw.decode()): score for raw, score in each} for each in answers[::3]]
    beats = await _read_beats(redis, [engine_id for each in scored for engine_id in each])
    return Fleet(
        pools=[
            PoolFleet(
                pool=pool,
                announced_version=_version_of(announced),
                num_unread=int(num_unread),
                engines=_living(beat_at, beats, now=now),
            )
            for pool, beat_at, num_unread, announced in zip(pools, scored, answers[1::3], answers[2::3], strict=True)
        ],
        processes=await read_processes(redis),
    )


def _version_of(announced: bytes | None) -> int | None:
    known = decode_or_none(decode_announced, announced)
    return None if known is None else known.version


async def _read_beats(redis: Redis, ids: Sequence[EngineId]) -> dict[EngineId, Any]:
    if not ids:
        return {}
    beats = cast("list[bytes | None]", await redis.mget([keys.heartbeat(id_) for id_ in ids]))
    return dict(zip(ids, beats, strict=True))


def _living(beat_at: dict[EngineId, float], beats: dict[EngineId, Any], *, now: float) -> list[SeenEngine]:
    decoded = [(decode_or_none(decode_snapshot, beats[engine_id]), at) for engine_id, at in beat_at.items()]
    engines = [SeenEngine(snapshot, max(0.0, now - at)) for snapshot, at in decoded if snapshot is not None]
    return sorted(engines, key=lambda engine: (engine.snapshot.name, engine.snapshot.engine_id))
