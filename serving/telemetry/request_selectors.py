"""Reading the log of requests that ended.

Blocking: async code calls these through `serving.threads.in_thread`.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator
from typing import Any, cast, get_args

from django.db import connection
from django.db.models import Count, F, FloatField, Q, QuerySet, Value
from django.db.models.functions import Coalesce

from serving.contracts.errors import InvalidValue
from serving.telemetry.models import RequestRecord
from serving.telemetry.request_cursors import CursorPlace, read_cursor, write_cursor
from serving.telemetry.request_rows import (
    EQUALS,
    INTERVALS,
    Beside,
    FilterChoices,
    RequestDetail,
    RequestFilter,
    RequestPage,
    RequestRow,
    RequestSort,
)

_LARGEST_ID = 2**63 - 1
_ROWS_AT_ONCE = 2000
_MOST_ROWS = 1000
_LATEST_LOOKED_AT = 20_000
_MOST_CHOICES = 200
_MOST_BESIDE_LOOKED_AT = 2000
_LONGEST_DOUBLING = 12
"""What ran beside a request came at most 2^12 s, 68 minutes, before it."""
_LEAST_INDEXED = 8
"""Characters of an id's beginning that few ids share."""

_ROW_FIELDS = tuple(RequestRow.__dataclass_fields__)
_SORT_FIELDS = {"queue": "queue_seconds", "ttft": "ttft_seconds", "itl": "itl_seconds", "e2e": "e2e_seconds"}
_CHOICE_FIELDS = ("pool", "model", "tenant", "key_prefix", "endpoint", "outcome", "code")


def list_requests(
    asked: RequestFilter, *, sort: RequestSort = "newest", after: str | None = None, limit: int = 100
) -> RequestPage:
    """The first `limit` (at most 1,000) requests so sorted, or those after the cursor `after`.

    What has no such interval comes last. Going from page to page shows each record once that was there at the
    beginning, whatever is stored meanwhile. Raises `InvalidValue` for a sorting that there is none of, and for a cursor
    that no page of this sorting gave.
    """
    place = None if after is None else read_cursor(after, _checked(sort))
    limit = max(1, min(limit, _MOST_ROWS))
    found = list(_sorted(_matching(asked), sort, after=place)[: limit + 1])
    rows, is_last = found[:limit], len(found) <= limit
    return RequestPage(
        rows=tuple([_row_of(values) for values in rows]),
        next_cursor=None if is_last else write_cursor(sort, (rows[-1]["sorted_by"], rows[-1]["pk"])),
    )


def iterate_requests(
    asked: RequestFilter, *, sort: RequestSort = "newest", limit: int | None = None
) -> Iterator[RequestRow]:
    """All requests so sorted, at most `limit` where it is given, read piece by piece as they are asked for."""
    after: CursorPlace | None = None
    num_left = limit
    while num_left is None or num_left > 0:
        size = _ROWS_AT_ONCE if num_left is None else min(_ROWS_AT_ONCE, num_left)
        # A page each, and no cursor of the database's: whoever reads slowly holds no connection meanwhile.
        found = list(_sorted(_matching(asked), sort, after=after)[:size])
        yield from map(_row_of, found)
        if len(found) < size:
            return
        after = found[-1]["sorted_by"], found[-1]["pk"]
        num_left = None if num_left is None else num_left - size


def count_by_outcome(key_prefixes: Collection[str], *, since: datetime.datetime) -> dict[str, int]:
    """How many requests that arrived since then were asked with these keys, by outcome."""
    found = RequestRecord.objects.filter(key_prefix__in=key_prefixes, arrived_at__gte=since)
    return dict(found.order_by().values_list("outcome").annotate(number=Count("pk")))


def find_request(request_id: str) -> RequestDetail | None:
    """All that is kept of the request with that id, as the API or its answers tell it; None where there is none."""
    if "\0" in request_id:
        return None
    found = RequestRecord.objects.filter(request_id=_own_id(request_id)).first()
    if found is None:
        return None
    return RequestDetail(
        row=_row_of({name: getattr(found, name) for name in _ROW_FIELDS}),
        params=found.params,
        spans=found.spans,
        prompt_text=found.prompt_text,
        output_text=found.output_text,
    )


def ran_beside(row: RequestRow, *, limit: int = 20) -> list[Beside]:
    """Other requests of its pool that ran at the same time, at most `limit`, those that did longest first.

    Where thousands did, the 2,000 longest of them are looked at; and none that came more than an hour before it.
    """
    start, end = row.arrived_at, row.ended_at
    others = RequestRecord.objects.filter(_may_overlap(start, end), pool=row.pool).exclude(pk=row.pk)
    longest = _values(others.order_by("-e2e_seconds", "-pk"))[:_MOST_BESIDE_LOOKED_AT]
    found = [
        Beside(row=other, overlap_seconds=(min(end, other.ended_at) - max(start, other.arrived_at)).total_seconds())
        for other in map(_row_of, longest)
    ]
    overlapping = [beside for beside in found if beside.overlap_seconds > 0]
    return sorted(overlapping, key=lambda beside: (-beside.overlap_seconds, beside.row.pk))[:limit]


def filter_choices() -> FilterChoices:
    """What the 20,000 requests that arrived last have in each field, at most 200 values of each."""
    arrivals = RequestRecord.objects.order_by("-arrived_at", "-pk").values_list("arrived_at", flat=True)
    looked_at = RequestRecord.objects.order_by()
    if (before := arrivals[_LATEST_LOOKED_AT : _LATEST_LOOKED_AT + 1].first()) is not None:
        looked_at = looked_at.filter(arrived_at__gt=before)
    found = looked_at.values_list(*_CHOICE_FIELDS).distinct()
    columns = [sorted({value for value in column if value})[:_MOST_CHOICES] for column in zip(*found, strict=True)]
    if not columns:
        return FilterChoices()
    pools, models, tenants, key_prefixes, endpoints, outcomes, codes = map(tuple, columns)
    return FilterChoices(
        pools=pools,
        models=models,
        tenants=tenants,
        key_prefixes=key_prefixes,
        endpoints=endpoints,
        outcomes=outcomes,
        codes=codes,
    )


def newer_than(pk: int, asked: RequestFilter, *, limit: int = 100) -> list[RequestRow]:
    """Requests that were stored after the one with that key, in the order in which they were, at most `limit`: for
    whoever watches the log grow. Begin with `newest_pk`."""
    found = _matching(asked).filter(pk__gt=max(0, min(pk, _LARGEST_ID))).order_by("pk")
    return [_row_of(values) for values in _values(found)[: max(1, min(limit, _MOST_ROWS))]]


def newest_pk() -> int:
    """The key of the request that was stored last; 0 where there is none."""
    return RequestRecord.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


def _matching(asked: RequestFilter) -> QuerySet[RequestRecord]:
    found = RequestRecord.objects.filter(**{name: value for name in EQUALS if (value := getattr(asked, name))})
    if asked.since is not None:
        found = found.filter(arrived_at__gte=asked.since)
    if asked.until is not None:
        found = found.filter(arrived_at__lt=asked.until)
    for name in INTERVALS:
        if (least := getattr(asked, f"min_{name}")) is not None:
            found = found.filter(**{f"{name}__gte": least})
    if asked.text:
        found = found.filter(_begins_with(_own_id(asked.text)))
    return found


def _begins_with(text: str) -> Q:
    beginning = Q(request_id__startswith=text)
    if connection.vendor != "sqlite" or len(text) < _LEAST_INDEXED:
        return beginning
    # SQLite compares by code points, and its index serves a range where it does not serve LIKE.
    return beginning & Q(request_id__gte=text, request_id__lt=text + "\U0010ffff")


def _own_id(text: str) -> str:
    """An answer names its request with another beginning."""
    for beginning in ("chatcmpl-", "cmpl-"):
        if text.startswith(beginning):
            return "req_" + text.removeprefix(beginning)
    return text


def _sorted(found: QuerySet[RequestRecord], sort: RequestSort, *, after: CursorPlace | None) -> QuerySet[Any, Any]:
    _checked(sort)
    asked: QuerySet[Any, Any] = found.annotate(sorted_by=_sorted_by(sort))
    if sort == "oldest":
        if after is not None:
            asked = _behind(asked, "arrived_at", "gt", after)
        return _values(asked.order_by("arrived_at", "pk"), "sorted_by")
    if sort == "newest":
        if after is not None:
            asked = _behind(asked, "arrived_at", "lt", after)
        return _values(asked.order_by("-arrived_at", "-pk"), "sorted_by")
    if after is not None:
        asked = _behind(asked, "sorted_by", "lt", after)
    return _values(asked.order_by("-sorted_by", "-pk"), "sorted_by")


def _behind(found: QuerySet[Any], name: str, side: str, place: CursorPlace) -> QuerySet[Any]:
    value, pk = place
    # The first condition follows from the second: an index serves it.
    return found.filter(Q(**{f"{name}__{side}e": value})).filter(
        Q(**{f"{name}__{side}": value}) | Q(**{name: value, f"pk__{side}": pk})
    )


def _sorted_by(sort: RequestSort) -> Any:
    if sort in ("newest", "oldest"):
        return F("arrived_at")
    if sort == "tokens":
        return F("prompt_tokens") + F("completion_tokens")
    return Coalesce(F(_SORT_FIELDS[sort]), Value(-1.0), output_field=FloatField())


def _may_overlap(start: datetime.datetime, end: datetime.datetime) -> Q:
    """What arrived between the two moments, or so long before that it may have lasted until then: of those that came up
    to 2^n seconds before, only what took longer than half of that, so that hours are not gone through."""
    found = Q(arrived_at__gte=start, arrived_at__lt=end)
    for doubling in range(_LONGEST_DOUBLING + 1):
        earliest = start - datetime.timedelta(seconds=2**doubling)
        latest_seconds = 2 ** (doubling - 1) if doubling else 0
        latest = start - datetime.timedelta(seconds=latest_seconds)
        found |= Q(arrived_at__gte=earliest, arrived_at__lt=latest, e2e_seconds__gt=latest_seconds)
    return Q(arrived_at__gte=start - datetime.timedelta(seconds=2**_LONGEST_DOUBLING), arrived_at__lt=end) & found


def _values(found: QuerySet[Any, Any], *extra: str) -> QuerySet[Any, Any]:
    chosen: QuerySet[Any, Any] = found.values(*_ROW_FIELDS, *extra)
    return chosen


def _row_of(values: dict[str, Any]) -> RequestRow:
    return RequestRow(**{name: values[name] for name in _ROW_FIELDS})


def _checked(sort: str) -> RequestSort:
    if sort not in get_args(RequestSort):
        raise InvalidValue("sort", sort, f"one of {', '.join(get_args(RequestSort))}")
    return cast("RequestSort", sort)
