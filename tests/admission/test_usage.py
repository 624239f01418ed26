"""The durable ledger: nothing that was used is lost or counted twice."""

from __future__ import annotations

import concurrent.futures
import datetime
import threading

import pytest
from django.db import connections, transaction

from serving.admission.models import Tenant, Usage
from serving.admission.selectors import usage_by_day, usage_by_key, used_tokens
from serving.admission.usage import UsageRow, add_usage

pytestmark = pytest.mark.django_db(transaction=True)
DAY = datetime.date(2026, 3, 31)
NEXT_DAY = datetime.date(2026, 4, 1)
KEY, OTHER_KEY = "a" * 12, "b" * 12


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return Tenant.objects.create(name="acme")


def row(tenant: Tenant, key: str = KEY, day: datetime.date = DAY, *, prompt: int = 3, answer: int = 2) -> UsageRow:
    return UsageRow(
        tenant_id=tenant.pk, key_prefix=key, day=day, num_requests=1, prompt_tokens=prompt, completion_tokens=answer
    )


def test_increments_add_up_whether_they_come_together_or_apart(tenant: Tenant) -> None:
    add_usage([row(tenant), row(tenant), row(tenant, OTHER_KEY)])
    add_usage([row(tenant, day=NEXT_DAY), row(tenant)])
    add_usage([])
    assert list(Usage.objects.order_by("day", "key_prefix").values_list("day", "key_prefix", "num_requests")) == [
        (DAY, KEY, 3),
        (DAY, OTHER_KEY, 1),
        (NEXT_DAY, KEY, 1),
    ]
    totals = {"num_requests": 4, "prompt_tokens": 12, "completion_tokens": 8}
    assert usage_by_day(tenant, since_day=DAY)[0] == {"day": DAY, **totals}
    assert [entry["key_prefix"] for entry in usage_by_key(tenant, since_day=DAY)] == [KEY, OTHER_KEY]
    assert [entry["day"] for entry in usage_by_day(tenant, since_day=NEXT_DAY)] == [NEXT_DAY]


def test_tokens_are_summed_by_subject_from_a_day_on(tenant: Tenant) -> None:
    other = Tenant.objects.create(name="other")
    add_usage([row(tenant), row(tenant, OTHER_KEY, NEXT_DAY), row(other, "", prompt=100, answer=0)])
    assert used_tokens(f"tenant:{tenant.pk}", since_day=DAY) == 10
    assert used_tokens(f"tenant:{tenant.pk}", since_day=NEXT_DAY) == 5
    assert used_tokens(f"tenant:{other.pk}", since_day=DAY) == 100
    assert used_tokens(f"key:{KEY}", since_day=DAY) == 5
    assert used_tokens(f"key:{OTHER_KEY}", since_day=DAY) == 5
    assert used_tokens("key:" + "c" * 12, since_day=DAY) == 0


def test_sums_beyond_32_bits_stay_exact(tenant: Tenant) -> None:
    add_usage([row(tenant, prompt=2**40, answer=1)])
    add_usage([row(tenant, prompt=2**40, answer=1)])
    assert used_tokens(f"tenant:{tenant.pk}", since_day=DAY) == 2 * (2**40 + 1)


def test_what_a_tenant_that_is_gone_used_does_not_keep_others_from_the_ledger(tenant: Tenant) -> None:
    gone = UsageRow(tenant_id=tenant.pk + 1, key_prefix=KEY, day=DAY, num_requests=1)
    add_usage([gone, row(tenant)])
    assert list(Usage.objects.values_list("tenant", "num_requests")) == [(tenant.pk, 1)]


@pytest.mark.heavy
def test_many_writers_and_a_long_reader_lose_nothing(tenant: Tenant) -> None:
    """C103: 16 writers that add to the same rows in several orders, beside one who reads all the while."""
    num_writers, num_rounds = 16, 20
    reading, done = threading.Event(), threading.Event()

    def read_long() -> int:
        try:
            with transaction.atomic():
                first = Usage.objects.count()
                reading.set()
                # A reader in a transaction of its own keeps an old state; writers must not wait for it on PostgreSQL,
                # and on SQLite, where a transaction is taken for writing, they wait until it ends.
                done.wait(0.5)
                return first
        finally:
            connections.close_all()

    def write(number: int) -> None:
        rows = [row(tenant), row(tenant, OTHER_KEY)]
        try:
            for _ in range(num_rounds):
                add_usage(rows if number % 2 else rows[::-1])
        finally:
            connections.close_all()

    with concurrent.futures.ThreadPoolExecutor(num_writers + 1) as threads:
        reader = threads.submit(read_long)
        assert reading.wait(20)
        for writer in [threads.submit(write, number) for number in range(num_writers)]:
            writer.result()
        done.set()
        assert reader.result() == 0
    total = num_writers * num_rounds
    assert used_tokens(f"tenant:{tenant.pk}", since_day=DAY) == 2 * 5 * total
    assert list(Usage.objects.values_list("num_requests", flat=True)) == [total, total]
