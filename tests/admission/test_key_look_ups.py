"""Made-up keys: what they cost, and whom they hold up."""

from __future__ import annotations

import asyncio
import threading

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from serving.admission import authenticator as module
from serving.admission.authenticator import Authenticator
from serving.admission.key_look_ups import KeyLookUps
from serving.admission.keys import KeyText, make_key
from serving.admission.principals import KnownKey, read_known_key
from serving.contracts.errors import InvalidKey, Unavailable
from tests.admission.conftest import Clock, bearer

pytestmark = pytest.mark.django_db(transaction=True)


async def test_made_up_keys_that_differ_are_looked_up_a_few_at_a_time_and_hold_up_no_known_key(
    redis: Redis, key: KeyText, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_ups = KeyLookUps(life_seconds=module.LIFE_SECONDS, max_at_once=2, max_waiting=3, monotonic=clock)
    authenticator = Authenticator(redis, look_ups=look_ups, monotonic=clock)
    await authenticator.authenticate(bearer(key))
    reading, may_go_on = threading.Semaphore(0), threading.Event()
    being_read: list[str] = []

    def read_slowly(prefix: str, *, epoch: str | None) -> KnownKey | None:
        if prefix != key.prefix:
            being_read.append(prefix)
            reading.release()
            may_go_on.wait(20)
        return read_known_key(prefix, epoch=epoch)

    monkeypatch.setattr(module, "read_known_key", read_slowly)
    flood = [asyncio.create_task(authenticator.authenticate(bearer(make_key()))) for _ in range(6)]
    for _ in range(2):
        await asyncio.to_thread(reading.acquire, timeout=20)
    done, _ = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
    # Two are looked up, three wait, and the sixth is told to come again.
    (refused,) = [task.exception() for task in done]
    assert isinstance(refused, Unavailable)
    clock.seconds += module.LIFE_SECONDS
    assert (await authenticator.authenticate(bearer(key), at_the_door=True)).tenant == "acme"
    assert len(being_read) == 2
    may_go_on.set()
    answers = await asyncio.gather(*flood, return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["InvalidKey"] * 5 + ["Unavailable"]
    assert len(being_read) == 5
    await authenticator.close()


async def test_who_leaves_makes_room_for_no_look_up_before_the_own_one_has_ended(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    authenticator = Authenticator(redis, look_ups=KeyLookUps(life_seconds=10, max_at_once=2))
    reading, may_go_on = threading.Semaphore(0), threading.Event()
    being_read: list[str] = []

    def read_slowly(prefix: str, *, epoch: str | None) -> None:
        being_read.append(prefix)
        reading.release()
        may_go_on.wait(20)

    monkeypatch.setattr(module, "read_known_key", read_slowly)
    leavers = [asyncio.create_task(authenticator.authenticate(bearer(make_key()))) for _ in range(4)]
    for _ in range(2):
        await asyncio.to_thread(reading.acquire, timeout=20)
    for leaver in leavers:
        leaver.cancel()
    stayer = asyncio.create_task(authenticator.authenticate(bearer(make_key())))
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert len(being_read) == 2
    may_go_on.set()
    with pytest.raises(InvalidKey):
        await stayer
    assert len(being_read) == 3
    assert all(
        isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*leavers, return_exceptions=True)
    )


async def test_a_moment_without_redis_makes_no_stranger_of_a_key_that_opened(
    redis: Redis, key: KeyText, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_ups = KeyLookUps(life_seconds=10, max_at_once=1, max_waiting=1)
    authenticator = Authenticator(redis, look_ups=look_ups)
    await authenticator.authenticate(bearer(key))

    async def fail(*_: object) -> None:
        raise RedisConnectionError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(redis, "get", fail)
        await authenticator.authenticate(bearer(key))
    async with look_ups.turn():
        flood = [asyncio.create_task(authenticator.authenticate(bearer(make_key()))) for _ in range(2)]
        await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
        assert (await authenticator.authenticate(bearer(key))).tenant == "acme"
    await asyncio.gather(*flood, return_exceptions=True)
    await authenticator.close()


async def test_no_look_up_is_so_slow_that_others_are_sent_away_for_more_than_a_minute(clock: Clock) -> None:
    look_ups = KeyLookUps(life_seconds=10, max_at_once=1, max_waiting=0, monotonic=clock)
    with pytest.raises(Unavailable):
        async with look_ups.turn():
            pass
    patient = KeyLookUps(life_seconds=10, max_at_once=1, max_waiting=1, monotonic=clock)
    async with patient.turn():
        clock.seconds += 600
    async with patient.turn():
        waiter = asyncio.create_task(_take_turn(patient))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable) as caught:
            await _take_turn(patient)
        assert caught.value.retry_after_seconds == 60
    await waiter


async def _take_turn(look_ups: KeyLookUps) -> None:
    async with look_ups.turn():
        pass


def test_only_so_many_prefixes_are_known_to_open_nothing(clock: Clock) -> None:
    look_ups = KeyLookUps(life_seconds=10, max_remembered=3, monotonic=clock)
    for prefix in ("a", "b", "c", "a", "d"):
        look_ups.note_nothing(prefix, epoch="now")
    assert [prefix for prefix in "abcd" if look_ups.opens_nothing(prefix, epoch="now")] == ["a", "c", "d"]
    assert not look_ups.opens_nothing("a", epoch="later")
    assert not look_ups.opens_nothing("a", epoch=None)
    clock.seconds += 10
    assert not look_ups.opens_nothing("a", epoch="now")
