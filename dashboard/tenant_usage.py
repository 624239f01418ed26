"""The pages of what a tenant used: by day and by key, as chart, table and CSV."""

from __future__ import annotations

import dataclasses
import datetime

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard.pages import render_page, whole_number
from dashboard.tenant_pages import TenantHeading, for_readers, heading_of
from dashboard.tenant_reading import today
from dashboard.tenant_usage_presenters import (
    DAYS,
    DayRow,
    KeyUsageRow,
    RangeChoice,
    present_days,
    present_key_usage,
    present_ranges,
    total_of,
)
from dashboard.threads import in_thread
from serving.admission import overview, selectors
from serving.tables import csv_pieces

_HEADER = ("day", "tenant", "key", "label", "requests", "prompt_tokens", "completion_tokens", "tokens")
_USUAL_DAYS = 30


@require_safe
@for_readers
async def usage(request: HttpRequest, tenant_id: int) -> HttpResponseBase:
    """What a tenant used in the last `?days=` (7, 30 or 90), or one `?key=` of it."""
    page = await in_thread(_read_page, tenant_id, days=_days(request), key_prefix=_key(request))
    return await render_page(request, "dashboard/tenant_usage.html", page)


@require_safe
@for_readers
async def usage_csv(request: HttpRequest, tenant_id: int) -> HttpResponseBase:
    """The same as CSV: a row for each day and key with use, days of UTC, the oldest first."""
    days = _days(request)
    text = await in_thread(_read_csv, tenant_id, days=days, key_prefix=_key(request))
    response = HttpResponse(text, content_type="text/csv; charset=utf-8")
    name = f"usage-tenant-{tenant_id}-{_since(days).isoformat()}-{days}-days.csv"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsagePage:
    """What `tenant_usage.html` shows. `key` is the one key that it is about, empty for all."""

    page: str = "tenants"
    tab: str = "usage"
    tenant: TenantHeading
    key: str
    days: int
    ranges: tuple[RangeChoice, ...]
    total: tuple[str, str, str, str]
    day_rows: tuple[DayRow, ...]
    key_rows: tuple[KeyUsageRow, ...]
    csv_url: str
    all_keys_url: str


def _read_page(tenant_id: int, *, days: int, key_prefix: str | None) -> UsagePage:
    tenant = selectors.find_tenant(tenant_id)
    if key_prefix is not None:
        selectors.find_key(tenant_id, key_prefix)
    since_day = _since(days)
    by_day = overview.sums_by_day(tenant, since_day=since_day, key_prefix=key_prefix)
    by_key = overview.sums_by_key(tenant, since_day=since_day)
    url, rest = _url("tenant_usage", tenant_id), "" if key_prefix is None else f"&key={key_prefix}"
    return UsagePage(
        tenant=heading_of(tenant),
        key=key_prefix or "",
        days=days,
        ranges=present_ranges(url, chosen=days, rest=rest),
        total=total_of(by_day.values()),
        day_rows=present_days(by_day, since_day=since_day, today=today()),
        key_rows=present_key_usage(by_key, overview.labels_of(by_key)),
        csv_url=f"{_url('tenant_usage_csv', tenant_id)}?days={days}{rest}",
        all_keys_url=f"{url}?days={days}",
    )


def _read_csv(tenant_id: int, *, days: int, key_prefix: str | None) -> list[str]:
    tenant = selectors.find_tenant(tenant_id)
    if key_prefix is not None:
        selectors.find_key(tenant_id, key_prefix)
    labels = {key.prefix: key.label for key in selectors.keys_of(tenant)}
    rows = (
        (
            line.day.isoformat(),
            tenant.name,
            line.key_prefix,
            labels.get(line.key_prefix, ""),
            line.sums.num_requests,
            line.sums.prompt_tokens,
            line.sums.completion_tokens,
            line.sums.tokens,
        )
        for line in overview.usage_lines(tenant, since_day=_since(days), key_prefix=key_prefix)
    )
    return list(csv_pieces(_HEADER, rows))


def _url(name: str, tenant_id: int) -> str:
    return reverse(f"dashboard:{name}", kwargs={"tenant_id": tenant_id})


def _days(request: HttpRequest) -> int:
    days = whole_number(request.GET.get("days"))
    return days if days in DAYS else _USUAL_DAYS


def _key(request: HttpRequest) -> str | None:
    return request.GET.get("key") or None


def _since(days: int) -> datetime.date:
    return today() - datetime.timedelta(days=days - 1)
