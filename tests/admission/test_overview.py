"""Reading many tenants at once: their order, their pages, and who used most."""

from __future__ import annotations

import datetime

import pytest
from django.utils import timezone

from serving.admission import overview
from serving.admission.models import ApiKey, Tenant
from serving.admission.overview import Sums
from serving.admission.usage import UsageRow, add_usage

pytestmark = pytest.mark.django_db
TODAY = datetime.date(2026, 3, 31)
YESTERDAY = TODAY - datetime.timedelta(days=1)


def make(*names: str) -> list[Tenant]:
    return [Tenant.objects.create(name=name) for name in names]


def use(tenant: Tenant, tokens: int, *, key: str = "", day: datetime.date = TODAY) -> None:
    row = UsageRow(
        tenant_id=tenant.pk, key_prefix=key, day=day, num_requests=1, prompt_tokens=tokens - 1, completion_tokens=1
    )
    add_usage([row])


def names_in_pages(*, limit: int, containing: str = "") -> list[str]:
    names: list[str] = []
    after = None
    while page := overview.tenants_by_name(containing=containing, after=after, limit=limit):
        assert len(page) <= limit
        names += [tenant.name for tenant in page]
        after = names[-1]
    return names


def test_names_are_in_order_whatever_their_case_and_each_is_on_one_page() -> None:
    make("beta", "Alpha", "alpha", "Gamma", "gamma 2", "%", "_")
    for limit in (1, 2, 3, 10):
        found = names_in_pages(limit=limit)
        assert [name for name in found if name.isascii() and name[0].isalpha()] == sorted(
            ("Alpha", "alpha", "beta", "Gamma", "gamma 2"), key=lambda name: (name.lower(), found.index(name))
        )
        assert len(found) == len(set(found)) == 7


@pytest.mark.parametrize(("text", "expected"), [("AMMA", ["Gamma", "gamma 2"]), ("%", ["%"]), ("_", ["_"]), ("x", [])])
def test_a_search_takes_its_text_for_what_it_is(text: str, expected: list[str]) -> None:
    make("Alpha", "Gamma", "gamma 2", "%", "_")
    assert names_in_pages(limit=1, containing=text) == expected


def test_those_who_used_most_come_first_and_those_who_used_nothing_last() -> None:
    idle, little, much, same = make("idle", "little", "much", "same")
    use(little, 5)
    use(little, 900, day=YESTERDAY)
    use(much, 7, key="a" * 12)
    use(much, 3, key="b" * 12)
    use(same, 5)
    found: list[tuple[str, int]] = []
    after = None
    while page := overview.tenants_by_tokens(since_day=TODAY, after=after, limit=1):
        ((tenant, tokens),) = page
        found.append((tenant.name, tokens))
        after = (tokens, tenant.pk)
    assert found == [("much", 10), ("little", 5), ("same", 5), ("idle", 0)]
    assert overview.tenants_by_tokens(since_day=TODAY, after=(10**30, 10**30), limit=9)[0][0] == much
    assert overview.used_by_tenant([idle, much], since_day=TODAY) == {
        much.pk: Sums(num_requests=2, prompt_tokens=8, completion_tokens=2)
    }


def test_top_talkers_are_those_of_the_range_and_no_more_than_asked_for() -> None:
    (acme,) = make("acme")
    ApiKey.objects.create(tenant=acme, prefix="a" * 12, digest="d", label="nightly")
    use(acme, 10, key="a" * 12)
    use(acme, 20)
    use(acme, 70, key="a" * 12, day=YESTERDAY)
    others = make(*(f"other-{number}" for number in range(12)))
    for number, tenant in enumerate(others, start=100):
        use(tenant, number, day=YESTERDAY)
    assert [(each.tenant, each.sums.tokens) for each in overview.top_tenants(since_day=TODAY)] == [("acme", 30)]
    assert [(each.key_prefix, each.label, each.sums.tokens) for each in overview.top_keys(since_day=TODAY)] == [
        ("", "", 20),
        ("a" * 12, "nightly", 10),
    ]
    since_yesterday = [each.sums.tokens for each in overview.top_tenants(since_day=YESTERDAY)]
    assert since_yesterday == list(range(111, 101, -1))


def test_keys_are_counted_while_they_open() -> None:
    now = timezone.now()
    acme, bare = make("acme", "bare")
    for number, ends in enumerate(
        ({}, {"expires_at": now}, {"revoked_at": now}, {"expires_at": now + datetime.timedelta(1)})
    ):
        ApiKey.objects.create(tenant=acme, prefix=f"{number}" * 12, digest="d", **ends)
    ApiKey.objects.filter(prefix="1" * 12).update(last_used_at=now)
    facts = overview.key_facts_by_tenant([acme, bare], at=now)
    assert facts == {acme.pk: overview.KeyFacts(num_valid=2, last_used_at=now)}


def test_the_last_day_of_use_without_a_key_is_told_by_tenant() -> None:
    console, keyed, idle = make("console", "keyed", "idle")
    use(console, 10, day=YESTERDAY)
    use(console, 10)
    use(keyed, 10, key="a" * 12)
    use(keyed, 10, day=YESTERDAY)
    assert overview.last_days_without_key([console, keyed, idle]) == {console.pk: TODAY, keyed.pk: YESTERDAY}


def test_usage_is_told_by_day_by_key_and_by_both() -> None:
    acme, other = make("acme", "other")
    use(acme, 10, key="a" * 12)
    use(acme, 4, key="a" * 12, day=YESTERDAY)
    use(acme, 6, key="b" * 12, day=YESTERDAY)
    use(other, 1000)
    by_day = overview.sums_by_day(acme, since_day=YESTERDAY)
    assert {day: sums.tokens for day, sums in by_day.items()} == {YESTERDAY: 10, TODAY: 10}
    assert list(overview.sums_by_day(acme, since_day=YESTERDAY, key_prefix="b" * 12)) == [YESTERDAY]
    assert {key: sums.tokens for key, sums in overview.sums_by_key(acme, since_day=YESTERDAY).items()} == {
        "a" * 12: 14,
        "b" * 12: 6,
    }
    lines = [
        (line.day, line.key_prefix[:1], line.sums.tokens) for line in overview.usage_lines(acme, since_day=YESTERDAY)
    ]
    assert lines == [(YESTERDAY, "a", 4), (YESTERDAY, "b", 6), (TODAY, "a", 10)]
