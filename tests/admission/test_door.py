"""The waiting room's bounds in a real Valkey."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from serving.admission.door import Door
from serving.admission.permits import Permit, PermitLost, Weight
from serving.admission.refusals import estimate_retry_seconds
from serving.contracts import keys
from serving.contracts.accounting import Spent
from serving.contracts.errors import QueueFull, Unavailable
from serving.contracts.ids import PoolName
from serving.contracts.tunables import Tunables

POOL = PoolName("default")


@pytest.fixture
def door(redis: Redis) -> Door:
    return Door(redis)


def bounds(requests: int = 4, tokens: int = 1000) -> Tunables:
    return Tunables(max_queue_requests=requests, max_queue_tokens=tokens)


async def totals(redis: Redis) -> tuple[int, int]:
    stored = await redis.hmget(keys.permit_weights(POOL), "total:requests", "total:tokens")
    return int(stored[0] or 0), int(stored[1] or 0)


async def enter(door: Door, sequences: int, tokens: int, tunables: Tunables) -> Permit:
    (permit,) = await door.enter(POOL, [Weight(sequences, tokens)], tunables=tunables)
    return permit


async def test_lets_in_up_to_the_bound_of_sequences(door: Door, redis: Redis) -> None:
    for _ in range(4):
        await enter(door, 1, 10, bounds(4))
    with pytest.raises(QueueFull) as caught:
        await enter(door, 1, 10, bounds(4))
    assert caught.value.retry_after_seconds >= 1
    assert "4 of 4 sequences" in caught.value.message
    assert await totals(redis) == (4, 40)


async def test_lets_in_up_to_the_bound_of_tokens(door: Door, redis: Redis) -> None:
    await enter(door, 1, 900, bounds(tokens=1000))
    await enter(door, 1, 100, bounds(tokens=1000))
    with pytest.raises(QueueFull):
        await enter(door, 1, 1, bounds(tokens=1000))
    assert await totals(redis) == (2, 1000)


async def test_all_choices_enter_or_none(door: Door, redis: Redis) -> None:
    with pytest.raises(QueueFull):
        await enter(door, 16, 16, bounds(15))
    assert await totals(redis) == (0, 0)
    await enter(door, 15, 15, bounds(15))
    assert await totals(redis) == (15, 15)


async def test_several_prompts_enter_together_or_not_at_all(door: Door, redis: Redis) -> None:
    with pytest.raises(QueueFull):
        await door.enter(POOL, [Weight(2, 5), Weight(2, 5), Weight(1, 5)], tunables=bounds(4))
    assert await totals(redis) == (0, 0)
    permits = await door.enter(POOL, [Weight(2, 5), Weight(2, 6)], tunables=bounds(4))
    assert await totals(redis) == (4, 11)
    await door.release(permits[0])
    assert await totals(redis) == (2, 6)


async def test_releasing_twice_gives_back_once(door: Door, redis: Redis) -> None:
    first = await enter(door, 2, 20, bounds())
    await enter(door, 1, 5, bounds())
    for _ in range(3):
        await door.release(first)
    assert await totals(redis) == (1, 5)


async def test_true_length_takes_the_place_of_the_estimate(door: Door, redis: Redis) -> None:
    permit = await enter(door, 2, 500, bounds(tokens=1000))
    permit = await door.settle(permit, Weight(2, 120), tunables=bounds(tokens=1000))
    assert permit.weight == Weight(2, 120)
    assert await totals(redis) == (2, 120)
    await door.release(permit)
    assert await totals(redis) == (0, 0)


async def test_true_length_that_does_not_fit_is_refused_and_nothing_moves(door: Door, redis: Redis) -> None:
    await enter(door, 1, 800, bounds(tokens=1000))
    permit = await enter(door, 1, 100, bounds(tokens=1000))
    with pytest.raises(QueueFull):
        await door.settle(permit, Weight(1, 201), tunables=bounds(tokens=1000))
    assert await totals(redis) == (2, 900)
    await door.settle(permit, Weight(1, 200), tunables=bounds(tokens=1000))
    assert await totals(redis) == (2, 1000)


async def test_lowered_bound_refuses_until_it_is_reached_and_takes_nobody_out(door: Door, redis: Redis) -> None:
    permits = [await enter(door, 1, 1, bounds(4)) for _ in range(4)]
    with pytest.raises(QueueFull):
        await enter(door, 1, 1, bounds(2))
    assert await totals(redis) == (4, 4)
    for permit in permits[:3]:
        await door.release(permit)
    await enter(door, 1, 1, bounds(2))


async def test_lease_of_a_dead_process_ends(redis: Redis) -> None:
    door = Door(redis, lease_seconds=0.1)
    await enter(door, 4, 400, bounds(4))
    await asyncio.sleep(0.15)
    await enter(door, 4, 40, bounds(4))
    assert await totals(redis) == (4, 40)


async def test_renewed_lease_goes_on_and_ended_ones_are_swept(redis: Redis) -> None:
    brief, long = Door(redis, lease_seconds=0.2), Door(redis)
    kept = await enter(brief, 1, 1, bounds(4))
    await enter(brief, 1, 2, bounds(4))
    await long.renew([(kept, Spent())])
    await asyncio.sleep(0.25)
    await long.renew([(kept, Spent())])
    assert await totals(redis) == (1, 1)


async def test_renewing_does_not_bring_back_what_was_released(door: Door, redis: Redis) -> None:
    permit = await enter(door, 1, 1, bounds())
    await door.release(permit)
    await door.renew([(permit, Spent())])
    with pytest.raises(PermitLost):
        await door.settle(permit, Weight(1, 7), tunables=bounds())
    assert await totals(redis) == (0, 0)
    assert await redis.zcard(keys.permits(POOL)) == 0


async def test_never_exceeds_the_bound_however_many_come_at_once(valkey: str, redis: Redis) -> None:
    clients = [Redis.from_url(valkey) for _ in range(3)]
    doors = [Door(client) for client in clients]

    async def try_to_enter(index: int) -> bool:
        try:
            await enter(doors[index % 3], 1 + index % 3, 10, bounds(20, 130))
        except QueueFull:
            return False
        return True

    outcomes = await asyncio.gather(*(try_to_enter(index) for index in range(150)))
    requests, tokens = await totals(redis)
    assert requests <= 20
    assert tokens == 10 * sum(outcomes) <= 130
    assert requests + 3 > 20 or tokens + 10 > 130
    for client in clients:
        await client.aclose()


async def test_cancelled_entry_leaves_no_permit(door: Door, redis: Redis) -> None:
    for delay in range(20):
        task = asyncio.create_task(enter(door, 1, 1, bounds(100)))
        for _ in range(delay):
            await asyncio.sleep(0)
        if task.done():
            await door.release(task.result())
            continue
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await totals(redis) == (0, 0)


async def test_retry_after_follows_the_rate_at_which_the_room_drains(door: Door) -> None:
    for _ in range(50):
        await door.release(await enter(door, 1, 1, bounds(10)))
    for _ in range(10):
        await enter(door, 1, 1, bounds(10))
    with pytest.raises(QueueFull) as caught:
        await enter(door, 1, 1, bounds(10))
    assert caught.value.retry_after_seconds == 1


@given(st.integers(0, 10**9), st.floats(0, 10**6))
def test_retry_after_is_always_between_a_second_and_a_minute(excess: int, rate: float) -> None:
    assert 1 <= estimate_retry_seconds(excess, drained_per_second=rate) <= 60


def test_slow_drain_means_a_longer_wait() -> None:
    assert estimate_retry_seconds(10, drained_per_second=0.5) == 20
    assert estimate_retry_seconds(10, drained_per_second=100) == 1


async def test_unreachable_redis_is_said_to_be_unavailable() -> None:
    door = Door(Redis.from_url("unix:///nonexistent/valkey.sock"))
    with pytest.raises(Unavailable):
        await enter(door, 1, 1, bounds())
