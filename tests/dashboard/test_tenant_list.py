"""The list of tenants in the console: search, order, pages, and top talkers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.utils import timezone

from dashboard.tenant_list import PAGE_SIZE
from serving.admission.models import ApiKey, Tenant
from serving.admission.usage import UsageRow, add_usage
from tests.dashboard.harness import Services
from tests.dashboard.tenancy import TENANTS, browser, in_thread, make_key, make_tenant, page_of, session_of, words


@pytest.fixture
async def admin(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(application, await session_of("admin")) as client:
        yield client


def names_on(page: str) -> list[str]:
    rows = re.search(r"<tbody>(.*?)</tbody>", page, re.DOTALL)
    assert rows is not None
    return re.findall(rf'<th scope="row"><a href="{TENANTS}\d+/">([^<]+)</a>', rows[1])


async def use(tenant: Tenant, tokens: int, *, days_ago: int = 0, key: str = "") -> None:
    day = timezone.now().date() - timedelta(days=days_ago)
    row = UsageRow(
        tenant_id=tenant.pk, key_prefix=key, day=day, num_requests=3, prompt_tokens=tokens - 1, completion_tokens=1
    )
    await in_thread(add_usage)([row])


async def pages_of(client: httpx.AsyncClient, url: str) -> list[list[str]]:
    pages = []
    while url:
        page = await page_of(client, url)
        pages.append(names_on(page))
        following = re.search(r'href="([^"]+)" rel="next"', page)
        assert ("First page" in page) == (len(pages) > 1)
        url = "" if following is None else following[1].replace("&amp;", "&")
    return pages


async def test_an_empty_list_says_what_to_do(admin: httpx.AsyncClient, pool: str) -> None:
    text = words(await page_of(admin, TENANTS))
    assert "No tenant yet. Make the first , then give it a key." in text
    assert "Nothing was used." in text


async def test_a_row_tells_what_a_tenant_is_and_used(admin: httpx.AsyncClient, services: Services) -> None:
    tenant = await make_tenant(
        services, "<b>acme</b>", weight=2, pools=["default"], enabled=False, quotas={"tokens_per_minute": 1000}
    )
    key = await make_key(services, tenant)
    await use(tenant, 12_345, key=key[3:15])
    page = await page_of(admin, TENANTS)
    assert "<b>" not in page
    text = words(page)
    for expected in ("<b>acme</b> disabled", "12.3k 3 requests", "0 of 1,000 (0%)", "2 default 1 never"):
        assert expected in text


async def test_a_tenant_was_last_used_by_a_key_or_by_the_console(admin: httpx.AsyncClient, services: Services) -> None:
    now = timezone.now()
    for name, key_used_at, days_ago in (
        ("by-console", None, 1),
        ("key-today", now, 1),
        ("key-before", now - timedelta(days=9), 1),
    ):
        tenant = await make_tenant(services, name)
        key = await make_key(services, tenant)
        await ApiKey.objects.filter(prefix=key[3:15]).aupdate(last_used_at=key_used_at)
        await use(tenant, 10, days_ago=days_ago)
    text = words(await page_of(admin, TENANTS))
    yesterday = f"{now - timedelta(days=1):%Y-%m-%d}"
    told = dict(re.findall(r"(by-console|key-today|key-before) .*? 1 (\d{4}-\d\d-\d\d(?: \d\d:\d\d)?)", text))
    assert told == {"by-console": yesterday, "key-today": f"{now:%Y-%m-%d %H:%M}", "key-before": yesterday}


async def test_every_tenant_is_on_one_page_by_name_and_by_tokens(admin: httpx.AsyncClient, pool: str) -> None:
    """C103: thousands are read in pages, each of which is one short reading."""
    total = 2 * PAGE_SIZE + 1
    await Tenant.objects.abulk_create(
        Tenant(name=f"{'tT'[number % 2]}enant {number:03d} & co") for number in range(total)
    )
    tenants = [tenant async for tenant in Tenant.objects.order_by("pk")]
    for number, tenant in enumerate(tenants[:60], start=1):
        await use(tenant, 10 * (number % 7 + 1))
    by_name = await pages_of(admin, TENANTS)
    assert [len(page) for page in by_name] == [PAGE_SIZE, PAGE_SIZE, 1]
    names = [name for page in by_name for name in page]
    assert [int(name.split()[1]) for name in names] == list(range(total))
    by_tokens = await pages_of(admin, f"{TENANTS}?sort=tokens")
    assert sorted(name for page in by_tokens for name in page) == sorted(names)
    most = {tenants[number].name.replace("&", "&amp;") for number in range(60) if (number + 1) % 7 == 6}
    assert set(by_tokens[0][: len(most)]) == most


async def test_a_search_finds_parts_of_names_and_keeps_its_order(admin: httpx.AsyncClient, services: Services) -> None:
    for name in ("acme", "Acme two", "100%", "other"):
        await make_tenant(services, name)
    page = await page_of(admin, f"{TENANTS}?q=ACME&sort=tokens")
    assert names_on(page) == ["acme", "Acme two"]
    assert 'name="sort" value="tokens"' in page
    assert f'href="{TENANTS}?q=ACME"' in page
    assert names_on(await page_of(admin, f"{TENANTS}?q=%25")) == ["100%"]
    assert "No tenant has “zzz” in its name" in words(await page_of(admin, f"{TENANTS}?q=zzz"))


@pytest.mark.parametrize("query", ["q=a%00b", "q=" + "x" * 101, "after=%00", "q=fp-0123456789ab-" + "s" * 43])
async def test_a_search_that_cannot_be_asked_is_said_so(admin: httpx.AsyncClient, pool: str, query: str) -> None:
    """C84."""
    page = await page_of(admin, f"{TENANTS}?{query}", status=400)
    assert "q must be a text of at most 100 characters" in words(page)
    assert "s" * 43 not in page


@pytest.mark.parametrize(
    "query", ["sort=x&days=x", "days=9999999999999", "sort=tokens&after=x", "sort=tokens&after=9-9-9", "after=", "q=+"]
)
async def test_whatever_else_is_asked_for_is_answered(admin: httpx.AsyncClient, services: Services, query: str) -> None:
    await make_tenant(services)
    assert names_on(await page_of(admin, f"{TENANTS}?{query}")) == ["acme"]
    await page_of(admin, f"{TENANTS}?sort=tokens&after={'9' * 19}-{'9' * 19}")


async def test_top_talkers_are_those_of_the_chosen_range(admin: httpx.AsyncClient, services: Services) -> None:
    loud, quiet = await make_tenant(services, "loud"), await make_tenant(services, "quiet")
    prefix = (await make_key(services, loud, label="nightly")).split("-")[1]
    await use(loud, 900, days_ago=6, key=prefix)
    await use(quiet, 40)
    today = await page_of(admin, TENANTS)
    assert talkers_on(today) == [["quiet"], ["quiet without a key"]]
    week = await page_of(admin, f"{TENANTS}?days=7")
    assert talkers_on(week) == [["loud", "quiet"], ["loud nightly", "quiet without a key"]]
    assert 'width="100%"' in week
    assert f'href="{TENANTS}{loud.pk}/usage/?key={prefix}"' in week


def talkers_on(page: str) -> list[list[str]]:
    lists = re.findall(r'<ol class="talkers">(.*?)</ol>', page, re.DOTALL)
    return [
        [words(name) for name in re.findall(r'class="talker-name">(.*?)</span><span class="num', each)]
        for each in lists
    ]
