"""The audit: every act of every user and key, to be searched and taken along. Nothing here changes it."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import AsyncIterator
from typing import Any

from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from dashboard.audit_filter import CHOICES, Asked, place_in_words, read
from dashboard.audit_presenters import CSV_HEADER, EventRow, csv_row_of, present_events
from dashboard.pages import only, render_page
from dashboard.permissions import may_audit
from dashboard.threads import in_thread
from serving.audit import selectors
from serving.audit.selectors import Filter, Place
from serving.tables import csv_pieces
from serving.tuning.selectors import pool_names

PAGE_SIZE = 50
MAX_CSV_ROWS = 100_000
_CSV_ROWS_AT_ONCE = 1_000
_WINDOWS = (("1 h", 1), ("24 h", 24), ("7 d", 168), ("30 d", 720))


_for_auditors = only(may_audit)


@require_safe
@_for_auditors
async def audit(request: HttpRequest) -> HttpResponseBase:
    """The events that the filter lets through, newest first, in pages."""
    asked = read(request.GET.dict())
    page = await in_thread(_read_page, asked, now=timezone.now())
    return await render_page(request, "dashboard/audit.html", page, status=400 if page.errors else 200)


@require_safe
@_for_auditors
async def audit_csv(request: HttpRequest) -> HttpResponseBase:
    """The same as CSV, at most `MAX_CSV_ROWS` rows, newest first; a filter that is wrong is told on the page."""
    asked = read(request.GET.dict())
    if asked.errors:
        return await audit(request)
    response = StreamingHttpResponse(_csv_of(asked.filter), content_type="text/csv; charset=utf-8")
    name = f"audit-{timezone.now():%Y-%m-%dT%H%M}.csv"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field of the filter: what was typed, what is wrong with it, and what it may be where that is a list."""

    name: str
    label: str
    text: str
    error: str
    choices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time that can be looked at."""

    label: str
    url: str
    is_chosen: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """What `audit.html` shows. `first_fields` are always seen, `more_fields` folded away unless one of them asks for
    something; `newer_url` and `older_url` lead to the neighbouring pages where there are any."""

    page: str = "audit"
    first_fields: tuple[Field, ...]
    more_fields: tuple[Field, ...]
    shows_more: bool
    pools: tuple[str, ...]
    errors: dict[str, str]
    asks_for_less: bool
    windows: tuple[Window, ...]
    rows: tuple[EventRow, ...]
    newer_url: str | None
    older_url: str | None
    csv_url: str


def _read_page(asked: Asked, *, now: datetime.datetime) -> AuditPage:
    url = reverse("dashboard:audit")
    shown, has_newer, has_older = ([], False, False) if asked.errors else _find(asked)
    fields = _fields_of(asked)
    return AuditPage(
        first_fields=fields[:5],
        more_fields=fields[5:],
        shows_more=asked.num_folded_away > 0,
        pools=tuple(pool_names()),
        errors=dict(asked.errors),
        asks_for_less=asked.asks_for_less,
        windows=_windows_of(asked, now=now, url=url),
        rows=present_events(shown),
        newer_url=url + asked.query(newer=_place_of(shown[0])) if has_newer else None,
        older_url=url + asked.query(older=_place_of(shown[-1])) if has_older else None,
        csv_url=reverse("dashboard:audit_csv") + asked.query(),
    )


def _find(asked: Asked) -> tuple[list[Any], bool, bool]:
    """The events of the page, and whether there are newer and older ones."""
    if asked.newer is not None:
        # One more than is shown tells whether there is another page.
        found = selectors.events_newer(asked.filter, newer_than=asked.newer, limit=PAGE_SIZE + 1)
        if len(found) >= PAGE_SIZE:
            return found[-PAGE_SIZE:], len(found) > PAGE_SIZE, True
        asked = dataclasses.replace(asked, newer=None, older=None)
    found = selectors.events(asked.filter, older_than=asked.older, limit=PAGE_SIZE + 1)
    shown = found[:PAGE_SIZE]
    return shown, asked.older is not None and bool(shown), len(found) > PAGE_SIZE


def _fields_of(asked: Asked) -> tuple[Field, ...]:
    labels = {
        "since": "From (UTC)",
        "until": "Until (UTC)",
        "actor": "Who",
        "action": "Act",
        "reason": "Reason contains",
        "actor_kind": "Kind of actor",
        "subject_kind": "Done to a",
        "subject": "Subject",
        "pool": "Pool",
        "tenant": "Tenant",
        "request_id": "Request id",
    }
    return tuple(
        Field(name, label, asked.typed[name], asked.errors.get(name, ""), CHOICES.get(name, ()))
        for name, label in labels.items()
    )


def _windows_of(asked: Asked, *, now: datetime.datetime, url: str) -> tuple[Window, ...]:
    """Links to the last hour and so on. None of them is where one is: the moment moves on."""
    since = (now - datetime.timedelta(hours=hours) for _, hours in _WINDOWS)
    links = [
        Window(label, url + asked.query(since=f"{moment:%Y-%m-%dT%H:%M}", until=""), is_chosen=False)
        for (label, _), moment in zip(_WINDOWS, since, strict=True)
    ]
    is_all = not asked.typed["since"] and not asked.typed["until"]
    return (*links, Window("All", url + asked.query(since="", until=""), is_chosen=is_all))


def _place_of(event: Any) -> str:
    return place_in_words(Place(at=event.at, pk=event.pk))


async def _csv_of(wanted: Filter) -> AsyncIterator[str]:
    """Read in pieces, so that no database connection is held while a slow reader takes its time."""
    header: tuple[str, ...] = CSV_HEADER
    place, num_left = None, MAX_CSV_ROWS
    while num_left > 0:
        found = await in_thread(selectors.events, wanted, older_than=place, limit=min(num_left, _CSV_ROWS_AT_ONCE))
        for piece in csv_pieces(header, map(csv_row_of, found)):
            yield piece
        if not found:
            return
        header, num_left = (), num_left - len(found)
        place = Place(at=found[-1].at, pk=found[-1].pk)
