"""Of several that want a lease, one holds it."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from serving.telemetry.lease import Lease
from tests.telemetry.actions import until


@pytest.fixture
def leases(redis: Redis) -> tuple[Lease, Lease]:
    one = Lease(redis, "lease", holder="one", life_seconds=2.0)
    return one, Lease(redis, "lease", holder="other", life_seconds=2.0)


@pytest.mark.waits
async def test_one_holds_it_as_long_as_it_renews(leases: tuple[Lease, Lease]) -> None:
    one, other = leases
    for _ in range(6):
        assert await one.hold()
        assert not await other.hold()
        await asyncio.sleep(0.5)


async def test_other_takes_it_over_when_it_ends(leases: tuple[Lease, Lease]) -> None:
    one, other = leases
    assert await one.hold()
    await until(other.hold)
    assert not await one.hold()


async def test_release_gives_it_up_at_once_but_only_ones_own(leases: tuple[Lease, Lease]) -> None:
    one, other = leases
    assert await one.hold()
    await other.release()
    assert not await other.hold()
    await one.release()
    assert await other.hold()


async def test_lease_lost_with_everything_else_is_taken_again(leases: tuple[Lease, Lease], redis: Redis) -> None:
    one, _ = leases
    assert await one.hold()
    await redis.flushall()
    assert await one.hold()
