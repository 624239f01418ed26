"""A pool's snapshot: each figure from where it is true."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import AnnouncedTunables, SequenceKey, Submit, encode
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.telemetry.intervals import IntervalRecorder
from serving.telemetry.pool_monitor import PoolMonitor
from serving.telemetry.publisher import publish
from serving.telemetry.selectors import pool_snapshot
from tests.telemetry.actions import beat
from tests.telemetry.conftest import POOL, Clock, Consoles, snapshot

SUMMARY_OF_NOTHING = {"count": 0, "mean": None, "p50": None, "p90": None, "p95": None, "p99": None}


async def submit(redis: Redis, *, prompt: int, generated: int = 0) -> None:
    message = Submit(
        key=SequenceKey(RequestId("r"), 0),
        attempt=1,
        owner_id=OwnerId("web-1"),
        tenant="t",
        prompt_ids=[1] * prompt,
        generated_ids=[1] * generated,
        params=SamplingParams(max_tokens=5, seed=1),
    )
    await redis.xadd(keys.inbox(POOL), {keys.FIELD: encode(message)})


async def test_nothing_there_is_all_nought_and_fit_for_json(redis: Redis) -> None:
    found = await pool_snapshot(redis, POOL)
    assert json.loads(json.dumps(found)) == found
    nought: dict[str, Any] = {
        "num_engines": 0,
        "tunables_version": None,
        "applied_by": 0,
        "num_waiting": 0,
        "num_waiting_tokens": 0,
        "num_running": 0,
        "kv_blocks_total": 0,
        "prefix_query_tokens_total": 0,
        "prefix_hit_tokens_total": 0,
        "prefix_hit_ratio": None,
        "drafted_tokens_total": 0,
        "accepted_tokens_total": 0,
        "draft_acceptance_ratio": None,
        "permits_requests": 0,
        "permits_tokens": 0,
        "outcomes": {"submitted": 0, "waiting": 0, "running": 0},
        "prompt_tokens_per_second": 0.0,
        "generated_tokens_per_second": 0.0,
        "frame_age_seconds": None,
        "engines": [],
    }
    assert {name: found[name] for name in nought} == nought
    names = ("queue_time_seconds", "ttft_seconds", "itl_seconds", "e2e_seconds")
    assert found["intervals"] == dict.fromkeys(names, SUMMARY_OF_NOTHING)


async def test_gauges_are_the_sum_over_living_engines(redis: Redis) -> None:
    blocks = {"kv_blocks_total": 100, "kv_blocks_used": 30, "kv_blocks_cached": 20, "kv_blocks_free": 50}
    waiting = {"num_running": 4, "num_waiting": 2, "num_waiting_tokens": 70}
    prefixes = {"prefix_query_tokens_total": 900, "prefix_hit_tokens_total": 600}
    guesses = {"drafted_tokens_total": 90, "accepted_tokens_total": 60}
    for name in ("engine-1", "engine-2"):
        await beat(redis, snapshot(name, **blocks, **waiting, **prefixes, **guesses))
    found = await pool_snapshot(redis, POOL)
    doubled = {name: 2 * value for name, value in {**blocks, **waiting, **prefixes, **guesses}.items()}
    assert {name: found[name] for name in doubled} == doubled
    assert found["num_engines"] == 2
    assert [engine["name"] for engine in found["engines"]] == ["engine-1", "engine-2"]


async def test_tells_how_many_engines_run_the_announced_version(redis: Redis) -> None:
    await redis.set(keys.announced_tunables(POOL), encode(AnnouncedTunables(8, Tunables())))
    for name, version in (("a", 8), ("b", 7), ("c", 8)):
        await beat(redis, snapshot(name, tunables_version=version))
    found = await pool_snapshot(redis, POOL)
    assert (found["tunables_version"], found["applied_by"], found["num_engines"]) == (8, 2, 3)


async def test_what_no_engine_has_read_yet_is_waiting_too(redis: Redis) -> None:
    await submit(redis, prompt=10)
    await submit(redis, prompt=20, generated=5)
    await beat(redis, snapshot(num_waiting=1, num_waiting_tokens=7))
    found = await pool_snapshot(redis, POOL)
    assert (found["num_waiting"], found["num_waiting_tokens"]) == (3, 42)


async def test_long_inbox_is_reckoned_from_its_beginning(redis: Redis) -> None:
    for _ in range(600):
        await submit(redis, prompt=3)
    found = await pool_snapshot(redis, POOL)
    assert (found["num_waiting"], found["num_waiting_tokens"]) == (600, 1800)


async def test_permits_are_the_doors_own_totals(redis: Redis) -> None:
    await redis.hset(keys.permit_weights(POOL), mapping={"total:requests": 3, "total:tokens": 120, "p": "3:120"})
    found = await pool_snapshot(redis, POOL)
    assert (found["permits_requests"], found["permits_tokens"]) == (3, 120)


async def test_outcomes_balance_and_intervals_come_from_the_frame(redis: Redis) -> None:
    recorder = IntervalRecorder(owner_id=OwnerId("web-1"), pool=POOL, clock=Clock())
    for _ in range(3):
        recorder.count_submitted()
        recorder.count_scheduled()
        recorder.record_e2e(2.0)
    recorder.count_ended("finished:length", was_running=True)
    recorder.count_ended("aborted", was_running=True)
    recorder.count_submitted()
    recorder.count_submitted()
    recorder.count_ended("refused:queue_full", was_running=False)
    batch = recorder.flush()
    assert batch is not None
    await publish(redis, batch)
    await PoolMonitor(redis, POOL, broadcast=Consoles()).publish_frame()
    found = await pool_snapshot(redis, POOL)
    ends = {"aborted": 1, "finished:length": 1, "refused:queue_full": 1, "waiting": 1, "running": 1}
    assert found["outcomes"] == {"submitted": 5, **ends}
    assert found["intervals"]["e2e_seconds"]["count"] == 3
    assert found["intervals"]["e2e_seconds"]["p99"] == pytest.approx(2.0, rel=0.011)
    assert 0 <= found["frame_age_seconds"] < 60
