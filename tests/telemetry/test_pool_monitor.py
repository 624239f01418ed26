"""What a frame holds, who is told of it, and what of it becomes history."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from serving.contracts import keys
from serving.contracts.ids import EngineId, OwnerId, PoolName
from serving.contracts.messages import AnnouncedTunables, encode
from serving.contracts.tunables import Tunables
from serving.telemetry.feed import read_history
from serving.telemetry.frames import Frame, LiveFrame, Objectives, Point
from serving.telemetry.intervals import IntervalRecorder, encode_batch
from serving.telemetry.points import live_frame_of, point_of
from serving.telemetry.pool_monitor import PoolMonitor
from serving.telemetry.publisher import publish
from serving.telemetry.selectors import pool_snapshot
from tests.telemetry.actions import beat, read_frame
from tests.telemetry.conftest import POOL, Clock, Consoles, snapshot

pytestmark = pytest.mark.waits


@pytest.fixture
def monitor(redis: Redis, consoles: Consoles) -> PoolMonitor:
    return PoolMonitor(redis, POOL, broadcast=consoles)


async def next_frame(monitor: PoolMonitor, redis: Redis) -> Frame:
    await monitor.publish_frame()
    frame = await read_frame(redis)
    assert frame is not None
    return frame


async def measure_ttfts(redis: Redis, recorder: IntervalRecorder, *, seconds_ago: int, count: int) -> None:
    for _ in range(count):
        recorder.record_ttft(0.1 * (1 + seconds_ago))
    batch = recorder.flush()
    assert batch is not None
    now, _ = await redis.time()
    await redis.xadd(keys.intervals(POOL), {keys.FIELD: encode_batch(batch)}, id=f"{(int(now) - seconds_ago) * 1000}-0")


async def test_consoles_are_told_what_is_stored(redis: Redis, monitor: PoolMonitor, consoles: Consoles) -> None:
    await beat(redis, snapshot(num_running=3, kv_blocks_used=20))
    await redis.set(keys.announced_tunables(POOL), encode(AnnouncedTunables(8, Tunables())))
    for _ in range(3):
        frame = await next_frame(monitor, redis)
        pool, sequence, content = consoles.heard[-1]
        live = msgspec.json.decode(content, type=LiveFrame)
        assert (pool, sequence) == (POOL, frame.sequence)
        assert live == live_frame_of(frame)
        assert (live.announced_version, live.point.num_running) == (8, 3)
        assert msgspec.json.decode(content)["type"] == "frame"
    assert [sequence for _, sequence, _ in consoles.heard] == [1, 2, 3]


async def test_the_share_of_prefix_hits_is_told_by_frame_and_snapshot(redis: Redis, monitor: PoolMonitor) -> None:
    await beat(redis, snapshot(uptime_seconds=1.0))
    assert (await next_frame(monitor, redis)).prefix_hit_ratio is None
    await beat(redis, snapshot(uptime_seconds=2.0, prefix_query_tokens_total=80, prefix_hit_tokens_total=20))
    assert (await next_frame(monitor, redis)).prefix_hit_ratio == pytest.approx(0.25)
    assert (await pool_snapshot(redis, POOL))["prefix_hit_ratio"] == pytest.approx(0.25)


async def test_the_share_of_guesses_kept_is_told_by_frame_and_snapshot(redis: Redis, monitor: PoolMonitor) -> None:
    await beat(redis, snapshot(uptime_seconds=1.0))
    assert (await next_frame(monitor, redis)).draft_acceptance_ratio is None
    await beat(redis, snapshot(uptime_seconds=2.0, drafted_tokens_total=80, accepted_tokens_total=60))
    assert (await next_frame(monitor, redis)).draft_acceptance_ratio == pytest.approx(0.75)
    assert (await pool_snapshot(redis, POOL))["draft_acceptance_ratio"] == pytest.approx(0.75)


async def test_each_window_holds_what_was_measured_in_it(redis: Redis, monitor: PoolMonitor) -> None:
    recorder = IntervalRecorder(owner_id=OwnerId("web-1"), pool=POOL, clock=Clock())
    for seconds_ago, count in ((850, 1000), (250, 100), (50, 10), (3, 1)):
        await measure_ttfts(redis, recorder, seconds_ago=seconds_ago, count=count)
    frame = await next_frame(monitor, redis)
    assert [window.ttft_seconds.count for window in frame.windows] == [1, 11, 111, 1111]
    assert [window.ttft_seconds.p50 for window in frame.windows] == [
        pytest.approx(0.1 * (1 + seconds_ago), rel=0.011) for seconds_ago in (3, 50, 250, 850)
    ]


async def test_what_lies_in_the_inbox_is_counted(redis: Redis, monitor: PoolMonitor) -> None:
    await redis.xadd(keys.inbox(POOL), {keys.FIELD: b"whatever it is"})
    frame = await next_frame(monitor, redis)
    assert (frame.num_unread, frame.num_unread_tokens) == (1, 0)
    assert point_of(frame).num_waiting == 1


@pytest.mark.parametrize("error", [RedisConnectionError("gone"), OSError("gone"), RuntimeError("Event loop is closed")])
async def test_frames_go_on_while_consoles_cannot_be_told(
    redis: Redis,
    monitor: PoolMonitor,
    consoles: Consoles,
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    consoles.error = error
    assert [(await next_frame(monitor, redis)).sequence for _ in range(3)] == [1, 2, 3]
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    consoles.error = None
    await monitor.publish_frame()
    assert [sequence for _, sequence, _ in consoles.heard] == [4]


async def test_frames_go_on_while_telling_consoles_hangs(redis: Redis) -> None:
    async def hang(_pool: PoolName, *, sequence: int, frame: bytes) -> None:
        await asyncio.Event().wait()

    monitor = PoolMonitor(redis, POOL, broadcast=hang)
    assert (await next_frame(monitor, redis)).sequence == 1
    assert (await next_frame(monitor, redis)).sequence == 2


async def test_one_point_a_second_becomes_history(redis: Redis, monitor: PoolMonitor) -> None:
    frames = []
    for _ in range(8):
        frames.append(await next_frame(monitor, redis))
        await asyncio.sleep(0.2)
    first_of_seconds = list({int(frame.unix_seconds): point_of(frame) for frame in reversed(frames)}.values())[::-1]
    rows = await read_history(redis, POOL, since=None)
    assert [msgspec.json.decode(row, type=Point) for row in rows] == first_of_seconds
    assert 1 < len(rows) < 8


async def test_history_goes_on_where_the_monitor_before_ended(redis: Redis, consoles: Consoles) -> None:
    for _ in range(2):
        await PoolMonitor(redis, POOL, broadcast=consoles).publish_frame()
        await asyncio.sleep(1.0)
    rows = await read_history(redis, POOL, since=None)
    times = [msgspec.json.decode(row, type=Point).unix_seconds for row in rows]
    assert len(times) == 2
    assert times[0] < times[1]


async def test_gauges_are_nought_within_four_frames_of_the_last_work(redis: Redis, monitor: PoolMonitor) -> None:
    busy = {"num_running": 4, "num_waiting": 200, "num_waiting_tokens": 9000, "kv_blocks_used": 80, "busy_ratio": 0.9}
    await beat(redis, snapshot(**busy))
    await redis.xadd(keys.inbox(POOL), {keys.FIELD: b"one more"})
    assert point_of(await next_frame(monitor, redis)).num_waiting == 201
    await beat(redis, snapshot())
    await redis.delete(keys.inbox(POOL))
    points = [point_of(await next_frame(monitor, redis)) for _ in range(4)]
    assert (points[-1].num_running, points[-1].num_waiting, points[-1].num_waiting_tokens) == (0, 0, 0)
    assert (points[-1].kv_used_ratio, points[-1].utilisation_ratio) == (0, 0)


async def test_two_hundred_streams_given_up_at_once_leave_every_gauge_at_nought(
    redis: Redis, monitor: PoolMonitor
) -> None:
    recorder = IntervalRecorder(owner_id=OwnerId("web-1"), pool=POOL, clock=Clock())
    for number in range(200):
        recorder.count_submitted()
        if number < 64:
            recorder.count_scheduled()
    await publish_of(redis, recorder)
    by_priority = {"0": 130, "5": 6}
    busy = snapshot(num_running=64, num_waiting=136, num_waiting_long=9, waiting_by_priority=by_priority)
    await beat(redis, busy)
    live = live_frame_of(await next_frame(monitor, redis))
    assert (live.outcomes["running"], live.outcomes["waiting"], balance(live)) == (64, 136, 0)
    assert (live.point.num_waiting_long, live.point.waiting_by_priority) == (9, by_priority)
    for number in range(200):
        recorder.count_ended("aborted", was_running=number < 64)
        if number == 120:  # a publication in the middle of it
            await publish_of(redis, recorder)
            assert balance(live_frame_of(await next_frame(monitor, redis))) == 0
    await publish_of(redis, recorder)
    await beat(redis, snapshot())
    live = live_frame_of(await next_frame(monitor, redis))
    assert balance(live) == 0
    assert (live.outcomes["running"], live.outcomes["waiting"], live.outcomes["aborted"]) == (0, 0, 200)
    gauges = ("num_running", "num_waiting", "num_waiting_long", "num_waiting_tokens", "kv_used_ratio")
    assert [getattr(live.point, name) for name in gauges] == [0] * len(gauges)
    assert live.point.waiting_by_priority == {}


def balance(live: LiveFrame) -> int:
    """By how much the books do not balance."""
    kinds = ("finished", "aborted", "refused", "failed", "waiting", "running")
    return live.outcomes["submitted"] - sum(
        count for name, count in live.outcomes.items() if name.partition(":")[0] in kinds
    )


async def publish_of(redis: Redis, recorder: IntervalRecorder) -> None:
    batch = recorder.flush()
    assert batch is not None
    await publish(redis, batch)


async def test_steps_outcomes_and_objectives_of_the_last_seconds_are_told(redis: Redis, monitor: PoolMonitor) -> None:
    await redis.set(
        keys.announced_tunables(POOL), encode(AnnouncedTunables(8, Tunables(slo_ttft_ms=700.0, slo_itl_ms=70.0)))
    )
    await beat(redis, snapshot(uptime_seconds=100.0))
    await monitor.publish_frame()
    recorder = IntervalRecorder(owner_id=OwnerId("web-1"), pool=POOL, clock=Clock())
    for outcome in ["finished:stop"] * 20 + ["refused:queue_full"] * 5:
        recorder.count_submitted()
        recorder.count_ended(outcome, was_running=False)
    batch = recorder.flush()
    assert batch is not None
    now, _ = await redis.time()
    await redis.xadd(keys.intervals(POOL), {keys.FIELD: encode_batch(batch)}, id=f"{(int(now) - 2) * 1000}-0")
    worked = {
        "steps_total": 50,
        "prefill_tokens_total": 5000,
        "decode_tokens_total": 400,
        "step_seconds_total": 1.5,
        "preemptions_total": 2,
    }
    await beat(redis, snapshot(uptime_seconds=104.0, **worked))
    frame = await next_frame(monitor, redis)
    point = point_of(frame)
    assert (point.prefill_tokens_per_step, point.decode_tokens_per_step, point.step_ms) == (100, 8, 30)
    assert (point.preemptions_per_second, point.finished_per_second, point.refused_per_second) == (0.5, 4, 1)
    assert (frame.refusals_per_second, point.refusals_per_second) == ({"queue_full": 1}, {"queue_full": 1})
    assert frame.slo == Objectives(ttft_ms=700.0, itl_ms=70.0)


async def test_engine_that_joins_is_marked_in_the_frames_of_the_next_minute(redis: Redis, monitor: PoolMonitor) -> None:
    await monitor.publish_frame()
    await beat(redis, snapshot("engine-2"))
    for _ in range(2):
        (event,) = (await next_frame(monitor, redis)).events
        assert (event.kind, event.subject) == ("engine_joined", "engine-2")


async def test_gauges_are_nought_once_every_engine_is_gone(redis: Redis, monitor: PoolMonitor) -> None:
    for second in range(3):
        engine = snapshot(num_running=4, generated_tokens_total=100 * second, uptime_seconds=10.0 + second)
        await beat(redis, engine)
        await monitor.publish_frame()
    assert point_of(await next_frame(monitor, redis)).generated_tokens_per_second == 100
    await redis.delete(keys.heartbeat(EngineId("engine-1")))
    point = point_of(await next_frame(monitor, redis))
    assert (point.num_running, point.generated_tokens_per_second, point.memory_bytes) == (0, 0, 0)
    assert point.tunables_version is None
