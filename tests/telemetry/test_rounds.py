"""The monitor's rounds: one at a time, in the background, with whatever the database tells or does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from serving.contracts import keys
from serving.contracts.ids import EngineId, OwnerId, PoolName
from serving.contracts.messages import AnnouncedTunables, Retune
from serving.contracts.tunables import Tunables
from serving.telemetry.books import read_books
from serving.telemetry.intervals import IntervalRecorder
from serving.telemetry.publisher import publish
from serving.telemetry.reconciler import Trial
from serving.telemetry.rounds import Rounds
from tests.telemetry.actions import beat, sent_to, until
from tests.telemetry.conftest import POOL, Clock, snapshot
from tests.telemetry.database import STORED, Database

OTHER = PoolName("other")


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
async def rounds(redis: Redis, database: Database, clock: Clock) -> AsyncIterator[Rounds]:
    rounds = Rounds(redis, stored_tunables=database.read, clock=clock)
    yield rounds
    await rounds.end()


async def test_what_is_tried_is_known_as_the_database_said_last(rounds: Rounds, database: Database) -> None:
    database.trial = Trial(EngineId("engine-1"), AnnouncedTunables(4, Tunables()), since=10.0)
    await rounds.make_round()
    assert rounds.trial_of(POOL) == database.trial
    database.works = False
    await rounds.make_round()
    assert rounds.trial_of(POOL) == database.trial
    database.works, database.trial = True, None
    await rounds.make_round()
    assert rounds.trial_of(POOL) is None


def new_rounds(redis: Redis, database: Database) -> Rounds:
    """Those of a monitor that has just taken over."""
    return Rounds(redis, stored_tunables=database.read, clock=Clock())


async def submit_for_an_owner_that_dies(redis: Redis, clock: Clock) -> None:
    recorder = IntervalRecorder(owner_id=OwnerId("web-1"), pool=POOL, clock=clock)
    recorder.count_submitted()
    batch = recorder.flush()
    assert batch is not None
    await publish(redis, batch)


async def num_lost(redis: Redis) -> int:
    return (await read_books(redis, POOL)).counts.get("failed:owner_lost", 0)


async def test_one_round_is_made_at_a_time_and_only_when_it_is_due(
    rounds: Rounds, database: Database, clock: Clock
) -> None:
    async def asked_again() -> bool:
        rounds.start_if_due()  # the round before may not have ended yet
        return database.num_questions == 2

    async def knows_the_pools() -> bool:
        return rounds.pools == (POOL,)

    rounds.start_if_due()
    await until(knows_the_pools)
    clock.now += 1.9
    rounds.start_if_due()
    await asyncio.sleep(0)
    assert database.num_questions == 1
    database.hangs = True
    clock.now += 0.2
    await until(asked_again)
    clock.now += 60
    rounds.start_if_due()
    await asyncio.sleep(0)
    assert (database.num_questions, database.num_given_up) == (2, 0)


async def test_round_that_is_broken_off_leaves_nothing_running(rounds: Rounds, database: Database) -> None:
    database.hangs = True
    before = asyncio.all_tasks()
    rounds.start_if_due()

    async def asked() -> bool:
        return database.num_questions == 1

    await until(asked)
    await rounds.end()
    assert database.num_given_up == 1
    assert asyncio.all_tasks() == before


async def test_all_pools_are_asked_for_in_one_question(redis: Redis, rounds: Rounds, database: Database) -> None:
    database.stored = {POOL: STORED, OTHER: STORED}
    await rounds.make_round()
    assert rounds.pools == (POOL, OTHER)
    assert database.num_questions == 1
    assert None not in await redis.mget([keys.announced_tunables(pool) for pool in (POOL, OTHER)])


async def test_pool_whose_stored_tunables_cannot_be_used_costs_the_others_nothing(
    redis: Redis, rounds: Rounds, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.stored = {OTHER: None, POOL: STORED}
    engine = snapshot(tunables_version=2)
    await beat(redis, engine)
    for _ in range(2):
        await rounds.make_round()
    assert rounds.pools == (OTHER, POOL)
    assert await sent_to(redis, engine) == [Retune(3, STORED.tunables)]
    assert [record.levelno for record in caplog.records if "cannot be used" in record.message] == [logging.WARNING]


async def test_pools_are_recalled_where_the_database_is_away(redis: Redis, rounds: Rounds, database: Database) -> None:
    database.stored = {POOL: STORED, OTHER: STORED}
    await rounds.make_round()
    database.works = False
    successor = new_rounds(redis, database)
    await successor.recall()
    await successor.make_round()
    assert successor.pools == (POOL, OTHER)


async def test_pools_are_written_again_where_redis_lost_them_and_the_database_is_away(
    redis: Redis, rounds: Rounds, database: Database
) -> None:
    await rounds.make_round()
    database.works = False
    await redis.flushall()
    await rounds.make_round()
    successor = new_rounds(redis, database)
    await successor.recall()
    assert successor.pools == (POOL,)


async def test_pools_that_are_stored_no_more_are_forgotten(redis: Redis, rounds: Rounds, database: Database) -> None:
    await rounds.make_round()
    database.stored = {}
    await rounds.make_round()
    successor = new_rounds(redis, database)
    await successor.recall()
    assert (rounds.pools, successor.pools) == ((), ())


async def test_what_another_version_knew_is_no_pool(redis: Redis, rounds: Rounds) -> None:
    await redis.set(keys.known_pools(), b"\xc1")
    await rounds.recall()
    assert rounds.pools == ()


async def test_silence_of_an_owner_begins_anew_after_redis_could_not_be_reached(
    redis: Redis,
    rounds: Rounds,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuse(_key: str) -> None:
        raise RedisConnectionError("gone")

    await submit_for_an_owner_that_dies(redis, clock)
    await rounds.make_round()
    clock.now += 14
    with monkeypatch.context() as patched:
        patched.setattr(redis, "hgetall", refuse)
        await rounds.make_round()
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    clock.now += 2
    await rounds.make_round()
    assert await num_lost(redis) == 0
    clock.now += 15
    await rounds.make_round()
    assert await num_lost(redis) == 1


async def test_owners_are_settled_while_the_database_is_away(
    redis: Redis, rounds: Rounds, database: Database, clock: Clock
) -> None:
    await submit_for_an_owner_that_dies(redis, clock)
    await rounds.make_round()
    database.works = False
    clock.now += 16
    await rounds.make_round()
    assert await num_lost(redis) == 1
