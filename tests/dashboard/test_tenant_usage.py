"""What a tenant used in the console: by day, by key, and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import AsyncIterator
from datetime import date, timedelta
from typing import Any

import httpx
import pytest
from django.utils import timezone

from serving.admission.models import Tenant
from serving.admission.usage import UsageRow, add_usage
from serving.tables import csv_pieces
from tests.dashboard.harness import Services
from tests.dashboard.tenancy import TENANTS, browser, in_thread, make_key, make_tenant, page_of, session_of, words

FORMULA = "=cmd|'/c calc'!A1"


@pytest.fixture
async def auditor(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(application, await session_of("auditor")) as client:
        yield client


@pytest.fixture
async def tenant(services: Services, pool: str) -> Tenant:
    return await make_tenant(services, FORMULA)


def days_ago(number: int) -> date:
    return timezone.now().date() - timedelta(days=number)


async def use(tenant: Tenant, *, prompt: int, completion: int, back: int = 0, key: str = "") -> None:
    row = UsageRow(
        tenant_id=tenant.pk,
        key_prefix=key,
        day=days_ago(back),
        num_requests=2,
        prompt_tokens=prompt,
        completion_tokens=completion,
    )
    await in_thread(add_usage)([row])


def rows_of(page: str) -> dict[str, str]:
    return {row[0]: words(row[1]) for row in re.findall(r'<tr data-day="([^"]+)".*?>(<th.*?)</tr>', page, re.DOTALL)}


async def test_days_without_use_are_shown_too_and_sums_are_right(auditor: httpx.AsyncClient, tenant: Tenant) -> None:
    await use(tenant, prompt=1_200, completion=34)
    await use(tenant, prompt=10, completion=5, back=6)
    await use(tenant, prompt=7_000, completion=0, back=7)
    url = f"{TENANTS}{tenant.pk}/usage/"
    for days in (7, 30, 90):
        rows = rows_of(await page_of(auditor, f"{url}?days={days}"))
        assert list(rows) == [days_ago(number).isoformat() for number in range(days)]
    week = await page_of(auditor, f"{url}?days=7")
    assert rows_of(week)[days_ago(0).isoformat()].endswith("2 1,200 34 1,234")
    assert rows_of(week)[days_ago(1).isoformat()].endswith("0 0 0 0")
    assert "Requests 4 Prompt tokens 1,210 Completion tokens 39 Tokens 1,249" in words(week)
    assert 'data-prompt="1200"' in week
    assert "Tokens 8,249" in words(await page_of(auditor, url))


async def test_a_key_can_be_looked_at_alone(auditor: httpx.AsyncClient, tenant: Tenant, services: Services) -> None:
    prefix = (await make_key(services, tenant, label="nightly")).split("-")[1]
    await use(tenant, prompt=10, completion=1, key=prefix)
    await use(tenant, prompt=500, completion=5)
    url = f"{TENANTS}{tenant.pk}/usage/"
    both = words(await page_of(auditor, url))
    assert "without a key 2 500 5 505" in both
    assert "nightly 2 10 1 11" in both
    one = await page_of(auditor, f"{url}?key={prefix}")
    assert "Tokens 11" in words(one)
    assert f"days=7&amp;key={prefix}" in one
    lines = list(csv.reader(io.StringIO((await auditor.get(f"{url[:-1]}.csv?key={prefix}")).text)))
    assert [line[2] for line in lines] == ["key", prefix]


@pytest.mark.parametrize("query", ["days=8", "days=x", "days=", "days=99999999999", "days=%00", "key="])
async def test_whatever_range_is_asked_for_one_is_shown(auditor: httpx.AsyncClient, tenant: Tenant, query: str) -> None:
    for path in ("usage/", "usage.csv"):
        assert (await auditor.get(f"{TENANTS}{tenant.pk}/{path}?{query}")).status_code == 200


@pytest.mark.parametrize("key", ["f" * 12, "%00", "x", "é"])
async def test_usage_of_an_unknown_key_is_not_found(auditor: httpx.AsyncClient, tenant: Tenant, key: str) -> None:
    for path in ("usage/", "usage.csv"):
        assert (await auditor.get(f"{TENANTS}{tenant.pk}/{path}?key={key}")).status_code == 404


async def test_csv_has_a_line_a_day_and_key_and_no_formula(
    auditor: httpx.AsyncClient, tenant: Tenant, services: Services
) -> None:
    prefix = (await make_key(services, tenant, label="@nightly, reports")).split("-")[1]
    await use(tenant, prompt=10, completion=1, key=prefix)
    await use(tenant, prompt=20, completion=2, back=3)
    response = await auditor.get(f"{TENANTS}{tenant.pk}/usage.csv?days=7")
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert re.fullmatch(
        r'attachment; filename="usage-tenant-\d+-[0-9-]{10}-7-days\.csv"', response.headers["Content-Disposition"]
    )
    assert list(csv.reader(io.StringIO(response.text))) == [
        ["day", "tenant", "key", "label", "requests", "prompt_tokens", "completion_tokens", "tokens"],
        [days_ago(3).isoformat(), f"'{FORMULA}", "", "", "2", "20", "2", "22"],
        [days_ago(0).isoformat(), f"'{FORMULA}", prefix, "'@nightly, reports", "2", "10", "1", "11"],
    ]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "  ="])
def test_what_a_spreadsheet_would_reckon_is_made_a_text(start: str) -> None:
    (text,) = csv_pieces(("name",), [(f"{start}1+1",)])
    assert list(csv.reader(io.StringIO(text, newline=""))) == [["name"], [f"'{start}1+1"]]


def test_harmless_cells_stay_as_they_are_and_long_tables_come_in_pieces() -> None:
    pieces = list(csv_pieces(("name", "count"), [("a-b", -5)] * 1201))
    assert len(pieces) == 3
    assert list(csv.reader(io.StringIO("".join(pieces)))) == [["name", "count"], *[["a-b", "-5"]] * 1201]
