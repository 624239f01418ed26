"""Reading tenants, their keys, their quotas and what they used.

Blocking: async code calls these through `serving.threads.in_thread`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import JSONField, OuterRef, QuerySet, Subquery, Sum

from serving.admission.models import ApiKey, QuotaVersion, Tenant, Usage
from serving.contracts.errors import KeyNotFound, TenantNotFound
from serving.contracts.quotas import Quotas, quota_names

_LARGEST_ID = 2**63 - 1
_PREFIX = re.compile(r"[0-9a-f]{1,16}")


def tenants(*, after: int = 0, limit: int = 1000) -> list[Tenant]:
    """Tenants in the order of their making, at most `limit`, those with an id above `after`."""
    return list(Tenant.objects.filter(pk__gt=min(after, _LARGEST_ID)).order_by("pk")[:limit])


def find_tenant(tenant_id: int) -> Tenant:
    """The tenant with that id; raises `TenantNotFound`."""
    tenant = Tenant.objects.filter(pk=tenant_id).first() if 0 < tenant_id <= _LARGEST_ID else None
    if tenant is None:
        raise TenantNotFound("there is no tenant with this id")
    return tenant


def keys_of(tenant: Tenant) -> list[ApiKey]:
    """All keys of a tenant, the newest first, those that ended too."""
    return list(tenant.keys.select_related("tenant").order_by("-pk"))


def find_key(tenant_id: int, prefix: str) -> ApiKey:
    """The tenant's key with that public prefix; raises `TenantNotFound` and `KeyNotFound`."""
    tenant = find_tenant(tenant_id)
    # What is no prefix may be a whole key, which nothing may repeat, or a text that PostgreSQL cannot be asked for.
    known = _PREFIX.fullmatch(prefix) is not None
    key = tenant.keys.select_related("tenant").filter(prefix=prefix).first() if known else None
    if key is None:
        raise KeyNotFound("the tenant has no key with this prefix")
    return key


def key_with_quotas(prefix: str) -> tuple[ApiKey, tuple[int, Quotas], tuple[int, Quotas]] | None:
    """A key with its tenant, the tenant's quotas and the key's own, each with its version's number, 0 where there never
    was one; None where there is no such key."""
    of_tenant = QuotaVersion.objects.filter(tenant=OuterRef("tenant_id"), key=None)
    of_key = QuotaVersion.objects.filter(key=OuterRef("pk"))
    found = (
        ApiKey.objects.select_related("tenant")
        .annotate(
            tenant_values=_newest_values(of_tenant),
            tenant_version=_newest_number(of_tenant),
            key_values=_newest_values(of_key),
            key_version=_newest_number(of_key),
        )
        .filter(prefix=prefix)
        .first()
    )
    if found is None:
        return None
    tenant_quotas = (found.tenant_version or 0, quotas_of(found.tenant_values))
    return found, tenant_quotas, (found.key_version or 0, quotas_of(found.key_values))


def quota_versions(owner: Tenant | ApiKey, *, before: int | None = None, limit: int = 100) -> list[QuotaVersion]:
    """The owner's versions, newest first, at most `limit`, only those older than number `before` where it is given."""
    found = versions_of(owner)
    return list((found if before is None else found.filter(number__lt=before))[:limit])


def current_quotas(owner: Tenant | ApiKey) -> tuple[int, Quotas]:
    """The number of the version in force, 0 where there never was one, and the quotas themselves."""
    newest = versions_of(owner).first()
    return (0, Quotas()) if newest is None else (newest.number, quotas_of(newest.values))


def current_quotas_by_owner(owners: Sequence[Tenant] | Sequence[ApiKey]) -> dict[int, tuple[int, Quotas]]:
    """`current_quotas` of many tenants, or of many keys, by primary key, in one query."""
    if not owners:
        return {}
    kind = type(owners[0])
    mine = {"tenant": OuterRef("pk"), "key": None} if kind is Tenant else {"key": OuterRef("pk")}
    newest = Subquery(QuotaVersion.objects.filter(**mine).order_by("-number").values("pk")[:1])
    numbers = kind._default_manager.filter(pk__in=[owner.pk for owner in owners]).values_list(newest, flat=True)
    found = {
        version.tenant_id if kind is Tenant else version.key_id: (version.number, quotas_of(version.values))
        for version in QuotaVersion.objects.filter(pk__in=numbers)
    }
    return {owner.pk: found.get(owner.pk, (0, Quotas())) for owner in owners}


def versions_of(owner: Tenant | ApiKey) -> QuerySet[QuotaVersion]:
    """The owner's quota versions, newest first."""
    if isinstance(owner, Tenant):
        return owner.quota_versions.filter(key=None).order_by("-number")
    return owner.quota_versions.order_by("-number")


def quotas_of(values: Mapping[str, Any] | None) -> Quotas:
    """Stored values as quotas: one younger than they are bounds nothing, one that is gone is left out."""
    known = set(quota_names())
    return Quotas().changed({name: value for name, value in (values or {}).items() if name in known})


def used_tokens(subject: str, *, since_day: datetime.date) -> int:
    """Tokens of prompts and answers of `tenant:<id>` or `key:<prefix>` from the beginning of `since_day` (UTC) on, as
    far as they are stored; what nobody used is 0."""
    kind, _, name = subject.partition(":")
    assert kind in ("tenant", "key"), f"{subject!r} is no subject"
    rows = Usage.objects.filter(tenant=int(name)) if kind == "tenant" else Usage.objects.filter(key_prefix=name)
    sums = rows.filter(day__gte=since_day).aggregate(prompt=Sum("prompt_tokens"), completion=Sum("completion_tokens"))
    return (sums["prompt"] or 0) + (sums["completion"] or 0)


def usage_by_day(tenant: Tenant, *, since_day: datetime.date) -> list[dict[str, Any]]:
    """What the tenant used on each day from `since_day` on, over all keys; days without use are left out."""
    return _summed(tenant, "day", since_day=since_day)


def usage_by_key(tenant: Tenant, *, since_day: datetime.date) -> list[dict[str, Any]]:
    """What the tenant used with each of its keys from `since_day` on."""
    return _summed(tenant, "key_prefix", since_day=since_day)


def _summed(tenant: Tenant, by: str, *, since_day: datetime.date) -> list[dict[str, Any]]:
    rows = tenant.usage.filter(day__gte=since_day).values(by).order_by(by)
    # Named otherwise than the columns, of which they are sums.
    found = rows.annotate(requests=Sum("num_requests"), prompt=Sum("prompt_tokens"), answer=Sum("completion_tokens"))
    return [
        {
            by: row[by],
            "num_requests": row["requests"],
            "prompt_tokens": row["prompt"],
            "completion_tokens": row["answer"],
        }
        for row in found
    ]


def _newest_values(versions: QuerySet[QuotaVersion]) -> Subquery:
    return Subquery(versions.order_by("-number").values("values")[:1], output_field=JSONField())


def _newest_number(versions: QuerySet[QuotaVersion]) -> Subquery:
    return Subquery(versions.order_by("-number").values("number")[:1])
