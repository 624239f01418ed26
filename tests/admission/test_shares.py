"""What of the waiting room each request may use."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from serving.admission.door import Door
from serving.admission.permits import Weight
from serving.admission.shares import Share
from serving.contracts.errors import QueueFull
from serving.contracts.ids import PoolName
from serving.contracts.tunables import Tunables

POOL = PoolName("default")


@pytest.fixture
async def door(valkey: str) -> AsyncIterator[Door]:
    client = Redis.from_url(valkey)
    yield Door(client)
    await client.aclose()


async def enter(door: Door, tunables: Tunables, *, priority: int, tokens: int = 1) -> None:
    share = Share.of(tunables, priority=priority)
    with share.explained():
        await door.enter(POOL, [Weight(1, tokens)], tunables=share.bounds)


@given(st.integers(1, 100_000), st.integers(1, 10**8), st.floats(0, 0.9, allow_nan=False), st.integers(-100, 100))
def test_something_is_left_for_everyone_and_all_for_the_urgent(
    requests: int, tokens: int, ratio: float, priority: int
) -> None:
    tunables = Tunables(max_queue_requests=requests, max_queue_tokens=tokens, urgent_queue_ratio=ratio)
    bounds = Share.of(tunables, priority=priority).bounds
    if priority < 0:
        assert bounds == tunables
        return
    assert 1 <= bounds.max_queue_requests <= requests
    assert 1 <= bounds.max_queue_tokens <= tokens
    assert requests - bounds.max_queue_requests == pytest.approx(requests * ratio, abs=1)


def test_share_is_rounded_down_to_whole_sequences_and_tokens() -> None:
    tunables = Tunables(max_queue_requests=29, max_queue_tokens=100, urgent_queue_ratio=0.29)
    bounds = Share.of(tunables, priority=0).bounds
    assert (bounds.max_queue_requests, bounds.max_queue_tokens) == (29 - 8, 100 - 29)


@pytest.mark.parametrize("tokens", [1, 250], ids=["sequences", "tokens"])
async def test_last_of_the_queue_lets_the_urgent_in_alone(door: Door, tokens: int) -> None:
    tunables = Tunables(max_queue_requests=8, max_queue_tokens=1000, urgent_queue_ratio=0.25)
    for _ in range(6 if tokens == 1 else 3):
        await enter(door, tunables, priority=0, tokens=tokens)
    with pytest.raises(QueueFull) as caught:
        await enter(door, tunables, priority=0, tokens=tokens)
    assert "urgent_queue_ratio = 0.25" in caught.value.message
    assert "of 6 sequences" in caught.value.message
    assert not caught.value.is_final
    await enter(door, tunables, priority=-1, tokens=tokens)
    if tokens == 1:
        await enter(door, tunables, priority=-1)
    with pytest.raises(QueueFull) as caught:
        await enter(door, tunables, priority=-1, tokens=tokens)
    assert "urgent_queue_ratio" not in caught.value.message


async def test_what_alone_exceeds_its_share_need_not_try_again(door: Door) -> None:
    tunables = Tunables(max_queue_tokens=1000, urgent_queue_ratio=0.5)
    with pytest.raises(QueueFull) as caught:
        await enter(door, tunables, priority=3, tokens=501)
    assert caught.value.is_final
    await enter(door, tunables, priority=-3, tokens=501)
