"""The means of the quota tests."""

from __future__ import annotations

import datetime
from typing import Any

from redis.asyncio import Redis

from serving.admission.accounts import Account, Charge
from serving.admission.door import Door
from serving.admission.permits import Permit, Weight
from serving.admission.spent_before import SpentBefore
from serving.contracts import keys
from serving.contracts.accounting import Spent
from serving.contracts.ids import PoolName
from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables

POOL = PoolName("default")
WIDE = Tunables(max_queue_requests=100_000, max_queue_tokens=100_000_000)


def account_of(subject: str = "tenant:1", **quotas: int) -> Account:
    """An account with one charge."""
    return Account(charges=(Charge(subject, Quotas(**quotas)),))


async def enter(door: Door, account: Account, *tokens: int, **options: Any) -> tuple[Permit, ...]:
    """Permits for prompts that are charged with so many tokens, one each."""
    weights = [Weight(1, 1, count) for count in tokens]
    return await door.enter(POOL, weights, tunables=options.pop("tunables", WIDE), account=account, **options)


async def sums(redis: Redis, subject: str = "tenant:1") -> dict[str, int]:
    """What the book of a subject says."""
    names = ("requests", "tokens", "open", "day:tokens", "month:tokens")
    stored = await redis.hmget(keys.quota_book(subject), names)
    return {name: int(value or 0) for name, value in zip(names, stored, strict=True)}


async def passing_minute(redis: Redis, account: Account) -> None:
    """Let all that was charged so far leave the window."""
    await Door(redis, window_seconds=0).standing(account)


async def passing_leases(redis: Redis, subject: str = "tenant:1") -> None:
    """Let all leases of a subject end, of which nobody has renewed one."""
    ids = await redis.zrangebyscore(keys.quota_leases(subject), "(0", "+inf")
    await redis.zadd(keys.quota_leases(subject), dict.fromkeys(ids, 1), xx=True)


class Ledger:
    """What the database says, told by the test; keeps what it was asked."""

    def __init__(self, *, of_day: int = 0, of_month: int = 0) -> None:
        self.of_day = of_day
        self.of_month = of_month
        self.asked: list[tuple[str, datetime.date]] = []
        self.noted: list[tuple[Permit, Spent]] = []

    async def read(self, subject: str, since_day: datetime.date) -> int:
        self.asked.append((subject, since_day))
        return self.of_month if len(self.asked) % 2 == 0 else self.of_day

    def note(self, permit: Permit, spent: Spent) -> None:
        self.noted.append((permit, spent))


def door_with(redis: Redis, ledger: Ledger) -> Door:
    return Door(redis, books=ledger, spent_before=SpentBefore(ledger.read))
