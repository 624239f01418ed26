"""What someone uses now, as the door counts it in a real Valkey."""

from __future__ import annotations

import datetime

from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.admission.current_use import CurrentUse, is_counted, read_current_use
from serving.contracts import keys
from serving.contracts.accounting import Spent
from serving.contracts.quotas import Quotas
from serving.threads import in_thread
from tests.admission.quotas import Ledger, account_of, door_with, enter, sums

NOTHING = CurrentUse()


async def current_use(valkey: str, *subjects: str) -> list[CurrentUse]:
    with BlockingRedis.from_url(valkey) as client:
        return await in_thread(read_current_use, client, subjects)


async def test_what_waits_and_runs_is_told_with_what_it_reserved(redis: Redis, valkey: str) -> None:
    ledger = Ledger(of_day=100, of_month=1000)
    door = door_with(redis, ledger)
    account = account_of(tokens_per_day=10_000, tokens_per_month=10_000)
    first, second = await enter(door, account, 30, 12)
    assert await current_use(valkey, "tenant:1") == [
        CurrentUse(requests=2, tokens=42, open=2, tokens_of_day=142, tokens_of_month=1042)
    ]
    await door.close(first, Spent(20, 5))
    assert await current_use(valkey, "tenant:1") == [
        CurrentUse(requests=2, tokens=37, open=1, tokens_of_day=137, tokens_of_month=1037)
    ]
    await door.close(second, Spent(0, 0))


async def test_each_subject_has_its_own_and_the_unknown_leave_no_trace(redis: Redis, valkey: str) -> None:
    door = door_with(redis, Ledger())
    await enter(door, account_of("key:" + "a" * 12, requests_per_minute=9), 5)
    found = await current_use(valkey, "tenant:7", "key:" + "a" * 12, "tenant:8")
    assert [each.open for each in found] == [0, 1, 0]
    assert found[0] == found[2] == NOTHING
    assert await redis.exists(keys.quota_book("tenant:7"), keys.quota_book("tenant:8")) == 0
    assert await current_use(valkey) == []


async def test_reading_keeps_the_books_right(redis: Redis, valkey: str) -> None:
    door = door_with(redis, Ledger())
    account = account_of(tokens_per_day=1000)
    await enter(door, account, 30)
    for _ in range(3):
        await current_use(valkey, "tenant:1")
    # All that was charged leaves the window while nobody but the reader looks.
    await redis.zadd(
        keys.quota_charges("tenant:1"), dict.fromkeys(await redis.zrange(keys.quota_charges("tenant:1"), 0, -1), 1)
    )
    assert [(each.requests, each.tokens, each.open) for each in await current_use(valkey, "tenant:1")] == [(0, 0, 1)]
    assert await sums(redis) == {"requests": 0, "tokens": 0, "open": 1, "day:tokens": 30, "month:tokens": 30}


async def test_the_sums_of_another_day_are_not_told_for_today(redis: Redis, valkey: str) -> None:
    door = door_with(redis, Ledger())
    await enter(door, account_of(tokens_per_day=1000), 30)
    yesterday = (datetime.datetime.now(datetime.UTC).date() - datetime.date(1970, 1, 1)).days - 1
    await redis.hset(keys.quota_book("tenant:1"), "day", yesterday)
    (found,) = await current_use(valkey, "tenant:1")
    assert (found.tokens_of_day, found.tokens_of_month) == (None, 30)


def test_only_those_with_a_bound_to_count_are_counted() -> None:
    assert not is_counted(Quotas())
    assert not is_counted(Quotas(max_prompt_tokens=5, max_output_tokens=5))
    for name in (
        "requests_per_minute",
        "tokens_per_minute",
        "tokens_per_day",
        "tokens_per_month",
        "max_concurrent_requests",
    ):
        assert is_counted(Quotas(**{name: 1}))
