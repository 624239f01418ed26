"""What a pool's owners measured: each batch once, and owners that are gone forgotten."""

from __future__ import annotations

from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import OwnerId
from serving.telemetry.intervals import IntervalRecorder, encode_batch
from serving.telemetry.measurements import Measurements
from serving.telemetry.ring import KEPT_SECONDS
from tests.telemetry.conftest import POOL, Clock

START = 1_790_000_000


async def write(redis: Redis, owner: str, *, at: int) -> None:
    """The first batch of an owner of that name, with one request, as written at that second."""
    recorder = IntervalRecorder(owner_id=OwnerId(owner), pool=POOL, clock=Clock())
    recorder.count_submitted()
    batch = recorder.flush()
    assert batch is not None
    await redis.xadd(keys.intervals(POOL), {keys.FIELD: encode_batch(batch)}, id=f"{at * 1000}-*")


async def test_a_batch_counts_once_and_an_owner_silent_for_a_quarter_of_an_hour_is_forgotten(redis: Redis) -> None:
    measured = Measurements(redis, POOL)
    long_after = START + KEPT_SECONDS + 120
    for at, expected in ((START, 1), (START + 5, 0), (long_after, 1), (long_after + 5, 0)):
        await measured.read(now=at)
        await write(redis, "web-1", at=at)
        await measured.read(now=at)
        assert measured.tally.total(since=at, until=at + 1)["submitted"] == expected
