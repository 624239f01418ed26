"""The list of tenants, and those that used most."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe
from redis import Redis

from dashboard.pages import render_page, whole_number
from dashboard.permissions import may_administer
from dashboard.services import services_of
from dashboard.tenant_pages import for_readers
from dashboard.tenant_presenters import compact, count, pools_in_words, present_bar
from dashboard.tenant_reading import read_uses, today
from dashboard.tenant_usage_presenters import (
    RangeChoice,
    TalkerRow,
    TenantRow,
    present_ranges,
    present_talkers,
)
from dashboard.threads import in_thread
from serving.admission import overview, selectors
from serving.contracts.texts import is_storable, without_secrets

PAGE_SIZE = 50
LONGEST_SEARCH = 100
_TALKER_DAYS = (1, 7, 30)
_BY_TOKENS = "tokens"


@require_safe
@for_readers
async def tenants(request: HttpRequest) -> HttpResponseBase:
    """Tenants in pages, by name or, with `?sort=tokens`, by the tokens of today; those whose name contains `?q=`, after
    the place `?after=`. Beside them the ten tenants and keys that used most in `?days=` (1, 7 or 30)."""
    asked = _Asked.of(request)
    page = await in_thread(_read_page, asked, user=await request.auser(), redis=services_of(request).blocking_redis)
    return await render_page(request, "dashboard/tenants.html", page, status=400 if page.problem else 200)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TenantsPage:
    """What `tenants.html` shows. `problem` is what is wrong with the search."""

    page: str = "tenants"
    may_administer: bool
    query: str
    sort: str
    problem: str
    rows: tuple[TenantRow, ...]
    by_name_url: str
    by_tokens_url: str
    first_url: str | None
    next_url: str | None
    days: int
    ranges: tuple[RangeChoice, ...]
    top_tenants: tuple[TalkerRow, ...]
    top_keys: tuple[TalkerRow, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the address asks for; what makes no sense in it is left out."""

    query: str
    sort: str
    after: str
    days: int

    @classmethod
    def of(cls, request: HttpRequest) -> _Asked:
        days = whole_number(request.GET.get("days"))
        return cls(
            query=request.GET.get("q", "").strip(),
            sort=_BY_TOKENS if request.GET.get("sort") == _BY_TOKENS else "name",
            after=request.GET.get("after", ""),
            days=days if days in _TALKER_DAYS else _TALKER_DAYS[0],
        )

    def url(self, **changes: Any) -> str:
        """The address of this list, asked for otherwise; it begins anew unless `after` is said."""
        asked = dataclasses.replace(self, **{"after": "", **changes})
        known = {"q": asked.query, "sort": "" if asked.sort == "name" else asked.sort, "after": asked.after}
        known["days"] = "" if asked.days == _TALKER_DAYS[0] else str(asked.days)
        text = urlencode({name: value for name, value in known.items() if value})
        return reverse("dashboard:tenants") + (f"?{text}" if text else "")


def _read_page(asked: _Asked, *, user: Any, redis: Redis) -> TenantsPage:
    problem = ""
    if not all(is_storable(text, longest=LONGEST_SEARCH) for text in (asked.query, asked.after)):
        problem = f"q must be a text of at most {LONGEST_SEARCH} characters, without NUL and API keys"
        asked = dataclasses.replace(asked, query=without_secrets(asked.query)[:LONGEST_SEARCH], after="")
    found = [] if problem else _find(asked)
    shown = found[:PAGE_SIZE]
    since = today() - datetime.timedelta(days=asked.days - 1)
    return TenantsPage(
        may_administer=may_administer(user),
        query=asked.query,
        sort=asked.sort,
        problem=problem,
        rows=_rows(shown, redis=redis),
        by_name_url=asked.url(sort="name"),
        by_tokens_url=asked.url(sort=_BY_TOKENS),
        first_url=asked.url() if asked.after else None,
        next_url=asked.url(after=_place_of(shown[-1], asked.sort)) if len(found) > PAGE_SIZE else None,
        days=asked.days,
        ranges=_ranges(asked),
        top_tenants=present_talkers(overview.top_tenants(since_day=since)),
        top_keys=present_talkers(overview.top_keys(since_day=since)),
    )


def _find(asked: _Asked) -> list[Any]:
    """One more than is shown, which tells whether there is a next page."""
    if asked.sort == _BY_TOKENS:
        found = overview.tenants_by_tokens(
            since_day=today(), containing=asked.query, after=_tokens_and_id(asked.after), limit=PAGE_SIZE + 1
        )
        return [tenant for tenant, _ in found]
    return list(overview.tenants_by_name(containing=asked.query, after=asked.after or None, limit=PAGE_SIZE + 1))


def _place_of(tenant: Any, sort: str) -> str:
    return f"{tenant.used}-{tenant.pk}" if sort == _BY_TOKENS else str(tenant.name)


def _tokens_and_id(text: str) -> tuple[int, int] | None:
    tokens, _, tenant_id = text.partition("-")
    numbers = [part for part in (tokens, tenant_id) if part.isascii() and part.isdigit() and len(part) < 20]
    return (int(tokens), int(tenant_id)) if len(numbers) == 2 else None


def _ranges(asked: _Asked) -> tuple[RangeChoice, ...]:
    rest = asked.url(days=_TALKER_DAYS[0]).partition("?")[2]
    url = reverse("dashboard:tenants")
    return present_ranges(url, chosen=asked.days, days=_TALKER_DAYS, rest=f"&{rest}" if rest else "")


def _rows(shown: list[Any], *, redis: Redis) -> tuple[TenantRow, ...]:
    day = today()
    of_day = overview.used_by_tenant(shown, since_day=day)
    of_month = overview.used_by_tenant(shown, since_day=day.replace(day=1))
    facts = overview.key_facts_by_tenant(shown, at=timezone.now())
    without_key = overview.last_days_without_key(shown)
    quotas = {pk: in_force for pk, (_, in_force) in selectors.current_quotas_by_owner(shown).items()}
    uses = read_uses(redis, [(f"tenant:{tenant.pk}", quotas[tenant.pk]) for tenant in shown])
    nothing, no_keys = overview.Sums(), overview.KeyFacts()
    rows = []
    for tenant, use in zip(shown, uses, strict=True):
        today_sums, month_sums = of_day.get(tenant.pk, nothing), of_month.get(tenant.pk, nothing)
        keys = facts.get(tenant.pk, no_keys)
        bound = quotas[tenant.pk].tokens_per_minute
        rows.append(
            TenantRow(
                id=tenant.pk,
                name=tenant.name,
                enabled=tenant.enabled,
                weight=f"{tenant.weight:g}",
                pools=pools_in_words(tenant.pools),
                today=compact(today_sums.tokens),
                today_requests=count(today_sums.num_requests, "request"),
                month=compact(month_sums.tokens),
                month_requests=count(month_sums.num_requests, "request"),
                bar=present_bar("tokens_per_minute", bound=bound, used=None if use is None else use.tokens),
                num_keys=keys.num_valid,
                last_used_at=keys.last_used_at,
                used_on=_later(without_key.get(tenant.pk), keys.last_used_at),
            )
        )
    return tuple(rows)


def _later(day: datetime.date | None, moment: datetime.datetime | None) -> datetime.date | None:
    """The day, unless the moment is in it or after it."""
    return None if day is None or (moment is not None and moment.date() >= day) else day
