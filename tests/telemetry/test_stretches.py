"""Stretches of ten seconds: each once it is over, whoever watches, and none of what nobody saw."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import OwnerId
from serving.telemetry.history import add_point
from serving.telemetry.intervals import IntervalRecorder, encode_batch
from serving.telemetry.measurements import Measurements
from serving.telemetry.rollups import StretchEntry
from serving.telemetry.stretches import Stretches
from tests.telemetry.chronicles import read_chronicle
from tests.telemetry.conftest import POOL, Clock
from tests.telemetry.test_rollups import point_at

BEGINNING = 1_750_000_000
"""A whole ten seconds."""


async def measure(redis: Redis, *ttfts: float, at: float, owner: str = "web-1") -> None:
    """A batch that was written at a time of its own, which must not be before the last one's."""
    recorder = IntervalRecorder(owner_id=OwnerId(owner), pool=POOL, clock=Clock())
    for seconds in ttfts:
        recorder.count_submitted()
        recorder.record_ttft(seconds)
    batch = recorder.flush()
    assert batch is not None
    await redis.xadd(keys.intervals(POOL), {keys.FIELD: encode_batch(batch)}, id=f"{int(at * 1000)}-0")


class Watcher:
    """A monitor's part that sums up."""

    def __init__(self, redis: Redis) -> None:
        self.measured = Measurements(redis, POOL)
        self.stretches = Stretches(redis, POOL, measured=self.measured)

    async def look(self, *, now: int) -> None:
        """As many frames as a quarter of an hour may take to be summed up."""
        await self.measured.read(now=now)
        for _ in range(10):
            await self.stretches.close_due(now=now)


async def stretches_of(redis: Redis) -> list[StretchEntry]:
    return [entry for entry in await read_chronicle(redis) if isinstance(entry, StretchEntry)]


async def test_stretch_is_summed_up_once_it_is_over_and_its_grace_too(redis: Redis) -> None:
    watcher = Watcher(redis)
    await measure(redis, 0.1, 0.2, at=BEGINNING + 1, owner="web-1")
    await measure(redis, 0.3, at=BEGINNING + 9.9, owner="web-2")
    await measure(redis, 5.0, at=BEGINNING + 10, owner="web-3")
    await watcher.look(now=BEGINNING)
    await watcher.look(now=BEGINNING + 11)
    assert await stretches_of(redis) == []
    for second in (12, 13, 21):
        await watcher.look(now=BEGINNING + second)
    (entry,) = await stretches_of(redis)
    assert (entry.pool, entry.starts_at) == (POOL, BEGINNING)
    assert (entry.content.intervals.ttft.count, entry.content.counts) == (3, {"submitted": 3})


async def test_points_of_the_stretch_become_its_gauges(redis: Redis) -> None:
    watcher = Watcher(redis)
    for second in (-1, 0, 5, 9, 10):
        pipe = redis.pipeline()
        add_point(pipe, POOL, point_at(BEGINNING + second + 0.5, num_running=1 + abs(second)))
        await pipe.execute()
    # Points have the ids of the time at which they were written; here that is not theirs.
    rows = await redis.xrange(keys.history(POOL))
    await redis.delete(keys.history(POOL))
    for second, (_, fields) in zip((-1, 0, 5, 9, 10), rows, strict=True):
        await redis.xadd(keys.history(POOL), fields, id=f"{(BEGINNING + second) * 1000 + 600}-0")
    await watcher.look(now=BEGINNING + 12)
    gauge = {entry.starts_at: entry.content for entry in await stretches_of(redis)}[BEGINNING].gauges["num_running"]
    assert (gauge.num, gauge.total, gauge.highest) == (3, 17.0, 10.0)


async def test_stretches_in_which_nothing_is_known_are_left_out(redis: Redis) -> None:
    watcher = Watcher(redis)
    await measure(redis, 0.1, at=BEGINNING + 1)
    await watcher.look(now=BEGINNING + 12)
    await measure(redis, 0.1, at=BEGINNING + 55, owner="web-2")
    await watcher.look(now=BEGINNING + 75)
    assert [entry.starts_at for entry in await stretches_of(redis)] == [BEGINNING, BEGINNING + 50]


async def test_next_monitor_goes_on_where_the_one_before_ended(redis: Redis) -> None:
    await measure(redis, 0.1, at=BEGINNING + 1)
    first = Watcher(redis)
    await first.look(now=BEGINNING + 12)
    await measure(redis, 0.2, at=BEGINNING + 13, owner="web-2")
    second = Watcher(redis)
    await second.look(now=BEGINNING + 22)
    assert [entry.starts_at for entry in await stretches_of(redis)] == [BEGINNING, BEGINNING + 10]


async def test_two_monitors_make_the_same_of_a_stretch(redis: Redis) -> None:
    await measure(redis, 0.1, 0.7, at=BEGINNING + 1)
    await Watcher(redis).look(now=BEGINNING + 12)
    await redis.delete(keys.rolled_up(POOL))
    await Watcher(redis).look(now=BEGINNING + 25)
    first, second = await stretches_of(redis)
    assert first == second


async def test_monitor_that_comes_late_sums_up_a_quarter_of_an_hour_in_pieces(redis: Redis) -> None:
    for second in range(5, 1200, 10):
        await measure(redis, 0.1, at=BEGINNING + second, owner=f"web-{second}")
    watcher, now, counts = Watcher(redis), BEGINNING + 1200, []
    await watcher.measured.read(now=now)
    for _ in range(10):
        await watcher.stretches.close_due(now=now)
        counts.append(len(await stretches_of(redis)))
    assert counts[:2] == [10, 20]
    assert [entry.starts_at for entry in await stretches_of(redis)] == list(range(BEGINNING + 300, now - 10, 10))


async def test_clock_that_jumps_ahead_leaves_a_gap(redis: Redis) -> None:
    watcher = Watcher(redis)
    await measure(redis, 0.1, at=BEGINNING + 1)
    await watcher.look(now=BEGINNING + 12)
    await measure(redis, 0.1, at=BEGINNING + 86_401, owner="web-2")
    await watcher.look(now=BEGINNING + 86_412)
    assert [entry.starts_at for entry in await stretches_of(redis)] == [BEGINNING, BEGINNING + 86_400]


@pytest.mark.parametrize("content", [b"\xc1", b"\xa3abc"])
async def test_unreadable_place_of_the_monitor_before_is_as_none(redis: Redis, content: bytes) -> None:
    await redis.set(keys.rolled_up(POOL), content)
    await measure(redis, 0.1, at=BEGINNING + 1)
    await Watcher(redis).look(now=BEGINNING + 12)
    assert [entry.starts_at for entry in await stretches_of(redis)] == [BEGINNING]
