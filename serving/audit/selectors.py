"""Reading the audit. Blocking: async code calls these through `serving.threads.in_thread`."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator

from django.db.models import Q, QuerySet

from serving.audit.models import AuditEvent

_LARGEST_ID = 2**63 - 1
_EXACT = ("action", "actor_kind", "pool", "tenant", "subject_kind")
_CONTAINED = ("actor", "subject", "reason")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in the list an event stands: lists go from the newest to the oldest."""

    at: datetime.datetime
    pk: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which events: those for which all that is said holds. `since` and `until` bound the time, the one included, the
    other not; `actor`, `subject` and `reason` are parts of those texts, whatever their case; the others whole.
    `request_id` is that of the request that did it or that it was done to. No text may hold NUL."""

    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    actor: str = ""
    actor_kind: str = ""
    action: str = ""
    subject_kind: str = ""
    subject: str = ""
    pool: str = ""
    tenant: str = ""
    reason: str = ""
    request_id: str = ""


def events(wanted: Filter, *, older_than: Place | None = None, limit: int) -> list[AuditEvent]:
    """The newest events, newest first, at most `limit`, only those after that place where it is given."""
    found = _filtered(wanted)
    if older_than is not None:
        pk = min(older_than.pk, _LARGEST_ID)
        found = found.filter(Q(at__lt=older_than.at) | Q(at=older_than.at, pk__lt=pk))
    return list(found[:limit])


def events_newer(wanted: Filter, *, newer_than: Place, limit: int) -> list[AuditEvent]:
    """The `limit` events that come just before that place, newest first."""
    pk = min(newer_than.pk, _LARGEST_ID)
    later = _filtered(wanted).filter(Q(at__gt=newer_than.at) | Q(at=newer_than.at, pk__gt=pk))
    return list(later.order_by("at", "pk")[:limit])[::-1]


def all_events(wanted: Filter, *, limit: int) -> Iterator[AuditEvent]:
    """As `events`, read piece by piece."""
    return _filtered(wanted)[:limit].iterator(chunk_size=500)


def events_of_tenant(tenant_id: int, *, limit: int = 100) -> list[AuditEvent]:
    """What was last done to a tenant, its keys and their quotas, newest first."""
    return list(AuditEvent.objects.filter(tenant_id_then=tenant_id, subject_kind__in=("tenant", "key"))[:limit])


def _filtered(wanted: Filter) -> QuerySet[AuditEvent]:
    conditions = Q()
    if wanted.since is not None:
        conditions &= Q(at__gte=wanted.since)
    if wanted.until is not None:
        conditions &= Q(at__lt=wanted.until)
    for field in _EXACT:
        if value := getattr(wanted, field):
            conditions &= Q(**{field: value})
    for field in _CONTAINED:
        if value := getattr(wanted, field):
            conditions &= Q(**{f"{field}__icontains": value})
    if wanted.request_id:
        conditions &= Q(request_id=wanted.request_id) | Q(subject_kind="request", subject=wanted.request_id)
    return AuditEvent.objects.filter(conditions)
