"""Quotas at the door, counted in a real Valkey."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence

import pytest
from redis.asyncio import Redis

from serving.admission.accounts import Account, Charge, StaleAccount
from serving.admission.door import Door
from serving.admission.permits import PermitLost, Weight
from serving.admission.standing import Standing
from serving.contracts import keys
from serving.contracts.accounting import Spent
from serving.contracts.errors import QueueFull, QuotaExceeded, QuotaSpent, RateLimited
from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables
from tests.admission.quotas import (
    POOL,
    WIDE,
    Ledger,
    account_of,
    door_with,
    enter,
    passing_leases,
    passing_minute,
    sums,
)

IDLE = {"requests": 0, "tokens": 0, "open": 0, "day:tokens": 0, "month:tokens": 0}


@pytest.fixture
def door(redis: Redis) -> Door:
    return Door(redis)


# --- each quota ---


@pytest.mark.parametrize(
    ("quota", "code"),
    [
        ("requests_per_minute", "rate_limit_exceeded"),
        ("max_concurrent_requests", "rate_limit_exceeded"),
    ],
)
async def test_lets_in_so_many_requests(door: Door, redis: Redis, quota: str, code: str) -> None:
    account = account_of(**{quota: 3})
    for _ in range(3):
        await enter(door, account, 10)
    with pytest.raises(RateLimited) as caught:
        await enter(door, account, 10)
    assert caught.value.code == code
    assert f"the tenant's quota {quota} is 3: 3 " in caught.value.message
    assert "asks for 1" in caught.value.message
    assert 1 <= caught.value.retry_after_seconds <= 60
    assert not caught.value.is_final
    assert (await sums(redis))["requests"] == 3


@pytest.mark.parametrize(
    ("quota", "code"),
    [
        ("tokens_per_minute", "rate_limit_exceeded"),
        ("tokens_per_day", "insufficient_quota"),
        ("tokens_per_month", "insufficient_quota"),
    ],
)
async def test_lets_in_so_many_tokens_to_the_last_one(redis: Redis, quota: str, code: str) -> None:
    door, account = door_with(redis, Ledger()), account_of(**{quota: 100})
    await enter(door, account, 60)
    await enter(door, account, 40)
    with pytest.raises(QuotaExceeded) as caught:
        await enter(door, account, 1)
    assert caught.value.code == code
    assert f"the tenant's quota {quota} is 100: 100 tokens" in caught.value.message
    assert (await sums(redis))["tokens"] == 100


async def test_prompts_of_one_request_enter_together_or_not_at_all(door: Door, redis: Redis) -> None:
    """C39: what is refused is not partly let in."""
    account = account_of(tokens_per_minute=100)
    with pytest.raises(RateLimited):
        await enter(door, account, 60, 41)
    assert await sums(redis) == IDLE
    assert await redis.hget(keys.permit_weights(POOL), "total:requests") is None
    assert len(await enter(door, account, 60, 40)) == 2


async def test_tenant_and_key_are_charged_together_or_not_at_all(door: Door, redis: Redis) -> None:
    account = Account(
        charges=(
            Charge("tenant:1", Quotas(tokens_per_minute=100)),
            Charge("key:abc", Quotas(tokens_per_minute=50)),
        )
    )
    await enter(door, account, 50)
    with pytest.raises(RateLimited) as caught:
        await enter(door, account, 1)
    assert "the key's quota tokens_per_minute is 50" in caught.value.message
    assert (await sums(redis))["tokens"] == (await sums(redis, "key:abc"))["tokens"] == 50


async def test_a_full_queue_charges_nobody(door: Door, redis: Redis) -> None:
    narrow = Tunables(max_queue_requests=1)
    account = account_of(requests_per_minute=10)
    await enter(door, account, 1, tunables=narrow)
    with pytest.raises(QueueFull):
        await enter(door, account, 1, tunables=narrow)
    assert (await sums(redis))["requests"] == 1


async def test_account_without_quotas_leaves_no_trace(door: Door, redis: Redis) -> None:
    (permit,) = await enter(door, account_of(max_prompt_tokens=5), 10)
    await door.close(permit, Spent(5, 5))
    assert await redis.keys("footplate:quota:*") == []


async def test_what_can_never_be_is_said_to_be_final(door: Door) -> None:
    with pytest.raises(RateLimited) as caught:
        await enter(door, account_of(tokens_per_minute=100), 101)
    assert caught.value.is_final
    assert "can never be" in caught.value.message


async def test_a_spent_day_is_said_to_last_until_midnight(redis: Redis) -> None:
    door = door_with(redis, Ledger(of_day=100, of_month=100))
    with pytest.raises(QuotaSpent) as caught:
        await enter(door, account_of(tokens_per_day=100), 1)
    now = datetime.datetime.now(datetime.UTC)
    midnight = datetime.datetime.combine(now.date() + datetime.timedelta(days=1), datetime.time(), datetime.UTC)
    assert abs(caught.value.retry_after_seconds - (midnight - now).total_seconds()) < 60
    assert caught.value.is_final == (caught.value.retry_after_seconds > 60)


async def test_a_spent_month_is_said_to_last_until_the_next_one(redis: Redis) -> None:
    door = door_with(redis, Ledger(of_day=0, of_month=100))
    with pytest.raises(QuotaSpent) as caught:
        await enter(door, account_of(tokens_per_month=100), 1)
    now = datetime.datetime.now(datetime.UTC)
    first = (now.date().replace(day=1) + datetime.timedelta(days=32)).replace(day=1)
    rest = datetime.datetime.combine(first, datetime.time(), datetime.UTC) - now
    assert abs(caught.value.retry_after_seconds - rest.total_seconds()) < 60


async def test_retry_after_is_when_enough_of_the_window_has_left(redis: Redis) -> None:
    door = Door(redis, window_seconds=40)
    account = account_of(tokens_per_minute=100)
    for tokens in (10, 50, 40):
        await enter(door, account, tokens)
    now_ms = int((await redis.time())[0]) * 1000
    ids = await redis.zrange(keys.quota_charges("tenant:1"), 0, -1)
    # The oldest came 35 s ago, the next 20 s ago: the first leaves in 5 s, too little alone, the second in 20 s.
    for permit_id, age_ms in zip(ids, (35_000, 20_000, 0), strict=True):
        await redis.zadd(keys.quota_charges("tenant:1"), {permit_id: now_ms - age_ms})
    amounts = [int((await redis.hget(keys.quota_book("tenant:1"), permit_id)).split(b":")[0]) for permit_id in ids]
    needed = amounts[0] + 1
    with pytest.raises(RateLimited) as caught:
        await enter(door, account, needed)
    assert 19 <= caught.value.retry_after_seconds <= 21
    with pytest.raises(RateLimited) as caught:
        await enter(door, account, amounts[0])
    assert 4 <= caught.value.retry_after_seconds <= 6


# --- from beginning to end ---


async def test_true_tokens_take_the_place_of_the_estimate(door: Door, redis: Redis) -> None:
    account = account_of(tokens_per_minute=100)
    (permit,) = await enter(door, account, 90)
    permit = await door.settle(permit, Weight(1, 5, 30), tunables=WIDE)
    assert (await sums(redis))["tokens"] == 30
    await enter(door, account, 70)
    with pytest.raises(RateLimited) as caught:
        await door.settle(permit, Weight(1, 5, 31), tunables=WIDE)
    assert "tokens_per_minute is 100: 70 tokens of the last minute are used" in caught.value.message
    assert "asks for 31" in caught.value.message
    assert (await sums(redis))["tokens"] == 100


async def test_settling_that_is_refused_moves_neither_queue_nor_quota(door: Door, redis: Redis) -> None:
    account = Account(
        charges=(
            Charge("tenant:1", Quotas(tokens_per_minute=1000)),
            Charge("key:abc", Quotas(tokens_per_minute=100)),
        )
    )
    (permit,) = await enter(door, account, 50)
    with pytest.raises(RateLimited) as caught:
        await door.settle(permit, Weight(1, 77, 101), tunables=WIDE)
    assert "the key's quota" in caught.value.message
    assert (await sums(redis))["tokens"] == (await sums(redis, "key:abc"))["tokens"] == 50
    assert await redis.hget(keys.permit_weights(POOL), "total:tokens") == b"1"


async def test_end_counts_what_was_used(redis: Redis) -> None:
    ledger = Ledger()
    door = door_with(redis, ledger)
    account = account_of(tokens_per_minute=100, tokens_per_day=1000, tokens_per_month=1000)
    (permit,) = await enter(door, account, 90)
    await door.close(permit, Spent(10, 7))
    assert await sums(redis) == {"requests": 1, "tokens": 17, "open": 0, "day:tokens": 17, "month:tokens": 17}
    assert ledger.noted == [(permit, Spent(10, 7))]
    assert await redis.hget(keys.permit_weights(POOL), "total:requests") == b"0"


async def test_what_never_ran_is_as_if_it_had_not_come(redis: Redis) -> None:
    ledger = Ledger()
    door = door_with(redis, ledger)
    account = account_of(requests_per_minute=1, tokens_per_day=100, max_concurrent_requests=1)
    for _ in range(5):
        (permit,) = await enter(door, account, 90)
        await door.close(permit, Spent())
    assert await sums(redis) == IDLE
    assert ledger.noted == []
    assert await redis.zcard(keys.quota_charges("tenant:1")) == 0


async def test_a_second_end_changes_nothing(door: Door, redis: Redis) -> None:
    account = account_of(tokens_per_minute=100, max_concurrent_requests=2)
    (first,) = await enter(door, account, 40)
    await enter(door, account, 40)
    for spent in (Spent(1, 2), Spent(1, 2), Spent(30, 9), Spent()):
        await door.close(first, spent)
    found = await sums(redis)
    assert (found["requests"], found["tokens"], found["open"]) == (2, 43, 1)


async def test_running_requests_count_until_they_end_though_they_wait_no_more(door: Door, redis: Redis) -> None:
    """C14: at the end, nothing is in use."""
    account = account_of(max_concurrent_requests=2)
    permits = [(await enter(door, account, 10))[0] for _ in range(2)]
    for permit in permits:
        await door.release(permit)
    assert await redis.hget(keys.permit_weights(POOL), "total:requests") == b"0"
    with pytest.raises(RateLimited):
        await enter(door, account, 10)
    for permit in permits:
        await door.close(permit, Spent(1, 1), still_waits=False)
    assert (await sums(redis))["open"] == 0
    await enter(door, account, 10)


async def test_what_left_the_window_counts_no_more_but_for_the_day(redis: Redis) -> None:
    door = door_with(redis, Ledger())
    account = account_of(requests_per_minute=1, tokens_per_minute=100, tokens_per_day=250)
    (open_one,) = await enter(door, account, 100)
    await passing_minute(redis, account)
    assert await sums(redis) == {"requests": 0, "tokens": 0, "open": 1, "day:tokens": 100, "month:tokens": 100}
    await enter(door, account, 100)
    await door.close(open_one, Spent(10, 20))
    found = await sums(redis)
    assert (found["requests"], found["tokens"], found["day:tokens"]) == (1, 100, 130)
    with pytest.raises(RateLimited):
        await enter(door, account, 1)


async def test_nothing_stays_of_what_ended_and_left_the_window(door: Door, redis: Redis) -> None:
    account = account_of(tokens_per_minute=1000)
    permits = [(await enter(door, account, 10))[0] for _ in range(5)]
    for permit in permits[:3]:
        await door.close(permit, Spent(1, 1))
    await passing_minute(redis, account)
    for permit in permits[3:]:
        await door.close(permit, Spent(1, 1))
    await passing_minute(redis, account)
    fields = await redis.hkeys(keys.quota_book("tenant:1"))
    assert not any(permit.permit_id.encode() in fields for permit in permits)
    assert await redis.exists(keys.quota_charges("tenant:1"), keys.quota_leases("tenant:1")) == 0
    assert await redis.pttl(keys.quota_book("tenant:1")) > 0


async def test_dead_owners_requests_are_settled_to_their_last_report(redis: Redis) -> None:
    dying, living = Door(redis, lease_seconds=0), Door(redis)
    account = account_of(tokens_per_minute=1000, max_concurrent_requests=2)
    (reported,) = await enter(living, account, 300)
    (silent,) = await enter(living, account, 300)
    await living.renew([(reported, Spent(20, 22))])
    # The last renewals of a process that dies: their leases end at once.
    await dying.renew([(reported, Spent(20, 30)), (silent, Spent())])
    found = await living.standing(account)
    assert [(standing.requests, standing.tokens) for standing in found] == [(1, 50)]
    assert (await sums(redis))["open"] == 0


async def test_owner_that_was_thought_dead_still_pays_for_what_it_used(redis: Redis) -> None:
    ledger = Ledger()
    door = door_with(redis, ledger)
    account = account_of(tokens_per_minute=1000, tokens_per_day=10_000, max_concurrent_requests=2)
    (renewed,), (ended,) = await enter(door, account, 300), await enter(door, account, 300)
    await door.renew([(renewed, Spent(20, 30)), (ended, Spent(20, 40))])
    await passing_leases(redis)
    await door.standing(account)
    assert await sums(redis) == {"requests": 2, "tokens": 110, "open": 0, "day:tokens": 110, "month:tokens": 110}
    await door.renew([(renewed, Spent(20, 50))])
    assert await sums(redis) == {"requests": 2, "tokens": 360, "open": 1, "day:tokens": 360, "month:tokens": 360}
    for _ in range(2):
        await door.close(renewed, Spent(20, 100))
        await door.close(ended, Spent(20, 200))
    assert await sums(redis) == {"requests": 2, "tokens": 340, "open": 0, "day:tokens": 340, "month:tokens": 340}
    await passing_minute(redis, account)
    assert await sums(redis) == {"requests": 0, "tokens": 0, "open": 0, "day:tokens": 340, "month:tokens": 340}


async def test_long_request_that_lost_its_lease_is_settled_to_what_it_used(redis: Redis) -> None:
    door, account = door_with(redis, Ledger()), account_of(tokens_per_day=10_000)
    (permit,) = await enter(door, account, 300)
    await passing_minute(redis, account)
    await door.renew([(permit, Spent(20, 30))])
    await passing_leases(redis)
    await door.standing(account)
    assert (await sums(redis))["day:tokens"] == 50
    for _ in range(2):
        await door.close(permit, Spent(20, 200))
    assert await sums(redis) == {**IDLE, "day:tokens": 220, "month:tokens": 220}


async def test_lease_that_ended_before_the_prompt_was_tokenised_is_lost(door: Door, redis: Redis) -> None:
    account = account_of(tokens_per_minute=1000)
    for lose in (passing_leases, Redis.flushall):
        (permit,) = await enter(door, account, 10)
        await lose(redis)
        with pytest.raises(PermitLost):
            await door.settle(permit, Weight(1, 1, 10), tunables=WIDE)
        assert await sums(redis) == IDLE


async def test_renewing_does_not_open_what_has_ended(door: Door, redis: Redis) -> None:
    account = account_of(max_concurrent_requests=2)
    (permit,) = await enter(door, account, 10)
    await door.close(permit, Spent(1, 1))
    await door.renew([(permit, Spent(1, 1))])
    assert (await sums(redis))["open"] == 0
    assert (await sums(redis))["tokens"] == 2


async def test_cancelled_entry_charges_nobody(door: Door, redis: Redis) -> None:
    account = account_of(max_concurrent_requests=100)
    for delay in range(20):
        task = asyncio.create_task(enter(door, account, 10))
        for _ in range(delay):
            await asyncio.sleep(0)
        if task.done():
            await door.close(task.result()[0], Spent())
            continue
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await sums(redis)) == IDLE


async def test_lowered_quota_counts_at_once_and_ends_nobody(door: Door, redis: Redis) -> None:
    for _ in range(4):
        await enter(door, account_of(max_concurrent_requests=4), 1)
    with pytest.raises(RateLimited):
        await enter(door, account_of(max_concurrent_requests=2), 1)
    assert (await sums(redis))["open"] == 4


# --- the account ---


async def test_account_of_an_older_epoch_is_stale(door: Door, redis: Redis) -> None:
    old = Account(charges=(Charge("tenant:1", Quotas(requests_per_minute=5)),), epoch="one")
    await redis.set(keys.admission_epoch(), "one")
    await enter(door, old, 1)
    await redis.set(keys.admission_epoch(), "two")
    with pytest.raises(StaleAccount):
        await enter(door, old, 1)
    await redis.delete(keys.admission_epoch())
    with pytest.raises(StaleAccount):
        await enter(door, old, 1)
    assert (await sums(redis))["requests"] == 1


async def test_tells_where_the_charges_stand_also_where_it_refuses(redis: Redis) -> None:
    door, account = Door(redis, window_seconds=30), account_of(requests_per_minute=2, tokens_per_minute=100)
    told: list[Sequence[Standing]] = []
    (permit,) = await enter(door, account, 30, tell=told.append)
    await door.settle(permit, Weight(1, 1, 20), tunables=WIDE, tell=told.append)
    await enter(door, account, 80, tell=told.append)
    with pytest.raises(RateLimited):
        await enter(door, account, 1, tell=told.append)
    seen = [(standing.requests, standing.tokens) for (standing,) in told]
    assert seen == [(1, 30), (1, 20), (2, 100), (2, 100)]
    assert all(0 < standing.reset_seconds <= 30 for (standing,) in told)
