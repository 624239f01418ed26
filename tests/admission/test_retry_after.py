"""When those who cannot be served are told to come again: what is measured where something is, else what is stated."""

from __future__ import annotations

import datetime

import pytest
from redis.asyncio import Redis

from serving.admission import door as door_module
from serving.admission.accounts import Charge
from serving.admission.door import Door
from serving.admission.drain import DrainState
from serving.admission.permits import Weight
from serving.admission.prediction import Predictor
from serving.admission.spent_before import SpentBefore
from serving.contracts.errors import RETRY_SECONDS, Unavailable
from serving.contracts.ids import PoolName
from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables
from serving.outages import Outage
from tests.admission.conftest import Clock
from tests.admission.test_pace import MAX_RUNNING, Engine

POOL = PoolName("default")
UNREACHABLE = "unix:///nonexistent/valkey.sock"


def test_an_outage_is_expected_to_last_as_usual_and_then_as_long_again(clock: Clock) -> None:
    outage = Outage(usual_seconds=8, monotonic=clock)
    assert outage.lasts_seconds is None
    outage.note_silence()
    expected = []
    for seconds in (0, 3, 4.5, 1, 91, 100):
        clock.seconds += seconds
        outage.note_silence()
        expected.append(outage.retry_after_seconds)
    # After 0, 3, 7.5, 8.5, 99.5 and 199.5 seconds; told are 1 to 60.
    assert expected == [8, 5, 1, 8.5, 60, 60]
    outage.note_answer()
    assert outage.lasts_seconds is None


def test_an_outage_is_expected_to_last_as_long_as_the_one_before(clock: Clock) -> None:
    outage = Outage(usual_seconds=8, monotonic=clock)
    outage.note_silence()
    clock.seconds += 20
    outage.note_answer()
    clock.seconds += 500
    outage.note_answer()
    outage.note_silence()
    clock.seconds += 5
    assert outage.retry_after_seconds == 15


@pytest.mark.parametrize(
    ("grace", "after", "told"), [(30, 0, 30), (30, 20, 10), (30, 29, 5), (30, 99, 5), (0, 0, 5), (600, 0, 60)]
)
def test_a_draining_server_tells_what_is_left_of_its_drain(
    clock: Clock, grace: float, after: float, told: float
) -> None:
    drain = DrainState(grace_seconds=grace, monotonic=clock)
    drain.check()
    assert not drain.active
    drain.begin()
    clock.seconds += after
    drain.begin()
    assert drain.active
    with pytest.raises(Unavailable) as refusal:
        drain.check()
    assert refusal.value.retry_after_seconds == told


async def test_a_pool_without_an_engine_tells_when_one_is_expected(redis: Redis, clock: Clock) -> None:
    predictor, engine = Predictor(redis, [POOL], monotonic=clock), Engine()
    predictor.look(POOL, [], max_running=MAX_RUNNING)
    assert predictor.retry_after_seconds(POOL) == RETRY_SECONDS
    clock.seconds += 12
    predictor.look(POOL, [engine.after(1.0, num_running=0)], max_running=MAX_RUNNING)
    assert predictor.retry_after_seconds(POOL) == RETRY_SECONDS
    predictor.look(POOL, [], max_running=MAX_RUNNING)
    assert predictor.retry_after_seconds(POOL) == 12
    clock.seconds += 5
    predictor.look(POOL, [], max_running=MAX_RUNNING)
    assert predictor.retry_after_seconds(POOL) == 7


async def test_while_redis_is_away_the_door_tells_how_long_that_lasts(
    clock: Clock, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable = Redis.from_url(UNREACHABLE)
    door = Door(unreachable, monotonic=clock)

    async def told() -> float:
        with pytest.raises(Unavailable) as refusal:
            await door.enter(POOL, [Weight(1, 5, 10)], tunables=Tunables())
        return refusal.value.retry_after_seconds

    assert await told() == door_module.RECONNECT_SECONDS
    clock.seconds += 9
    assert await told() == 9
    await unreachable.aclose()


async def test_a_ledger_that_does_not_answer_is_told_by_how_long_that_lasts(clock: Clock) -> None:
    async def fail(_subject: str, _since: datetime.date) -> int:
        raise OSError

    spent = SpentBefore(fail, Outage(usual_seconds=RETRY_SECONDS, monotonic=clock))
    charge = Charge("tenant:1", Quotas(tokens_per_day=5))
    told = []
    for seconds in (0, 20):
        clock.seconds += seconds
        with pytest.raises(Unavailable) as refusal:
            await spent.look_up(charge, today=datetime.date(2026, 11, 30))
        told.append(refusal.value.retry_after_seconds)
    assert told == [RETRY_SECONDS, 20]
