"""Reading what many tenants and keys used, for those who watch over them.

Blocking: async code calls these through `serving.threads.in_thread`.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.db.models import Count, F, Max, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce, Lower

from serving.admission.models import ApiKey, Tenant, Usage

_TOKENS = F("prompt_tokens") + F("completion_tokens")
_LARGEST_ID = 2**63 - 1
_ROWS_AT_ONCE = 2000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What was used in a while."""

    num_requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Those of prompts and answers together."""
        return self.prompt_tokens + self.completion_tokens


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyFacts:
    """How many of a tenant's keys open the door (its being enabled aside), and when any was used last."""

    num_valid: int = 0
    last_used_at: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Talker:
    """A tenant, or one key of it, and what it used. `key_prefix` is empty for a tenant, and for what no key was used
    for."""

    tenant_id: int
    tenant: str
    key_prefix: str = ""
    label: str = ""
    sums: Sums


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsageLine:
    """What one key of a tenant used on one day."""

    day: datetime.date
    key_prefix: str
    sums: Sums


def tenants_by_name(*, containing: str = "", after: str | None = None, limit: int) -> list[Tenant]:
    """Tenants whose name contains that text, by name whatever its case, at most `limit`, those after the name
    `after`."""
    found = Tenant.objects.filter(name__icontains=containing).annotate(folded=Lower("name"))
    if after is not None:
        folded = Lower(Value(after))
        found = found.filter(Q(folded__gt=folded) | Q(folded=folded, name__gt=after))
    return list(found.order_by("folded", "name")[:limit])


def tenants_by_tokens(
    *, since_day: datetime.date, containing: str = "", after: tuple[int, int] | None = None, limit: int
) -> list[tuple[Tenant, int]]:
    """Tenants whose name contains that text, with the tokens that each used from `since_day` on, the most first, at
    most `limit`, those after the tokens and the id that `after` names."""
    of_tenant = Usage.objects.filter(tenant=OuterRef("pk"), day__gte=since_day).order_by().values("tenant")
    used = Coalesce(Subquery(of_tenant.annotate(used=Sum(_TOKENS)).values("used")), 0)
    found = Tenant.objects.filter(name__icontains=containing).annotate(used=used)
    if after is not None:
        tokens, tenant_id = (min(number, _LARGEST_ID) for number in after)
        found = found.filter(Q(used__lt=tokens) | Q(used=tokens, pk__gt=tenant_id))
    return [(tenant, tenant.used) for tenant in found.order_by("-used", "pk")[:limit]]


def used_by_tenant(tenants: Sequence[Tenant], *, since_day: datetime.date) -> dict[int, Sums]:
    """What each of these tenants used from `since_day` on, by id; those who used nothing are left out."""
    rows = Usage.objects.filter(tenant__in=[tenant.pk for tenant in tenants], day__gte=since_day)
    return {row["tenant"]: _sums_of(row) for row in _summed(rows, "tenant")}


def key_facts_by_tenant(tenants: Sequence[Tenant], *, at: datetime.datetime) -> dict[int, KeyFacts]:
    """Of the keys of each of these tenants, by id; those without any key are left out."""
    valid = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=at))
    rows = ApiKey.objects.filter(tenant__in=[tenant.pk for tenant in tenants]).order_by().values("tenant")
    found = rows.annotate(num_valid=Count("pk", filter=valid), last_used=Max("last_used_at"))
    return {row["tenant"]: KeyFacts(num_valid=row["num_valid"], last_used_at=row["last_used"]) for row in found}


def last_days_without_key(tenants: Sequence[Tenant]) -> dict[int, datetime.date]:
    """The last day of UTC on which anything was used on the account of each of these tenants without a key, as the
    console's prompts do, by id; those of which that never happened are left out."""
    rows = Usage.objects.filter(tenant__in=[tenant.pk for tenant in tenants], key_prefix="").order_by()
    return dict(rows.values("tenant").annotate(last=Max("day")).values_list("tenant", "last"))


def top_tenants(*, since_day: datetime.date, limit: int = 10) -> list[Talker]:
    """The tenants that used most tokens from `since_day` on, the most first."""
    found = _top(("tenant", "tenant__name"), since_day=since_day, limit=limit)
    return [Talker(tenant_id=row["tenant"], tenant=row["tenant__name"], sums=_sums_of(row)) for row in found]


def top_keys(*, since_day: datetime.date, limit: int = 10) -> list[Talker]:
    """The keys that used most tokens from `since_day` on, the most first."""
    found = _top(("tenant", "tenant__name", "key_prefix"), since_day=since_day, limit=limit)
    labels = labels_of(row["key_prefix"] for row in found)
    return [
        Talker(
            tenant_id=row["tenant"],
            tenant=row["tenant__name"],
            key_prefix=row["key_prefix"],
            label=labels.get(row["key_prefix"], ""),
            sums=_sums_of(row),
        )
        for row in found
    ]


def labels_of(prefixes: Iterable[str]) -> dict[str, str]:
    """The labels of the keys with these prefixes, by prefix."""
    return dict(ApiKey.objects.filter(prefix__in=set(prefixes)).values_list("prefix", "label"))


def sums_by_day(
    tenant: Tenant, *, since_day: datetime.date, key_prefix: str | None = None
) -> dict[datetime.date, Sums]:
    """What a tenant, or that key of it, used on each day from `since_day` on; days without use are left out."""
    return {row["day"]: _sums_of(row) for row in _summed(_usage_of(tenant, since_day, key_prefix), "day")}


def sums_by_key(tenant: Tenant, *, since_day: datetime.date) -> dict[str, Sums]:
    """What a tenant used with each of its keys from `since_day` on, by prefix, the most tokens first."""
    rows = _summed(_usage_of(tenant, since_day), "key_prefix")
    sums = {row["key_prefix"]: _sums_of(row) for row in rows}
    return dict(sorted(sums.items(), key=lambda pair: -pair[1].tokens))


def usage_lines(tenant: Tenant, *, since_day: datetime.date, key_prefix: str | None = None) -> Iterator[UsageLine]:
    """What a tenant used by day and key from `since_day` on, in that order, read piece by piece."""
    rows = _usage_of(tenant, since_day, key_prefix).order_by("day", "key_prefix")
    for row in rows.iterator(chunk_size=_ROWS_AT_ONCE):
        sums = Sums(
            num_requests=row.num_requests, prompt_tokens=row.prompt_tokens, completion_tokens=row.completion_tokens
        )
        yield UsageLine(day=row.day, key_prefix=row.key_prefix, sums=sums)


def _usage_of(tenant: Tenant, since_day: datetime.date, key_prefix: str | None = None) -> QuerySet[Usage]:
    rows = tenant.usage.filter(day__gte=since_day)
    return rows if key_prefix is None else rows.filter(key_prefix=key_prefix)


def _top(by: tuple[str, ...], *, since_day: datetime.date, limit: int) -> list[dict[str, Any]]:
    used: Any = _summed(Usage.objects.filter(day__gte=since_day), *by)
    return list(used.filter(tokens__gt=0).order_by("-tokens", *by)[:limit])


def _summed(rows: QuerySet[Usage], *by: str) -> Iterable[Any]:
    # Named otherwise than the columns, of which they are sums.
    sums: dict[str, Any] = {
        "requests": Sum("num_requests"),
        "prompt": Sum("prompt_tokens"),
        "answer": Sum("completion_tokens"),
        "tokens": Sum(_TOKENS),
    }
    found: QuerySet[Usage, Any] = rows.order_by().values(*by).annotate(**sums).order_by(*by)
    return found


def _sums_of(row: Mapping[str, Any]) -> Sums:
    return Sums(num_requests=row["requests"], prompt_tokens=row["prompt"], completion_tokens=row["answer"])
