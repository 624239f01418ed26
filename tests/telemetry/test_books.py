"""The books balance whatever happens to their owners or to Redis."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import OwnerId
from serving.telemetry.books import Books, LostOwners, read_books
from serving.telemetry.intervals import IntervalRecorder
from serving.telemetry.publisher import publish
from tests.telemetry.actions import beat_owner
from tests.telemetry.conftest import POOL, Clock


class Owner:
    """An owner with one request finished, one running and one waiting, all published."""

    def __init__(self, redis: Redis, name: str, clock: Clock) -> None:
        self.redis, self.name = redis, name
        self.recorder = IntervalRecorder(owner_id=OwnerId(name), pool=POOL, clock=clock)

    async def work(self) -> None:
        for _ in range(3):
            self.recorder.count_submitted()
        self.recorder.count_scheduled()
        self.recorder.count_ended("finished:stop", was_running=True)
        self.recorder.count_scheduled()
        await self.publish()
        await beat_owner(self.redis, self.name)

    async def publish(self) -> None:
        batch = self.recorder.flush()
        assert batch is not None
        await publish(self.redis, batch)

    async def die(self) -> None:
        await self.redis.delete(keys.owner_alive(OwnerId(self.name)))


@pytest.fixture
async def owners(redis: Redis, clock: Clock) -> tuple[Owner, Owner]:
    first, second = Owner(redis, "web-1", clock), Owner(redis, "web-2", clock)
    await first.work()
    await second.work()
    return first, second


BOTH = Books(counts={"finished:stop": 2, "submitted": 6}, num_waiting=2, num_running=2)
ONE_LOST = Books(counts={"failed:owner_lost": 2, "finished:stop": 2, "submitted": 6}, num_waiting=1, num_running=1)


async def pass_time(lost_owners: LostOwners, clock: Clock, seconds: float) -> None:
    for _ in range(2):
        await lost_owners.settle(now=clock.now)
        clock.now += seconds
    await lost_owners.settle(now=clock.now)


def balance(books: Books) -> int:
    ended = sum(count for name, count in books.counts.items() if ":" in name or name == "aborted")
    return books.counts["submitted"] - ended - books.num_waiting - books.num_running


@pytest.mark.usefixtures("owners")
async def test_books_are_the_sum_over_owners(redis: Redis) -> None:
    assert await read_books(redis, POOL) == BOTH


async def test_batch_written_twice_counts_once(redis: Redis, clock: Clock) -> None:
    recorder = IntervalRecorder(owner_id=OwnerId("web-1"), pool=POOL, clock=clock)
    recorder.count_submitted()
    batch = recorder.flush()
    assert batch is not None
    await publish(redis, batch)
    await publish(redis, batch)
    assert (await read_books(redis, POOL)).counts == {"submitted": 1}


async def test_requests_of_an_owner_that_died_end_as_failed(
    redis: Redis, clock: Clock, owners: tuple[Owner, Owner]
) -> None:
    lost_owners = LostOwners(redis, POOL)
    await owners[0].die()
    await pass_time(lost_owners, clock, 10)
    assert await read_books(redis, POOL) == ONE_LOST
    await pass_time(lost_owners, clock, 10)
    assert await read_books(redis, POOL) == ONE_LOST


async def test_owner_is_not_given_up_early(redis: Redis, clock: Clock, owners: tuple[Owner, Owner]) -> None:
    lost_owners = LostOwners(redis, POOL)
    await owners[0].die()
    await pass_time(lost_owners, clock, 7)
    assert await read_books(redis, POOL) == BOTH


async def test_owner_that_still_publishes_is_not_given_up(
    redis: Redis, clock: Clock, owners: tuple[Owner, Owner]
) -> None:
    lost_owners = LostOwners(redis, POOL)
    await owners[0].die()
    await pass_time(lost_owners, clock, 7)
    owners[0].recorder.count_submitted()
    await owners[0].publish()
    await pass_time(lost_owners, clock, 7)
    assert "failed:owner_lost" not in (await read_books(redis, POOL)).counts


async def test_silence_while_redis_was_out_of_reach_does_not_count(
    redis: Redis, clock: Clock, owners: tuple[Owner, Owner]
) -> None:
    lost_owners = LostOwners(redis, POOL)
    await owners[0].die()
    await pass_time(lost_owners, clock, 7)
    lost_owners.forget()
    await pass_time(lost_owners, clock, 7)
    assert await read_books(redis, POOL) == BOTH


async def test_owner_given_up_in_error_has_its_own_books_again(
    redis: Redis, clock: Clock, owners: tuple[Owner, Owner]
) -> None:
    await owners[0].die()
    await pass_time(LostOwners(redis, POOL), clock, 10)
    owners[0].recorder.count_ended("aborted", was_running=True)
    await owners[0].publish()
    books = await read_books(redis, POOL)
    assert books == Books(counts={"aborted": 1, "finished:stop": 2, "submitted": 6}, num_waiting=2, num_running=1)


async def test_owner_is_forgotten_long_after_and_its_counts_stay(
    redis: Redis, clock: Clock, owners: tuple[Owner, Owner]
) -> None:
    lost_owners = LostOwners(redis, POOL)
    await owners[0].die()
    await pass_time(lost_owners, clock, 10)
    await pass_time(lost_owners, clock, 500)
    assert set(await redis.hkeys(keys.outcomes(POOL))) == {
        b"owner:web-2",
        b"submitted",
        b"finished:stop",
        b"failed:owner_lost",
    }
    assert await read_books(redis, POOL) == ONE_LOST


async def test_living_owners_restore_their_books_after_redis_lost_everything(
    redis: Redis, clock: Clock, owners: tuple[Owner, Owner]
) -> None:
    await redis.flushall()
    clock.now += 5
    for owner in owners:
        await owner.publish()
        assert balance(await read_books(redis, POOL)) == 0
    assert await read_books(redis, POOL) == BOTH
