"""Many pools at one moment, for whoever looks at all of them every few seconds: two calls of Redis, however many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import AnnouncedTunables, EngineSnapshot, decode_announced, decode_snapshot


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as Redis has it: what no engine has read yet (sequences), what the door counts as waiting, the tunables
    that engines are told to run (None: none are), and the engines whose heart beats, in the order of their ids."""

    pool: PoolName
    num_unread: int
    permits_requests: int
    permits_tokens: int
    announced: AnnouncedTunables | None
    engines: list[EngineSnapshot]


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """All pools, and whether a monitor is at work."""

    pools: list[PoolState]
    has_monitor: bool


async def read_surroundings(redis: Redis, pools: Sequence[PoolName]) -> Surroundings:
    """The pools in the order given. Writes nothing; errors of Redis pass through."""
    pipe = redis.pipeline(transaction=False)
    pipe.exists(keys.monitor_lease())
    for pool in pools:
        pipe.zrange(keys.engines(pool), 0, -1)
        pipe.xlen(keys.inbox(pool))
        pipe.hmget(keys.permit_weights(pool), ["total:requests", "total:tokens"])
        pipe.get(keys.announced_tunables(pool))
    has_monitor, *answers = await pipe.execute()
    ids = [[EngineId(raw.decode()) for raw in raw_ids] for raw_ids in answers[::4]]
    beats = await _read_heartbeats(redis, [id_ for each in ids for id_ in each])
    return Surroundings(
        has_monitor=bool(has_monitor),
        pools=[
            PoolState(
                pool=pool,
                num_unread=int(num_unread),
                permits_requests=int(permits[0] or 0),
                permits_tokens=int(permits[1] or 0),
                announced=decode_or_none(decode_announced, announced),
                engines=_those_that_beat(own_ids, beats),
            )
            for pool, own_ids, num_unread, permits, announced in zip(
                pools, ids, answers[1::4], answers[2::4], answers[3::4], strict=True
            )
        ],
    )


async def _read_heartbeats(redis: Redis, ids: Sequence[EngineId]) -> dict[EngineId, Any]:
    if not ids:
        return {}
    beats = cast("list[bytes | None]", await redis.mget([keys.heartbeat(id_) for id_ in ids]))
    return dict(zip(ids, beats, strict=True))


def _those_that_beat(ids: Iterable[EngineId], beats: dict[EngineId, Any]) -> list[EngineSnapshot]:
    snapshots = (decode_or_none(decode_snapshot, beats[id_]) for id_ in sorted(ids))
    return [snapshot for snapshot in snapshots if snapshot is not None]
