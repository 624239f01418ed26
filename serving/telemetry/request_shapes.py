"""Reading what requests of the log were like, without their texts: for measuring traffic.

Blocking: async code calls these through `serving.threads.in_thread`.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from django.db.models import QuerySet

from serving.telemetry.models import RequestRecord

_ROWS_AT_ONCE = 2000


class RequestShape(NamedTuple):
    """What one request was like; the fields are those of `RequestRecord`, and `priority` is the API's."""

    arrived_at: datetime.datetime
    tenant: str
    endpoint: str
    outcome: str
    is_streamed: bool
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    priority: int


_FIELDS = (*RequestShape._fields[:-1], "params__priority")


def count_shapes(*, pool: str, since: datetime.datetime, until: datetime.datetime, tenant: str = "") -> int:
    """How many requests `newest_shapes` would give without a limit."""
    return _found(pool, since, until, tenant).count()


def has_shapes(pool: str) -> bool:
    """Whether the log has any request for a text of a pool."""
    return RequestRecord.objects.filter(pool=pool).exclude(endpoint="embedding").exists()


def newest_shapes(
    *,
    pool: str,
    since: datetime.datetime,
    until: datetime.datetime,
    tenant: str = "",
    limit: int,
    without_keys: Collection[str] = (),
) -> Iterator[RequestShape]:
    """Requests for texts (no embeddings) that arrived from `since` until before `until`, the newest first, at most
    `limit`, read piece by piece; those whose key has one of these prefixes are left out."""
    found: QuerySet[Any, Any] = _found(pool, since, until, tenant).order_by("-arrived_at", "-pk")
    if without_keys:
        found = found.exclude(key_prefix__in=without_keys)
    for row in found.values_list(*_FIELDS)[:limit].iterator(chunk_size=_ROWS_AT_ONCE):
        *values, priority = row
        yield RequestShape._make((*values, priority if isinstance(priority, int) else 0))


def _found(
    pool: str, since: datetime.datetime, until: datetime.datetime, tenant: str
) -> QuerySet[RequestRecord, RequestRecord]:
    found = RequestRecord.objects.filter(pool=pool, arrived_at__gte=since, arrived_at__lt=until)
    return (found.filter(tenant=tenant) if tenant else found).exclude(endpoint="embedding")
