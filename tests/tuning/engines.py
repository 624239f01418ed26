"""Engines as their heartbeats tell of them."""

from __future__ import annotations

from typing import Any, cast

from redis import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId
from serving.contracts.messages import Control, EngineSnapshot, decode_control, encode
from serving.telemetry.books import Books
from serving.telemetry.frames import (
    WINDOWS_SECONDS,
    Frame,
    IntervalSummaries,
    Share,
    Side,
    TrialFigures,
    encode_frame,
)
from serving.telemetry.sketches import IntervalSummary
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


def write_frame(
    redis: Redis, *, version: int, engine_id: str, seconds_ago: float = 0.0, tried: int = 40, others: int = 50
) -> None:
    """The monitor's last frame, in which an engine tries a version: so many requests of it, and of the others."""
    seconds, _ = cast("tuple[int, int]", redis.time())
    trial = TrialFigures(
        version=version,
        engine_id=EngineId(engine_id),
        since=seconds - 30.0,
        seconds=30,
        tried=_side(tried, seconds=0.1),
        others=_side(others, seconds=0.2),
    )
    frame = Frame(
        sequence=1,
        unix_seconds=seconds - seconds_ago,
        pool=POOL,
        windows=[IntervalSummaries()] * len(WINDOWS_SECONDS),
        prompt_tokens_per_second=0.0,
        generated_tokens_per_second=0.0,
        num_unread=0,
        num_unread_tokens=0,
        announced_version=1,
        engines=[],
        books=Books(counts={}, num_waiting=0, num_running=0),
        trial=trial,
    )
    redis.set(keys.frame(POOL), encode_frame(frame))


def _side(count: int, *, seconds: float) -> Side:
    same = IntervalSummary(count=count, mean=seconds, p50=seconds, p90=seconds, p95=seconds, p99=seconds)
    intervals = IntervalSummaries(queue_time_seconds=same, ttft_seconds=same, itl_seconds=same, e2e_seconds=same)
    return Side(whole=Share(intervals=intervals, ended={"finished:stop": count}))
