"""Sample traffic: bounded in time and number, one at a time to a pool, and ended by whoever wants to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from serving.contracts import keys
from serving.contracts.errors import PoolNotFound, QueueFull, Unavailable
from serving.contracts.ids import PoolName
from serving.lab.sample_traffic import CONCURRENCY, SampleTraffic

POOL = PoolName("default")


class Clock:
    """A clock that sleepers move: each sleep lets the others run and takes as long as it says."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0.001)
        self.seconds += seconds / 20  # the askers sleep side by side


class ScriptedAsker:
    """Answers with two pieces, at once or when `go_on` is set; keeps what it was asked, and how many asked at once."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.refusal: Exception | None = None
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.num_open = 0
        self.most_open = 0

    async def prompt(self, pool: str, text: str, *, cleanup: contextlib.AsyncExitStack, **more: Any) -> Any:
        self.asked.append((text, more))
        if self.refusal is not None:
            raise self.refusal
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        cleanup.callback(self._close)
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[str]:
        yield "Hello"
        await asyncio.sleep(0.002)  # the others ask meanwhile
        await self.go_on.wait()
        yield " there"

    def _close(self) -> None:
        self.num_open -= 1


@pytest.fixture
async def redis(valkey: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(valkey)
    yield client
    await client.aclose()


@pytest.fixture
def asker() -> ScriptedAsker:
    return ScriptedAsker()


@pytest.fixture
async def make(redis: Redis, asker: ScriptedAsker) -> AsyncIterator[Callable[..., SampleTraffic]]:
    made: list[SampleTraffic] = []

    def make_one(**options: Any) -> SampleTraffic:
        clock = Clock()
        made.append(SampleTraffic(redis, asker, **{"clock": clock, "sleep": clock.sleep, **options}))
        return made[-1]

    yield make_one
    for each in made:
        await each.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (what is waited for sends no signal)
            await asyncio.sleep(0.005)


def playing() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("sample traffic")]


async def test_it_asks_several_short_chats_at_once_and_ends_by_itself(
    make: Callable[..., SampleTraffic], asker: ScriptedAsker
) -> None:
    assert await make(seconds=5).start(POOL, author="ann") is None
    await until(lambda: not playing())
    assert len(asker.asked) > CONCURRENCY
    assert (asker.most_open, asker.num_open) == (CONCURRENCY, 0)
    assert all(16 <= more["max_tokens"] <= 96 for _, more in asker.asked)
    assert len({more["request_id"] for _, more in asker.asked}) == len(asker.asked)
    assert len({text for text, _ in asker.asked}) > 1


async def test_one_at_a_time_over_all_processes(make: Callable[..., SampleTraffic], asker: ScriptedAsker) -> None:
    first, second = make(), make()
    assert await first.start(POOL, author="ann") is None
    found = await second.start(POOL, author="ben")
    assert found is not None
    assert found.author == "ann"
    assert 0 < found.seconds_left <= 30
    assert len(playing()) == 1
    assert await second.start(PoolName("bulk"), author="ben") is None


async def test_what_ends_as_another_begins_leaves_room_for_it(
    make: Callable[..., SampleTraffic], redis: Redis, asker: ScriptedAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await redis.set(keys.sample_traffic(POOL), '{"token": "other", "author": "ann"}', px=60_000)
    ask = redis.pttl

    async def ask_late(key: str) -> Any:
        await redis.delete(key)
        return await ask(key)

    monkeypatch.setattr(redis, "pttl", ask_late)
    assert await make().start(POOL, author="ben") is None
    monkeypatch.undo()
    await until(lambda: len(asker.asked) >= CONCURRENCY)
    state = await make().state(POOL)
    assert state is not None
    assert state.author == "ben"


async def test_any_process_stops_it_and_what_is_asked_is_given_up(
    make: Callable[..., SampleTraffic], asker: ScriptedAsker
) -> None:
    asker.go_on.clear()
    first, second = make(), make()
    await first.start(POOL, author="ann")
    await until(lambda: asker.num_open == CONCURRENCY)
    assert await second.stop(POOL) is True
    await until(lambda: not playing())
    assert asker.num_open == 0
    assert await second.stop(POOL) is False
    assert await first.state(POOL) is None
    assert await second.start(POOL, author="ben") is None


async def test_what_another_began_after_a_stop_is_not_taken_for_its_own(
    make: Callable[..., SampleTraffic], redis: Redis, asker: ScriptedAsker
) -> None:
    first, second = make(), make()
    await first.start(POOL, author="ann")
    await second.stop(POOL)
    await second.start(POOL, author="ben")
    await until(lambda: len(playing()) == 1)
    state = await first.state(POOL)
    assert state is not None
    assert state.author == "ben"


async def test_refusals_are_borne_and_a_pool_that_is_gone_ends_it(
    make: Callable[..., SampleTraffic], asker: ScriptedAsker
) -> None:
    asker.refusal = QueueFull("full", retry_after_seconds=1)
    await make(seconds=5).start(POOL, author="ann")
    await until(lambda: len(asker.asked) > CONCURRENCY)
    asker.refusal = PoolNotFound("gone")
    await until(lambda: not playing())


async def test_the_end_of_its_process_ends_it(make: Callable[..., SampleTraffic], asker: ScriptedAsker) -> None:
    asker.go_on.clear()
    traffic = make()
    await traffic.start(POOL, author="ann")
    await until(lambda: asker.num_open > 0)
    await traffic.close()
    await traffic.close()
    assert (playing(), asker.num_open) == ([], 0)


async def test_without_redis_nothing_is_begun(asker: ScriptedAsker) -> None:
    client = Redis(host="127.0.0.1", port=1, retry=Retry(NoBackoff(), 0))
    traffic = SampleTraffic(client, asker)
    for act in (lambda: traffic.start(POOL, author="ann"), lambda: traffic.stop(POOL), lambda: traffic.state(POOL)):
        with pytest.raises(Unavailable, match="Redis"):
            await act()
    await client.aclose()
    assert asker.asked == []


async def test_its_key_has_a_short_life(make: Callable[..., SampleTraffic], redis: Redis) -> None:
    await make(seconds=3).start(POOL, author="ann")
    assert 0 < await redis.pttl(keys.sample_traffic(POOL)) <= 3000
