"""How long a request would wait, and who is refused for it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from serving.admission.door import Door
from serving.admission.pace import PoolPace
from serving.admission.permits import Weight
from serving.admission.prediction import Load, Predictor, lateness, predict
from serving.contracts.errors import PredictedTooLate
from serving.contracts.ids import PoolName
from serving.contracts.tunables import Tunables
from tests.admission.test_pace import MAX_RUNNING, Engine

POOL = PoolName("default")
RATES = st.none() | st.floats(0.01, 10**6, allow_nan=False)
LOADS = st.builds(Load, st.integers(0, 1000), st.integers(0, 10**6))
PACES = st.builds(
    PoolPace, prompt_tokens_per_second=RATES, sequences_per_second=RATES, num_free_places=st.integers(0, 64)
)


@given(LOADS, LOADS, LOADS, PACES)
def test_more_in_the_queue_never_means_a_shorter_wait(own: Load, ahead: Load, more: Load, pace: PoolPace) -> None:
    before, after = predict(own, ahead=ahead, pace=pace), predict(own, ahead=ahead + more, pace=pace)
    assert after.wait_seconds >= before.wait_seconds >= 0
    assert after.ttft_seconds >= before.ttft_seconds >= before.wait_seconds


@given(LOADS, PACES, st.floats(0.001, 3600))
def test_idle_engine_refuses_nobody(own: Load, pace: PoolPace, timeout: float) -> None:
    if pace.num_free_places == 0:
        return
    prediction = predict(own, ahead=Load(), pace=pace)
    strictest = Tunables(slo_ttft_ms=1, max_queue_wait_ms=1)
    assert lateness(prediction, tunables=strictest, timeout_seconds=timeout) is None


@given(LOADS, LOADS, st.integers(0, 64))
def test_unknown_pace_refuses_nobody(own: Load, ahead: Load, num_free_places: int) -> None:
    prediction = predict(own, ahead=ahead, pace=PoolPace(num_free_places=num_free_places))
    assert lateness(prediction, tunables=Tunables(slo_ttft_ms=1), timeout_seconds=0.001) is None


def test_slower_of_computing_and_leaving_decides() -> None:
    pace = PoolPace(prompt_tokens_per_second=100, sequences_per_second=2, num_free_places=1)
    assert predict(Load(1, 50), ahead=Load(4, 1000), pace=pace).wait_seconds == 10
    assert predict(Load(1, 50), ahead=Load(40, 1000), pace=pace).wait_seconds == 20
    assert predict(Load(1, 50), ahead=Load(40, 1000), pace=pace).ttft_seconds == 20.5


def test_lateness_names_what_is_missed_most() -> None:
    pace = PoolPace(prompt_tokens_per_second=100, sequences_per_second=1)
    prediction = predict(Load(1, 100), ahead=Load(9, 100), pace=pace)
    seconds, words = lateness(prediction, tunables=Tunables(slo_ttft_ms=9000), timeout_seconds=None) or (0, "")
    assert seconds == 2
    assert "11000 ms" in words
    assert "slo_ttft_ms is 9000" in words
    seconds, words = lateness(prediction, tunables=Tunables(slo_ttft_ms=9000), timeout_seconds=0.5) or (0, "")
    assert seconds == 9.5
    assert "timeout is 500 ms" in words
    patient = Tunables(slo_ttft_ms=60_000, max_queue_wait_ms=4000)
    seconds, words = lateness(prediction, tunables=patient, timeout_seconds=60) or (0, "")
    assert seconds == 6
    assert "max_queue_wait_ms is 4000" in words


def busy(predictor: Predictor, *, left_per_second: int = 2) -> None:
    """Let the pool's only engine be full, with sequences leaving at this rate."""
    engine = Engine()
    for _ in range(10):
        snapshot = engine.after(1.0, left=left_per_second, num_running=MAX_RUNNING)
        predictor.look(POOL, [snapshot], max_running=MAX_RUNNING)


async def come(predictor: Predictor, door: Door, tunables: Tunables) -> bool:
    """Whether one request is let in."""
    try:
        async with predictor.entering(POOL, Load(1, 10), tunables=tunables, timeout_seconds=None):
            await door.enter(POOL, [Weight(1, 10)], tunables=tunables)
    except PredictedTooLate:
        return False
    return True


async def test_as_many_enter_at_once_as_can_be_served_in_time(redis: Redis) -> None:
    predictor, door = Predictor(redis, [POOL]), Door(redis)
    busy(predictor)
    tunables = Tunables(slo_ttft_ms=5000)
    entered = await asyncio.gather(*(come(predictor, door, tunables) for _ in range(100)))
    # Two a second leave: the tenth waits for 5 seconds. Who enters while others do may count them twice.
    assert 5 <= sum(entered) <= 10
    while await come(predictor, door, tunables):
        entered.append(True)
    assert sum(entered) == 10


async def test_who_is_refused_leaves_nothing_behind_and_may_come_when_the_queue_is_shorter(redis: Redis) -> None:
    predictor, door = Predictor(redis, [POOL]), Door(redis)
    busy(predictor)
    permits = await door.enter(POOL, [Weight(1, 10)] * 20, tunables=Tunables())
    with pytest.raises(PredictedTooLate) as caught:
        async with predictor.entering(POOL, Load(1, 1), tunables=Tunables(slo_ttft_ms=5000), timeout_seconds=None):
            pytest.fail("it was let in")
    assert caught.value.retry_after_seconds == 6
    for permit in permits[:12]:
        await door.release(permit)
    assert await come(predictor, door, Tunables(slo_ttft_ms=5000))


async def test_time_to_try_again_follows_the_pace(redis: Redis) -> None:
    predictor = Predictor(redis, [POOL])
    assert predictor.retry_after_seconds(POOL) == 5
    busy(predictor)
    assert predictor.retry_after_seconds(POOL) == 1
    waiting = Engine().after(0.0, num_running=MAX_RUNNING, num_waiting=39, num_waiting_tokens=50, left=20)
    predictor.look(POOL, [waiting], max_running=MAX_RUNNING)
    assert predictor.retry_after_seconds(POOL) == 20


async def test_unreachable_redis_is_the_doors_to_report() -> None:
    predictor = Predictor(Redis.from_url("unix:///nonexistent/valkey.sock"), [POOL])
    busy(predictor)
    async with predictor.entering(POOL, Load(1, 1), tunables=Tunables(slo_ttft_ms=5000), timeout_seconds=None):
        pass
