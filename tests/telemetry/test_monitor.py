"""The monitor against a real Valkey: frames, take-over, and what it does when Redis or the database goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import OwnerId, PoolName
from serving.contracts.messages import AnnouncedTunables, Retune
from serving.contracts.tunables import Tunables
from serving.telemetry.intervals import IntervalRecorder
from serving.telemetry.monitor import Monitor
from serving.telemetry.publisher import publish
from serving.telemetry.rounds import Rounds
from tests.telemetry.actions import beat, read_frame, sent_to, until
from tests.telemetry.conftest import POOL, Clock, Consoles, snapshot
from tests.telemetry.database import STORED, Database
from tests.telemetry.server import Server

pytestmark = pytest.mark.waits


class RunningMonitor:
    """A monitor at work, until `stop`."""

    def __init__(self, redis: Redis, database: Database) -> None:
        self._stopping = asyncio.Event()
        monitor = Monitor(redis, stored_tunables=database.read, broadcast=Consoles())
        self.task = asyncio.create_task(monitor.run(self._stopping))

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.wait_for(self.task, 10)


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
async def start_monitor(database: Database) -> AsyncIterator[Callable[[Redis], RunningMonitor]]:
    """Starts monitors; all have stopped when the test ends."""
    started: list[RunningMonitor] = []

    def start(redis: Redis) -> RunningMonitor:
        started.append(RunningMonitor(redis, database))
        return started[-1]

    yield start
    for monitor in started:
        await monitor.stop()


async def publish_ttfts(redis: Redis, owner: str, *ttfts: float) -> None:
    recorder = IntervalRecorder(owner_id=OwnerId(owner), pool=POOL, clock=Clock())
    for ttft in ttfts:
        recorder.count_submitted()
        recorder.count_scheduled()
        recorder.record_ttft(ttft)
    batch = recorder.flush()
    assert batch is not None
    await publish(redis, batch)
    await publish(redis, batch)  # as by an owner that did not hear of its success


async def has_frame(redis: Redis) -> bool:
    return await read_frame(redis) is not None


async def test_frame_merges_owners_and_engines(redis: Redis, start_monitor: Callable[[Redis], RunningMonitor]) -> None:
    await publish_ttfts(redis, "web-1", *[0.1] * 50)
    await publish_ttfts(redis, "web-2", *[0.3] * 50)
    await beat(redis, snapshot(tunables_version=3, num_running=2))
    start_monitor(redis)
    await until(lambda: has_frame(redis))
    frame = await read_frame(redis)
    assert frame is not None
    ttft = frame.windows[1].ttft_seconds
    assert (ttft.count, ttft.mean) == (100, pytest.approx(0.2))
    assert (ttft.p50, ttft.p95) == (pytest.approx(0.1, rel=0.011), pytest.approx(0.3, rel=0.011))
    assert [engine.num_running for engine in frame.engines] == [2]
    assert (frame.books.counts, frame.books.num_running) == ({"submitted": 100}, 100)


async def test_frames_are_numbered_on_and_a_new_monitor_knows_the_last_minute(
    redis: Redis, start_monitor: Callable[[Redis], RunningMonitor]
) -> None:
    first = start_monitor(redis)
    await publish_ttfts(redis, "web-1", 0.1)

    async def sequence() -> int:
        frame = await read_frame(redis)
        return 0 if frame is None else frame.sequence

    async def reached(number: int) -> bool:
        return await sequence() >= number

    await until(lambda: reached(3))
    await first.stop()
    before = await sequence()
    second = start_monitor(redis)

    async def went_on() -> bool:
        return await sequence() != before

    await until(went_on)
    frame = await read_frame(redis)
    assert frame is not None
    assert frame.sequence > before
    assert frame.windows[1].ttft_seconds.count == 1
    await second.stop()


async def test_second_monitor_waits_and_takes_over_when_the_first_one_leaves(
    redis: Redis, start_monitor: Callable[[Redis], RunningMonitor]
) -> None:
    first = start_monitor(redis)
    await until(lambda: has_frame(redis))
    holder = await redis.get(keys.monitor_lease())
    second = start_monitor(redis)
    await asyncio.sleep(1.2)
    assert await redis.get(keys.monitor_lease()) == holder
    await first.stop()
    await redis.delete(keys.frame(POOL))
    await until(lambda: has_frame(redis))
    assert await redis.get(keys.monitor_lease()) not in (None, holder)
    await second.stop()
    assert await redis.get(keys.monitor_lease()) is None


async def test_engine_of_another_version_is_sent_what_is_stored(
    redis: Redis, start_monitor: Callable[[Redis], RunningMonitor]
) -> None:
    engine = snapshot(tunables_version=2)
    await beat(redis, engine)
    start_monitor(redis)

    async def told() -> bool:
        return await sent_to(redis, engine) == [Retune(3, STORED.tunables)]

    await until(told)


async def test_heals_a_redis_that_lost_everything(
    redis: Redis, start_monitor: Callable[[Redis], RunningMonitor]
) -> None:
    start_monitor(redis)

    async def announced() -> bool:
        return await redis.get(keys.announced_tunables(POOL)) is not None

    await until(announced)
    await redis.flushall()
    await until(announced)
    await until(lambda: has_frame(redis))


@pytest.mark.waits
async def test_frames_go_on_without_the_database(
    redis: Redis, database: Database, start_monitor: Callable[[Redis], RunningMonitor]
) -> None:
    start_monitor(redis)
    await until(lambda: has_frame(redis))
    database.works = False
    await asyncio.sleep(2.5)  # longer than from round to round
    await redis.delete(keys.frame(POOL))
    await until(lambda: has_frame(redis))
    database.works = True
    database.stored = {POOL: AnnouncedTunables(4, Tunables())}
    engine = snapshot(tunables_version=3)
    await beat(redis, engine)

    async def told() -> bool:
        return Retune(4, Tunables()) in await sent_to(redis, engine)

    await until(told)


async def test_frames_go_on_while_the_database_hangs(
    redis: Redis, database: Database, start_monitor: Callable[[Redis], RunningMonitor]
) -> None:
    database.stored = {POOL: STORED, PoolName("second"): STORED, PoolName("third"): STORED}
    start_monitor(redis)
    await until(lambda: has_frame(redis))
    database.hangs = True
    num_questions = database.num_questions

    async def asked() -> bool:
        return database.num_questions > num_questions

    await until(asked)
    await redis.delete(keys.frame(POOL))
    await until(lambda: has_frame(redis))
    assert (database.num_questions, database.num_given_up) == (num_questions + 1, 0)


async def test_monitor_that_takes_over_without_the_database_publishes_frames(
    redis: Redis, database: Database, start_monitor: Callable[[Redis], RunningMonitor]
) -> None:
    first = start_monitor(redis)
    await until(lambda: has_frame(redis))
    database.works = False
    second = start_monitor(redis)
    await first.stop()
    await redis.delete(keys.frame(POOL))
    await until(lambda: has_frame(redis))
    await second.stop()


async def test_monitor_that_lost_its_lease_breaks_its_round_off(
    redis: Redis,
    database: Database,
    start_monitor: Callable[[Redis], RunningMonitor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serving.telemetry.rounds._DATABASE_SECONDS", 600.0)
    database.hangs = True
    monitor = start_monitor(redis)

    async def waits() -> bool:
        return database.num_questions > database.num_given_up

    async def given_up() -> bool:
        return database.num_questions == database.num_given_up

    await until(waits)
    await redis.set(keys.monitor_lease(), b"another monitor")
    await until(given_up)
    num_questions = database.num_questions
    await asyncio.sleep(0.6)  # longer than from frame to frame
    assert database.num_questions == num_questions
    await redis.delete(keys.monitor_lease())
    await until(waits)
    await monitor.stop()
    assert database.num_questions == database.num_given_up


async def test_unreadable_batch_costs_no_other_its_place(
    redis: Redis, start_monitor: Callable[[Redis], RunningMonitor]
) -> None:
    await redis.xadd(keys.intervals(POOL), {keys.FIELD: b"\xc1"})
    await redis.xadd(keys.intervals(POOL), {b"other": b"field"})
    await publish_ttfts(redis, "web-1", 0.1)
    start_monitor(redis)
    await until(lambda: has_frame(redis))
    frame = await read_frame(redis)
    assert frame is not None
    assert frame.windows[1].ttft_seconds.count == 1


@pytest.mark.waits
async def test_works_on_within_ten_seconds_of_a_redis_that_came_back_empty(
    server: Server, start_monitor: Callable[[Redis], RunningMonitor]
) -> None:
    server.start()
    async with Redis.from_url(server.url) as redis:
        monitor = start_monitor(redis)
        await until(lambda: has_frame(redis))
        server.kill()
        await asyncio.sleep(3)
        assert not monitor.task.done()
        server.start_empty()
        await until(lambda: has_frame(redis), seconds=10)
        await monitor.stop()


async def test_silences_begin_anew_while_redis_is_out_of_reach(
    tmp_path: Path, start_monitor: Callable[[Redis], RunningMonitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten = asyncio.Event()
    monkeypatch.setattr(Rounds, "forget_silences", lambda _rounds: forgotten.set())
    async with Redis.from_url(f"unix://{tmp_path / 'nobody.sock'}") as redis:
        monitor = start_monitor(redis)
        await asyncio.wait_for(forgotten.wait(), 20)
        await monitor.stop()


async def test_stops_while_redis_is_out_of_reach(
    tmp_path: Path, start_monitor: Callable[[Redis], RunningMonitor]
) -> None:
    async with Redis.from_url(f"unix://{tmp_path / 'nobody.sock'}") as redis:
        monitor = start_monitor(redis)
        await asyncio.sleep(0.3)
        await monitor.stop()
        assert monitor.task.exception() is None
