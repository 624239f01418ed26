"""`/ops/v1/tenants`: who may use what, what they used, and who changed it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from serving.admission import selectors, tenants
from serving.admission.models import QuotaVersion, Tenant
from serving.admission.quotas import roll_back_quotas
from serving.api.context import author_of, services_of
from serving.api.replies import json_reply, number_in_query
from serving.api.tenant_schemas import NewTenant, QuotasRollback, TenantChange
from serving.audit.models import AuditEvent
from serving.audit.selectors import events_of_tenant
from serving.contracts.errors import InvalidValue, TenantNotFound
from serving.threads import in_thread
from serving.tuning.selectors import pool_names

_MOST_LISTED = 1000
_MOST_VERSIONS = 100
_USAGE_DAYS = 31
_MOST_USAGE_DAYS = 366


async def list_tenants(request: HttpRequest) -> HttpResponse:
    """Tenants in the order of their making, at most `limit`, those with an id above `after`."""
    limit = number_in_query(request, "limit", default=_MOST_LISTED, low=1, high=_MOST_LISTED)
    after = number_in_query(request, "after", default=0, low=0, high=2**63 - 1)
    found = await in_thread(_read_tenants, after=after, limit=limit + 1)
    return json_reply({"data": found[:limit], "has_more": len(found) > limit})


async def create_tenant(request: HttpRequest, body: NewTenant) -> HttpResponse:
    """Make a tenant. Its name must be free; nothing is bounded but what `quotas` names, and all pools are open unless
    `pools` names some."""
    given = body.model_dump(exclude_none=True, include={"weight", "most_urgent", "pools", "enabled", "keeps_text"})
    await in_thread(_check_pools, body.pools)
    tenant = await in_thread(
        tenants.create_tenant,
        body.name,
        author=author_of(request),
        redis=services_of(request).blocking_redis,
        quotas=body.quotas,
        reason=body.reason or "",
        **given,
    )
    return json_reply(await in_thread(_read_tenant, tenant.pk), status=201)


async def show_tenant(request: HttpRequest, tenant_id: str) -> HttpResponse:
    """One tenant, with the quotas in force."""
    return json_reply(await in_thread(_read_tenant, tenant_id_of(tenant_id)))


async def change_tenant(request: HttpRequest, tenant_id: str, body: TenantChange) -> HttpResponse:
    """Change a tenant; it counts for the next request. Quotas that are left out stay, null takes a bound away, and a
    change of quotas that changes nothing is refused. Null as `pools` opens all of them."""
    changes = body.model_dump(exclude_none=True, include={"name", "weight", "most_urgent", "enabled", "keeps_text"})
    if "pools" in body.model_fields_set:
        changes["pools"] = body.pools
    await in_thread(_check_pools, body.pools)
    tenant = await in_thread(
        tenants.change_tenant,
        tenant_id_of(tenant_id),
        changes,
        author=author_of(request),
        redis=services_of(request).blocking_redis,
        quotas=body.quotas,
        reason=body.reason or "",
        based_on=body.based_on,
    )
    return json_reply(await in_thread(_read_tenant, tenant.pk))


async def list_tenant_quota_versions(request: HttpRequest, tenant_id: str) -> HttpResponse:
    """The newest hundred versions of a tenant's quotas, newest first; `before` is the number that they begin below."""
    before = number_in_query(request, "before", default=2**31 - 1, low=1, high=2**31 - 1)
    return json_reply({"data": await in_thread(_read_versions, tenant_id_of(tenant_id), before=before)})


async def roll_back_tenant_quotas(request: HttpRequest, tenant_id: str, body: QuotasRollback) -> HttpResponse:
    """Store an older version's quotas as a new version; it counts for the next request."""
    version = await in_thread(
        roll_back_quotas,
        tenant_id_of(tenant_id),
        body.version,
        author=author_of(request),
        redis=services_of(request).blocking_redis,
        reason=body.reason or "",
        based_on=body.based_on,
    )
    return json_reply(describe_version(version))


async def show_usage(request: HttpRequest, tenant_id: str) -> HttpResponse:
    """What a tenant used, by day of UTC and by key, from the day `since` on (a month ago, where it is left out).

    What ended within the last seconds may be missing.
    """
    since = _since(request.GET.get("since"), today=timezone.now().date())
    return json_reply(await in_thread(_read_usage, tenant_id_of(tenant_id), since_day=since))


async def show_audit(request: HttpRequest, tenant_id: str) -> HttpResponse:
    """The last hundred changes of a tenant and its keys, newest first: who, when, why, what (`{name: [old, new]}`)."""
    return json_reply({"data": await in_thread(_read_audit, tenant_id_of(tenant_id))})


def tenant_id_of(text: str) -> int:
    """A tenant's id from a path; raises `TenantNotFound` for what can be none."""
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise TenantNotFound("there is no tenant with this id")
    return int(text)


def describe_version(version: QuotaVersion) -> dict[str, Any]:
    """A version of quotas as the API shows it."""
    return {
        "version": version.number,
        "quotas": selectors.quotas_of(version.values).as_dict(),
        "changes": version.changes,
        "reason": version.reason,
        "author": version.author,
        "created_at": version.created_at,
    }


def _check_pools(names: Sequence[str] | None) -> None:
    if names is None:
        return
    known = pool_names()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidValue("pools", unknown, f"names of pools, of which there are: {', '.join(known)}")


def _read_tenants(*, after: int, limit: int) -> list[dict[str, Any]]:
    return _described(selectors.tenants(after=after, limit=limit))


def _read_tenant(tenant_id: int) -> dict[str, Any]:
    (described,) = _described([selectors.find_tenant(tenant_id)])
    return described


def _described(found: Sequence[Tenant]) -> list[dict[str, Any]]:
    in_force = selectors.current_quotas_by_owner(found)
    return [
        {
            "id": tenant.pk,
            "name": tenant.name,
            "weight": tenant.weight,
            "most_urgent": tenant.most_urgent,
            "pools": tenant.pools,
            "enabled": tenant.enabled,
            "keeps_text": tenant.keeps_text,
            "quotas": in_force[tenant.pk][1].as_dict(),
            "quotas_version": in_force[tenant.pk][0],
            "created_at": tenant.created_at,
        }
        for tenant in found
    ]


def _read_versions(tenant_id: int, *, before: int) -> list[dict[str, Any]]:
    found = selectors.quota_versions(selectors.find_tenant(tenant_id), before=before, limit=_MOST_VERSIONS)
    return [describe_version(version) for version in found]


def _read_usage(tenant_id: int, *, since_day: datetime.date) -> dict[str, Any]:
    tenant = selectors.find_tenant(tenant_id)
    today = timezone.now().date()
    subject = f"tenant:{tenant.pk}"
    return {
        "since": since_day,
        "tokens_today": selectors.used_tokens(subject, since_day=today),
        "tokens_this_month": selectors.used_tokens(subject, since_day=today.replace(day=1)),
        "data": selectors.usage_by_day(tenant, since_day=since_day),
        "keys": selectors.usage_by_key(tenant, since_day=since_day),
    }


def _read_audit(tenant_id: int) -> list[dict[str, Any]]:
    return [_describe_event(event) for event in events_of_tenant(selectors.find_tenant(tenant_id).pk)]


def _describe_event(event: AuditEvent) -> dict[str, Any]:
    return {
        "action": event.action,
        "key": event.subject if event.subject_kind == "key" else None,
        "changes": event.changes,
        "reason": event.reason,
        "author": event.actor,
        "created_at": event.at,
    }


def _since(text: str | None, *, today: datetime.date) -> datetime.date:
    if text is None:
        return today - datetime.timedelta(days=_USAGE_DAYS - 1)
    earliest = today - datetime.timedelta(days=_MOST_USAGE_DAYS - 1)
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or not earliest <= day <= today:
        raise InvalidValue("since", text, f"a day from {earliest} to {today}")
    return day
