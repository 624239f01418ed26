"""Engines and announcement are brought to the stored version."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId
from serving.contracts.messages import AnnouncedTunables, Retune, decode_announced, encode
from serving.contracts.tunables import Tunables
from serving.telemetry.reconciler import Reconciler, StoredForPool, Trial
from tests.telemetry.actions import sent_to
from tests.telemetry.conftest import POOL, Clock, snapshot

STORED = AnnouncedTunables(5, Tunables(max_running=7))


@pytest.fixture
def reconciler(redis: Redis, clock: Clock) -> Reconciler:
    return Reconciler(redis, clock=clock)


@pytest.mark.parametrize("before", [None, b"\xc1", encode(AnnouncedTunables(4, Tunables())), encode(STORED)], ids=repr)
async def test_announces_what_is_stored_where_it_is_missing_or_older(
    redis: Redis, reconciler: Reconciler, before: bytes | None
) -> None:
    if before is not None:
        await redis.set(keys.announced_tunables(POOL), before)
    await reconciler.reconcile(POOL, StoredForPool(STORED), [])
    announced = await redis.get(keys.announced_tunables(POOL))
    assert announced is not None
    assert decode_announced(announced) == STORED


async def test_leaves_a_newer_announcement_alone(redis: Redis, reconciler: Reconciler) -> None:
    newer = encode(AnnouncedTunables(6, Tunables()))
    await redis.set(keys.announced_tunables(POOL), newer)
    await reconciler.reconcile(POOL, StoredForPool(STORED), [])
    assert await redis.get(keys.announced_tunables(POOL)) == newer


@pytest.mark.parametrize("version", [0, 4, 6])
async def test_sends_the_whole_to_an_engine_of_another_version(
    redis: Redis, reconciler: Reconciler, version: int
) -> None:
    engine = snapshot(tunables_version=version)
    await reconciler.reconcile(POOL, StoredForPool(STORED), [engine, snapshot("engine-2", tunables_version=5)])
    assert await sent_to(redis, engine) == [Retune(5, STORED.tunables)]
    assert await sent_to(redis, snapshot("engine-2")) == []


async def test_gives_an_engine_two_seconds_before_it_tells_it_again(
    redis: Redis, reconciler: Reconciler, clock: Clock
) -> None:
    engine = snapshot(tunables_version=4)
    for seconds, num_sent in ((0, 1), (1.9, 1), (0.1, 2), (1.0, 2)):
        clock.now += seconds
        await reconciler.reconcile(POOL, StoredForPool(STORED), [engine])
        assert len(await sent_to(redis, engine)) == num_sent


async def test_engine_that_came_round_is_told_of_the_next_change_at_once(redis: Redis, reconciler: Reconciler) -> None:
    await reconciler.reconcile(POOL, StoredForPool(STORED), [snapshot(tunables_version=4)])
    await reconciler.reconcile(POOL, StoredForPool(STORED), [snapshot(tunables_version=5)])
    await reconciler.reconcile(POOL, StoredForPool(AnnouncedTunables(6, Tunables())), [snapshot(tunables_version=5)])
    assert [retune.version for retune in await sent_to(redis, snapshot()) if isinstance(retune, Retune)] == [5, 6]


async def test_forces_its_version_on_a_pool_that_stays_ahead_of_the_database(
    redis: Redis, reconciler: Reconciler, clock: Clock
) -> None:
    await redis.set(keys.announced_tunables(POOL), encode(AnnouncedTunables(9, Tunables())))
    engine = snapshot(tunables_version=9)
    for _ in range(8):
        await reconciler.reconcile(POOL, StoredForPool(STORED), [engine])
        clock.now += 1.0
    announced = await redis.get(keys.announced_tunables(POOL))
    assert announced is not None
    assert decode_announced(announced) == STORED
    assert (await sent_to(redis, engine))[-1] == Retune(5, STORED.tunables, force=True)
    assert (await sent_to(redis, engine))[0] == Retune(5, STORED.tunables)


async def test_engine_that_tries_a_newer_version_keeps_it_and_the_others_do_not_get_it(
    redis: Redis, reconciler: Reconciler, clock: Clock
) -> None:
    tried = AnnouncedTunables(6, Tunables(max_running=9))
    wanted = StoredForPool(STORED, Trial(EngineId("engine-1"), tried, since=0.0))
    others = [snapshot("engine-2", tunables_version=5), snapshot("engine-3", tunables_version=4)]
    for _ in range(9):
        await reconciler.reconcile(POOL, wanted, [snapshot("engine-1", tunables_version=6), *others])
        clock.now += 1.0
    assert await sent_to(redis, snapshot("engine-1")) == await sent_to(redis, snapshot("engine-2")) == []
    assert (await sent_to(redis, snapshot("engine-3")))[-1] == Retune(5, STORED.tunables)
    announced = await redis.get(keys.announced_tunables(POOL))
    assert announced is not None
    assert decode_announced(announced) == STORED


async def test_engine_of_a_trial_that_began_anew_is_sent_what_it_tries(redis: Redis, reconciler: Reconciler) -> None:
    tried = AnnouncedTunables(6, Tunables(max_running=9))
    await reconciler.reconcile(
        POOL, StoredForPool(STORED, Trial(EngineId("engine-1"), tried, since=0.0)), [snapshot(tunables_version=5)]
    )
    assert await sent_to(redis, snapshot()) == [Retune(6, tried.tunables)]
