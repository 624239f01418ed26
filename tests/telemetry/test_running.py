"""What every process has in flight, told to the others, and ended by their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import OwnerId
from serving.telemetry.running import MAX_REQUESTS, find_running, order_abort, read_running
from serving.telemetry.running_board import RunningBoard
from serving.threads import in_thread
from tests.telemetry.running import FakeOwner, in_flight

MakeBoard = Callable[..., RunningBoard]


@pytest.fixture
async def redis(valkey: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(valkey) as client:
        yield client


@pytest.fixture
def blocking_redis(valkey: str) -> Iterator[BlockingRedis]:
    with BlockingRedis.from_url(valkey) as client:
        yield client


@pytest.fixture
async def make_board(redis: Redis) -> AsyncIterator[MakeBoard]:
    boards: list[RunningBoard] = []

    def make(owner: FakeOwner, name: str = "one") -> RunningBoard:
        boards.append(RunningBoard(redis, owner_id=OwnerId(name), owner=owner, clock=lambda: 100.0))
        return boards[-1]

    yield make
    for board in boards:
        await board.stop()


async def test_what_all_processes_have_in_flight_is_one_list_the_oldest_first(
    make_board: MakeBoard, blocking_redis: BlockingRedis
) -> None:
    await make_board(FakeOwner(in_flight("a", arrived_at=99.0), in_flight("b", arrived_at=97.0)), "one").tell()
    waiting = in_flight("c", arrived_at=98.0, started=False, num_ahead=4)
    await make_board(FakeOwner(waiting), "two").tell()
    running = await in_thread(read_running, blocking_redis)
    assert running.num_in_flight == 3
    assert [(one.request_id, one.age_seconds, one.is_running) for one in running.requests] == [
        ("b", 3.0, True),
        ("c", 2.0, False),
        ("a", 1.0, True),
    ]
    told = await in_thread(find_running, blocking_redis, "c")
    assert told is not None
    assert (told.tenant, told.pool, told.prompt_tokens, told.completion_tokens) == ("acme", "default", 3, 2)
    assert (told.key_prefix, told.endpoint, told.num_ahead) == ("0123456789ab", "chat", 4)
    assert await in_thread(find_running, blocking_redis, "d") is None


async def test_of_very_many_the_oldest_are_told_and_all_are_counted(
    make_board: MakeBoard, blocking_redis: BlockingRedis
) -> None:
    crowd = [in_flight(f"r{number}", arrived_at=number / 100) for number in range(MAX_REQUESTS + 50)]
    await make_board(FakeOwner(*crowd)).tell()
    running = await in_thread(read_running, blocking_redis)
    assert running.num_in_flight == MAX_REQUESTS + 50
    assert [one.request_id for one in running.requests] == [f"r{number}" for number in range(MAX_REQUESTS)]


async def test_a_process_that_leaves_takes_back_what_it_told(
    make_board: MakeBoard, blocking_redis: BlockingRedis, redis: Redis
) -> None:
    board = make_board(FakeOwner(in_flight("a")))
    board.start()
    await _eventually(lambda: read_running(blocking_redis).num_in_flight == 1)
    await board.stop()
    assert (await in_thread(read_running, blocking_redis)).num_in_flight == 0
    assert await redis.keys("footplate:*") == []


async def test_a_process_that_died_is_forgotten(
    make_board: MakeBoard, blocking_redis: BlockingRedis, redis: Redis
) -> None:
    await make_board(FakeOwner(in_flight("a"))).tell()
    life_ms = await redis.pttl(keys.running(OwnerId("one")))
    assert 0 < life_ms <= 3000
    await redis.delete(keys.running(OwnerId("one")))  # as when its life is over
    assert (await in_thread(read_running, blocking_redis)).requests == ()
    assert await redis.exists(keys.running_owners()) == 0
    assert await in_thread(order_abort, blocking_redis, "a") == "gone"


async def test_whoever_owns_a_request_ends_it_by_order(make_board: MakeBoard, blocking_redis: BlockingRedis) -> None:
    first, second = FakeOwner(in_flight("a")), FakeOwner(in_flight("b"))
    make_board(first, "one").start()
    make_board(second, "two").start()
    await _eventually(lambda: read_running(blocking_redis).num_in_flight == 2)
    assert await in_thread(order_abort, blocking_redis, "b", patience_seconds=30) == "aborted"
    assert (first.aborted, second.aborted) == ([], ["b"])
    # What is left is told at once, so that the page that comes next does not show it any more.
    await _eventually(lambda: [one.request_id for one in read_running(blocking_redis).requests] == ["a"])
    assert await in_thread(order_abort, blocking_redis, "b", patience_seconds=30) == "gone"


async def test_a_process_that_keeps_silent_is_said_to_and_its_order_is_void_soon(
    make_board: MakeBoard, blocking_redis: BlockingRedis, redis: Redis
) -> None:
    await make_board(FakeOwner(in_flight("a"))).tell()  # and never again
    assert await in_thread(order_abort, blocking_redis, "a", patience_seconds=0.05) == "unanswered"
    assert 0 < await redis.pttl(keys.abort_orders(OwnerId("one"))) <= 5000


async def test_a_redis_that_goes_once_it_has_the_order_leaves_it_open_whether_the_request_ended(
    make_board: MakeBoard, blocking_redis: BlockingRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = FakeOwner(in_flight("a"))
    board = make_board(owner)
    await board.tell()
    monkeypatch.setattr(blocking_redis, "blpop", _raise_connection_error)
    assert await in_thread(order_abort, blocking_redis, "a") == "unanswered"
    await board.tell()
    assert owner.aborted == ["a"]
    monkeypatch.setattr(blocking_redis, "smembers", _raise_connection_error)
    with pytest.raises(ConnectionError):
        await in_thread(order_abort, blocking_redis, "a")


async def test_what_another_version_wrote_harms_nothing(
    make_board: MakeBoard, blocking_redis: BlockingRedis, redis: Redis
) -> None:
    owner = FakeOwner(in_flight("a"))
    await redis.rpush(keys.abort_orders(OwnerId("one")), b"\xc1 no order")
    await make_board(owner, "one").tell()
    await redis.set(keys.running(OwnerId("other")), b"\xc1 no list")
    await redis.sadd(keys.running_owners(), "other")
    assert (await in_thread(read_running, blocking_redis)).num_in_flight == 1
    assert owner.aborted == []


async def test_telling_goes_on_after_redis_was_away(blocking_redis: BlockingRedis, redis: Redis) -> None:
    broken = SimpleNamespace(pipeline=_raise_connection_error, delete=_nothing, srem=_nothing)
    board = RunningBoard(broken, owner_id=OwnerId("one"), owner=FakeOwner(in_flight("a")))  # type: ignore[arg-type]
    board.start()
    await asyncio.sleep(0)
    broken.pipeline = redis.pipeline
    await _eventually(lambda: read_running(blocking_redis).num_in_flight == 1)
    await board.stop()


async def test_an_outage_is_said_once_and_again_after_redis_was_back(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("serving.telemetry.running_board._TELL_SECONDS", 0.001)
    calls = {"away": 0, "there": 0}

    def away(**options: Any) -> Any:
        calls["away"] += 1
        return _raise_connection_error(**options)

    def there(**options: Any) -> Any:
        calls["there"] += 1
        return redis.pipeline(**options)

    flaky = SimpleNamespace(pipeline=away, delete=_nothing, srem=_nothing)
    board = RunningBoard(flaky, owner_id=OwnerId("one"), owner=FakeOwner(in_flight("a")))  # type: ignore[arg-type]
    board.start()
    await _eventually(lambda: calls["away"] >= 20)
    flaky.pipeline = there
    await _eventually(lambda: calls["there"] >= 2)
    num_calls, flaky.pipeline = calls["away"], away
    await _eventually(lambda: calls["away"] >= num_calls + 20)
    await board.stop()
    assert len([record for record in caplog.records if "cannot be told" in record.message]) == 2


def _raise_connection_error(*_args: Any, **_options: Any) -> Any:
    raise ConnectionError("Redis is away")


async def _nothing(*_args: Any) -> None: ...


async def _eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not await in_thread(condition):  # noqa: ASYNC110 (Redis tells nobody)
            await asyncio.sleep(0.02)
