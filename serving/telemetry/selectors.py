"""Reading a pool's state: gauges from the engines themselves, percentiles from the monitor's frame."""

from __future__ import annotations

from typing import Any

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.announced import announced_version
from serving.telemetry.books import read_books
from serving.telemetry.engines import live_engines
from serving.telemetry.frames import SNAPSHOT_WINDOW_SECONDS, WINDOWS_SECONDS, IntervalSummaries, decode_frame
from serving.telemetry.inbox import count_inbox
from serving.telemetry.rejections import read_rejections

__all__ = ["live_engines", "pool_snapshot", "read_rejections"]

_SUMS = (
    *("kv_blocks_total", "kv_blocks_used", "kv_blocks_cached", "kv_blocks_free"),
    *("prefix_query_tokens_total", "prefix_hit_tokens_total", "drafted_tokens_total", "accepted_tokens_total"),
)
_WINDOW = WINDOWS_SECONDS.index(SNAPSHOT_WINDOW_SECONDS)


async def pool_snapshot(redis: Redis, pool: PoolName) -> dict[str, Any]:
    """The pool's state, ready for JSON. Errors of Redis pass through.

    - of the engines that live, each beaten within the last seconds: `num_engines`, `num_running`, `num_waiting` and
      `num_waiting_tokens` (sequences and their tokens, those still in the inbox included), `kv_blocks_total`, `…_used`
      (held by live sequences), `…_cached`, `…_free`, `prefix_query_tokens_total` and `prefix_hit_tokens_total` (context
      tokens of sequences that started, and those found cached), `drafted_tokens_total` and `accepted_tokens_total`
      (tokens guessed, and those that were right), and `engines`, the list of their own snapshots;
    - `tunables_version`, the version announced (None: none is), and `applied_by`, the number of engines that run it;
    - `permits_requests` and `permits_tokens`: what the door counts as waiting;
    - `outcomes`: counters of requests by name, over all owners, since Redis began to count, and the requests that have
      not ended, as their owners see them, so that these books balance by themselves: submitted = finished + aborted +
      refused + failed + waiting + running. (`num_waiting` and `num_running` above are the engines', in sequences.)
    - `rejected`: requests that were refused before any pool had them, by code, over all pools: they are in no pool's
      books;
    - of the monitor's last frame: `intervals`, the last minute's count, mean and percentiles in seconds by name (None
      where nothing was measured), `prompt_tokens_per_second`, `generated_tokens_per_second`, `prefix_hit_ratio` (of the
      last few seconds; None where nothing started), `draft_acceptance_ratio` (likewise; None where nothing was
      guessed), and `frame_age_seconds` (None: there is no frame, and then the intervals are empty).
    """
    engines = await live_engines(redis, pool)
    num_unread, num_unread_tokens = await count_inbox(redis, pool)
    version = await announced_version(redis, pool)
    books = await read_books(redis, pool)
    return {
        "pool": pool,
        "num_engines": len(engines),
        "tunables_version": version,
        "applied_by": sum(engine.tunables_version == version for engine in engines),
        "num_waiting": num_unread + sum(engine.num_waiting for engine in engines),
        "num_waiting_tokens": num_unread_tokens + sum(engine.num_waiting_tokens for engine in engines),
        "num_running": sum(engine.num_running for engine in engines),
        **_add_up(engines),
        **await _read_permits(redis, pool),
        "outcomes": {**books.counts, "waiting": books.num_waiting, "running": books.num_running},
        "rejected": await read_rejections(redis),
        **await _read_frame(redis, pool),
        "engines": msgspec.to_builtins(engines),
    }


def _add_up(engines: list[EngineSnapshot]) -> dict[str, int]:
    return {name: sum(getattr(engine, name) for engine in engines) for name in _SUMS}


async def _read_permits(redis: Redis, pool: PoolName) -> dict[str, int]:
    fields = ["total:requests", "total:tokens"]
    requests, tokens = await redis.hmget(keys.permit_weights(pool), fields)
    return {"permits_requests": int(requests or 0), "permits_tokens": int(tokens or 0)}


async def _read_frame(redis: Redis, pool: PoolName) -> dict[str, Any]:
    frame = decode_or_none(decode_frame, await redis.get(keys.frame(pool)))
    intervals = IntervalSummaries() if frame is None else frame.windows[_WINDOW]
    seconds, microseconds = await redis.time()
    age = None if frame is None else max(0.0, seconds + microseconds / 1e6 - frame.unix_seconds)
    return {
        "intervals": msgspec.to_builtins(intervals),
        "prompt_tokens_per_second": 0.0 if frame is None else frame.prompt_tokens_per_second,
        "generated_tokens_per_second": 0.0 if frame is None else frame.generated_tokens_per_second,
        "prefix_hit_ratio": None if frame is None else frame.prefix_hit_ratio,
        "draft_acceptance_ratio": None if frame is None else frame.draft_acceptance_ratio,
        "frame_age_seconds": age,
    }
