"""Days and months at the door: taken from the ledger where Redis does not know them."""

from __future__ import annotations

import asyncio
import datetime

import pytest
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.admission import quota_scripts
from serving.admission.accounts import Account, Charge
from serving.admission.door import Door
from serving.admission.permits import Permit
from serving.admission.spent_before import SpentBefore
from serving.contracts import keys
from serving.contracts.accounting import Spent
from serving.contracts.errors import QuotaExceeded, QuotaSpent, Unavailable
from serving.contracts.quotas import Quotas
from tests.admission.quotas import Ledger, account_of, door_with, enter, sums


async def test_day_and_month_begin_with_what_the_ledger_has(redis: Redis) -> None:
    ledger = Ledger(of_day=40, of_month=70)
    door, account = door_with(redis, ledger), account_of(tokens_per_day=100, tokens_per_month=100)
    await enter(door, account, 30)
    today = datetime.datetime.now(datetime.UTC).date()
    assert [subject for subject, _ in ledger.asked] == ["tenant:1", "tenant:1"]
    assert ledger.asked[1][1].day == 1
    assert abs((ledger.asked[0][1] - today).days) <= 1
    with pytest.raises(QuotaSpent) as caught:
        await enter(door, account, 1)
    assert "tokens_per_month is 100: 100 tokens" in caught.value.message
    assert len(ledger.asked) == 2


async def test_lost_redis_is_rebuilt_from_the_ledger_and_the_minute_begins_anew(redis: Redis) -> None:
    ledger = Ledger()
    door, account = door_with(redis, ledger), account_of(requests_per_minute=1, tokens_per_day=100)
    (permit,) = await enter(door, account, 60)
    await door.close(permit, Spent(10, 20))
    ledger.of_day = ledger.of_month = 30
    await redis.flushall()
    await enter(door, account, 70)
    with pytest.raises(QuotaExceeded):
        await enter(door, account, 1)
    assert (await sums(redis))["day:tokens"] == 100


@pytest.mark.parametrize("is_renewed", [True, False])
async def test_what_a_lost_redis_forgot_counts_again_once_it_is_heard_of(redis: Redis, is_renewed: bool) -> None:
    ledger = Ledger()
    door, account = door_with(redis, ledger), account_of(tokens_per_day=100, max_concurrent_requests=5)
    (forgotten,) = await enter(door, account, 60)
    await redis.flushall()
    await enter(door, account, 10)
    if is_renewed:
        await door.renew([(forgotten, Spent(10, 1))])
        assert await sums(redis) == {"requests": 1, "tokens": 10, "open": 2, "day:tokens": 70, "month:tokens": 70}
    for _ in range(2):
        await door.close(forgotten, Spent(10, 20))
    assert await sums(redis) == {"requests": 1, "tokens": 10, "open": 1, "day:tokens": 40, "month:tokens": 40}


async def test_ledger_is_told_of_an_end_after_redis_and_also_where_that_fails(redis: Redis) -> None:
    open_when_noted: list[int] = []

    class Watching(Ledger):
        def note(self, permit: Permit, spent: Spent) -> None:
            super().note(permit, spent)
            with BlockingRedis(unix_socket_path=redis.connection_pool.connection_kwargs["path"]) as client:
                open_when_noted.append(int(client.hget(keys.quota_book("tenant:1"), "open")))  # type: ignore[arg-type]

    ledger = Watching()
    door, account = door_with(redis, ledger), account_of(tokens_per_day=100)
    first, second = await enter(door, account, 10, 10)
    await door.close(first, Spent(1, 1))
    assert open_when_noted == [1]
    unreachable = door_with(Redis.from_url("unix:///nonexistent/valkey.sock"), ledger)
    with pytest.raises(RedisError):
        await unreachable.close(second, Spent(2, 2))
    assert ledger.noted == [(first, Spent(1, 1)), (second, Spent(2, 2))]


async def test_what_runs_is_added_to_what_the_ledger_has(redis: Redis) -> None:
    ledger = Ledger(of_day=50, of_month=50)
    door = door_with(redis, ledger)
    await enter(door, account_of(tokens_per_minute=1000), 30)
    with pytest.raises(QuotaSpent):
        await enter(door, account_of(tokens_per_day=100), 21)
    await enter(door, account_of(tokens_per_day=100), 20)


async def test_quota_that_was_lifted_meanwhile_is_taken_from_the_ledger_again(redis: Redis) -> None:
    ledger = Ledger()
    door = door_with(redis, ledger)
    bounded = Quotas(tokens_per_day=100)
    for version, quotas, tokens in ((1, bounded, 10), (2, Quotas(), 60)):
        (permit,) = await enter(door, Account(charges=(Charge("tenant:1", quotas, version),)), tokens)
        await door.close(permit, Spent(tokens))
        ledger.of_day += tokens
        ledger.of_month += tokens
    account = Account(charges=(Charge("tenant:1", bounded, 3),))
    with pytest.raises(QuotaSpent):
        await enter(door, account, 31)
    await enter(door, account, 30)


async def test_changes_of_others_do_not_ask_the_ledger_and_many_ask_it_once(redis: Redis) -> None:
    ledger = Ledger()
    door = door_with(redis, ledger)
    for version, num_asked in ((1, 2), (2, 4)):
        for epoch in "abcde":
            await redis.set(keys.admission_epoch(), epoch)
            charge = Charge("tenant:1", Quotas(tokens_per_day=10_000), version)
            account = Account(charges=(charge,), epoch=epoch)
            await asyncio.gather(*(enter(door, account, 1) for _ in range(50)))
            assert len(ledger.asked) == num_asked
    assert (await sums(redis))["day:tokens"] == 500


async def test_one_who_leaves_takes_the_ledgers_answer_from_nobody(redis: Redis) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def read(_subject: str, _since: datetime.date) -> int:
        asked.set()
        await answer.wait()
        return 7

    door, account = Door(redis, spent_before=SpentBefore(read)), account_of(tokens_per_day=100)
    leaver, stayer = (asyncio.create_task(enter(door, account, 5)) for _ in range(2))
    await asked.wait()
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    answer.set()
    await stayer
    assert (await sums(redis))["day:tokens"] == 12


async def test_ledger_is_asked_once_more_a_minute_after_it_was_first_asked(redis: Redis) -> None:
    ledger = Ledger()
    door, account = door_with(redis, ledger), account_of(tokens_per_day=100)
    await enter(door, account, 10)
    # Something ran uncounted when the quota was set, and has ended.
    ledger.of_day = ledger.of_month = 30
    await enter(door, account, 10)
    assert len(ledger.asked) == 2
    await redis.hset(keys.quota_book("tenant:1"), "again", 1)
    for _ in range(3):
        await enter(door, account, 10)
    assert len(ledger.asked) == 4
    assert (await sums(redis))["day:tokens"] == 20 + 30 + 30


async def test_redis_that_was_started_anew_is_not_believed_to_know_everything(redis: Redis) -> None:
    ledger = Ledger(of_day=50, of_month=50)
    door, account = door_with(redis, ledger), account_of(tokens_per_day=100)
    await enter(door, account, 10)
    version, _, run_id = (await redis.hget(keys.quota_book("tenant:1"), "seeded")).decode().partition("@")
    assert run_id == (await redis.info("server"))["run_id"]
    older_data = {"seeded": f"{version}@another", "day:tokens": 15, "month:tokens": 15}
    await redis.hset(keys.quota_book("tenant:1"), mapping=older_data)
    await enter(door, account, 10)
    assert (await sums(redis))["day:tokens"] == 50 + 10 + 10


async def test_seeding_twice_counts_once(redis: Redis) -> None:
    ledger = Ledger(of_day=10, of_month=10)
    doors = [door_with(redis, ledger) for _ in range(2)]
    account = account_of(tokens_per_day=100)
    await asyncio.gather(*(enter(door, account, 5) for door in doors for _ in range(4)))
    assert (await sums(redis))["day:tokens"] == 50


async def test_unreadable_ledger_lets_nobody_with_a_daily_quota_in(redis: Redis) -> None:
    async def fail(subject: str, since_day: datetime.date) -> int:
        raise OSError("no database")

    door = Door(redis, spent_before=SpentBefore(fail))
    with pytest.raises(Unavailable):
        await enter(door, account_of(tokens_per_day=100), 1)
    await enter(door, account_of(tokens_per_minute=100), 1)


async def test_months_begin_and_end_where_the_calendar_says(redis: Redis) -> None:
    script = "local now = ARGV[1] * 86400000" + quota_scripts.COUNT + "return {this_month, wait_for_month()}"
    count = redis.register_script(script)
    epoch = datetime.date(1970, 1, 1)
    days = [datetime.date(year, month, 1) for year in (1999, 2000, 2024, 2026, 2100) for month in range(1, 13)]
    for day in [*days, *(first - datetime.timedelta(days=1) for first in days), datetime.date(2024, 2, 29)]:
        month, wait_ms = await count(args=[(day - epoch).days])
        assert month == day.year * 12 + day.month - 1
        next_month = (day.replace(day=1) + datetime.timedelta(days=32)).replace(day=1)
        assert wait_ms == (next_month - day).days * 86_400_000
