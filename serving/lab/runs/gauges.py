"""What the engines of pools tell of themselves, as gauges of a run."""

from __future__ import annotations

import dataclasses

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineSnapshot
from serving.lab.recording import Gauges
from serving.telemetry.engines import live_engines
from serving.telemetry.inbox import count_inbox


class PoolGauges:
    """Reads the heartbeats of a pool, or of several together; owns nothing. On the event loop of `redis`."""

    def __init__(self, redis: Redis, *pools: PoolName) -> None:
        self._redis = redis
        self._pools = pools

    async def read(self) -> Gauges | None:
        """The engines added up; None where Redis does not answer, or no engine lives."""
        engines: list[EngineSnapshot] = []
        num_unread = requests = tokens = 0
        try:
            for pool in self._pools:
                engines += await live_engines(self._redis, pool)
                num_unread += (await count_inbox(self._redis, pool))[0]
                permits = await self._redis.hmget(keys.permit_weights(pool), ["total:requests", "total:tokens"])
                requests, tokens = requests + int(permits[0] or 0), tokens + int(permits[1] or 0)
        except (RedisError, OSError):
            return None
        if not engines:
            return None
        gauges = gauges_of(engines, num_unread=num_unread)
        return dataclasses.replace(gauges, permits_requests=requests, permits_tokens=tokens)


def gauges_of(engines: list[EngineSnapshot], *, num_unread: int) -> Gauges:
    """Some engines added up, with what waits in their inbox; ratios are means."""
    total = sum(engine.kv_blocks_total for engine in engines)
    told = [engine.accelerator_ratio for engine in engines if engine.accelerator_ratio is not None]
    # Of a device that engines share each tells all.
    memory = {engine.accelerator_id or engine.engine_id: engine.accelerator_memory_bytes for engine in engines}
    known = [size for size in memory.values() if size is not None]
    return Gauges(
        num_running=sum(engine.num_running for engine in engines),
        num_waiting=num_unread + sum(engine.num_waiting for engine in engines),
        kv_used_ratio=sum(engine.kv_blocks_used for engine in engines) / total if total else None,
        busy_ratio=sum(engine.busy_ratio for engine in engines) / len(engines),
        accelerator_ratio=sum(told) / len(told) if told else None,
        host_memory_bytes=sum(engine.rss_bytes for engine in engines),
        device_memory_bytes=sum(known) if known else None,
        preemptions=sum(engine.preemptions_total for engine in engines),
        padded_tokens=sum(engine.padded_tokens_total - engine.idle_slot_steps_total for engine in engines),
        idle_slot_steps=sum(engine.idle_slot_steps_total for engine in engines),
    )
