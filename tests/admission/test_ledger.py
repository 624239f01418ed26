"""What requests used, on its way to the database."""

from __future__ import annotations

import asyncio
import datetime
import logging

import pytest

from serving.admission.accounts import Account
from serving.admission.ledger import Ledger
from serving.admission.permits import Permit, Weight
from serving.admission.usage import UsageRow
from serving.contracts.accounting import Spent
from serving.contracts.ids import PoolName
from tests.gateway.harness import eventually

DAY = datetime.date(2026, 3, 1)


class Database:
    """Keeps what it is given, unless it is out of reach; `slow` holds it up until the test lets go."""

    def __init__(self) -> None:
        self.rows: list[UsageRow] = []
        self.is_out_of_reach = False
        self.open = asyncio.Event()
        self.open.set()

    async def add(self, rows: list[UsageRow]) -> None:
        await self.open.wait()
        if self.is_out_of_reach:
            raise OSError("no database")
        self.rows += rows


def permit(tenant_id: int | None = 1, key_prefix: str = "abc", day: datetime.date = DAY) -> Permit:
    account = Account(tenant_id=tenant_id, key_prefix=key_prefix)
    return Permit("one", PoolName("default"), Weight(1, 1), account, day)


def row(key_prefix: str = "abc", day: datetime.date = DAY, **counts: int) -> UsageRow:
    return UsageRow(tenant_id=1, key_prefix=key_prefix, day=day, **counts)


async def test_requests_of_a_key_and_day_become_one_row() -> None:
    database = Database()
    ledger = Ledger(database.add)
    ledger.note(permit(), Spent(10, 1))
    ledger.note(permit(), Spent(5, 2))
    ledger.note(permit(key_prefix="def"), Spent(1, 1))
    tomorrow = DAY + datetime.timedelta(days=1)
    ledger.note(permit(day=tomorrow), Spent(7, 0))
    ledger.note(permit(tenant_id=None), Spent(100, 100))
    await ledger.stop()
    assert database.rows == [
        row(num_requests=2, prompt_tokens=15, completion_tokens=3),
        row("def", num_requests=1, prompt_tokens=1, completion_tokens=1),
        row(day=tomorrow, num_requests=1, prompt_tokens=7),
    ]


async def test_stores_again_and_again_while_it_runs() -> None:
    database = Database()
    ledger = Ledger(database.add, every_seconds=0.001)
    ledger.start()
    for count in (1, 2, 3):
        ledger.note(permit(), Spent(count, 0))
        await eventually(lambda count=count: len(database.rows) == count)
    await ledger.stop()
    assert [stored.prompt_tokens for stored in database.rows] == [1, 2, 3]


async def test_who_waits_and_is_cancelled_takes_nothing_along() -> None:
    """A client may leave at any moment: before the database was asked, and while it is, whatever it then answers."""
    database = Database()
    ledger = Ledger(database.add)
    for fails in (False, True):
        database.open.clear()
        database.is_out_of_reach = fails
        ledger.note(permit(), Spent(10, 0))
        waiting = asyncio.create_task(ledger.store())
        await asyncio.sleep(0)
        queued = asyncio.create_task(ledger.store())
        await asyncio.sleep(0)
        for task in (queued, waiting):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        database.open.set()
        await eventually(lambda: not any("_store" in repr(task.get_coro()) for task in asyncio.all_tasks()))
    database.is_out_of_reach = False
    await ledger.stop()
    assert sum(stored.prompt_tokens for stored in database.rows) == 20


async def test_what_cannot_be_stored_is_kept_and_stored_once() -> None:
    database = Database()
    ledger = Ledger(database.add)
    database.is_out_of_reach = True
    ledger.note(permit(), Spent(10, 1))
    await ledger.store()
    ledger.note(permit(), Spent(20, 2))
    await ledger.store()
    assert database.rows == []
    database.is_out_of_reach = False
    await ledger.store()
    await ledger.stop()
    assert database.rows == [row(num_requests=2, prompt_tokens=30, completion_tokens=3)]


async def test_storing_returns_after_what_is_on_its_way_already() -> None:
    database = Database()
    ledger = Ledger(database.add)
    database.open.clear()
    ledger.note(permit(), Spent(10, 1))
    first = asyncio.create_task(ledger.store())
    await asyncio.sleep(0)
    second = asyncio.create_task(ledger.store())
    await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    database.open.set()
    await second
    assert len(database.rows) == 1
    await first


async def test_says_what_is_lost_where_the_database_stays_away(caplog: pytest.LogCaptureFixture) -> None:
    database = Database()
    database.is_out_of_reach = True
    ledger = Ledger(database.add)
    ledger.note(permit(), Spent(10, 1))
    with caplog.at_level(logging.ERROR):
        await ledger.stop()
    assert "11 tokens that were used could not be stored" in caplog.text
