"""The log of requests: filtered, sorted, in pages, as a table for spreadsheets, and as it grows."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_safe
from redis import Redis

from dashboard.pages import render_page
from dashboard.permissions import may_abort
from dashboard.requests_filter import Asked, read_asked
from dashboard.requests_pages import for_log_readers, list_url
from dashboard.requests_presenters import (
    CSV_HEADER,
    Chip,
    Column,
    LogRow,
    Option,
    csv_row,
    present_chips,
    present_columns,
    present_options,
    present_rows,
)
from dashboard.requests_running import RunningSection, read_section
from dashboard.services import services_of
from dashboard.threads import in_thread
from serving.contracts.errors import InvalidValue
from serving.tables import csv_pieces
from serving.telemetry import request_selectors as selectors
from serving.telemetry.request_cursors import read_cursor, write_cursor
from serving.telemetry.request_rows import RequestFilter, RequestRow, RequestSort

PAGE_SIZE = 50
TAIL_ROWS = 200
"""As many rows a page that grows may have."""

MOST_CSV_ROWS = 100_000
_LONGEST_NUMBER = 19
_LABELS = {"newest": ("Newer", "Older"), "oldest": ("Older", "Newer")}


@require_safe
@for_log_readers
async def requests(request: HttpRequest) -> HttpResponseBase:
    """Requests that ended, as the query asks for them (see `dashboard.requests_filter`), and those in flight.

    With `?tail=` nothing but the rows that were stored after the one of that number, the newest first: for a page that
    grows.
    """
    asked = read_asked(request.GET, now=timezone.now(), also=("tail",))
    if "tail" in request.GET:
        grown = await in_thread(_read_tail, asked, request.GET["tail"])
        return await render_page(request, "dashboard/_request_tail.html", grown)
    page = await in_thread(_read_page, asked, user=await request.auser(), redis=services_of(request).blocking_redis)
    return await render_page(request, "dashboard/requests.html", page, status=400 if page.errors else 200)


@require_safe
@for_log_readers
async def requests_csv(request: HttpRequest) -> HttpResponseBase:
    """What the query asks for as CSV, at most 100,000 rows. Who asks for what cannot be is led to the list, which says
    why."""
    asked = read_asked(request.GET, now=timezone.now())
    if asked.errors:
        return redirect(f"{list_url()}?{request.GET.urlencode()}")
    rows = map(csv_row, selectors.iterate_requests(asked.filter, sort=asked.sort, limit=MOST_CSV_ROWS))
    response = StreamingHttpResponse(_in_pieces(csv_pieces(CSV_HEADER, rows)), content_type="text/csv; charset=utf-8")
    name = f"requests-{timezone.now():%Y-%m-%d-%H%M%S}.csv"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


async def _in_pieces(pieces: Iterator[str]) -> AsyncIterator[str]:
    # A thread for each piece: between two of them a slow reader holds no connection to the database.
    while (piece := await in_thread(next, pieces, "")) != "":
        yield piece


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestsPage:
    """What `requests.html` shows. `tail` is where a page that grows goes on, empty where it cannot: it is sorted
    otherwise, or is not the first. `problem` is what is wrong with the address, `errors` with a field."""

    page: str = "requests"
    typed: Mapping[str, str]
    errors: Mapping[str, str]
    problem: str
    options: Mapping[str, Sequence[Option]]
    windows: tuple[Chip, ...]
    wanted: tuple[Chip, ...]
    num_folded: int
    time_column: Column
    sortable: tuple[Column, ...]
    rows: tuple[LogRow, ...]
    is_filtered: bool
    is_all_time: bool
    all_time_url: str
    clear_url: str
    before_url: str | None
    after_url: str | None
    before_label: str
    after_label: str
    csv_url: str
    tail: str
    tail_rows: int = TAIL_ROWS
    running: RunningSection


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TailPage:
    """What `_request_tail.html` shows: without a table around them, a browser takes rows for none. `tail` is where the
    page goes on, whatever of the log it shows; empty where it was asked for what cannot be."""

    rows: tuple[LogRow, ...] = ()
    tail: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """A page of the log, and the places of its neighbours; None where there is none, empty for the first page."""

    rows: Sequence[RequestRow] = ()
    before: str | None = None
    after: str | None = None


def _read_page(asked: Asked, *, user: Any, redis: Redis) -> RequestsPage:
    problem, found = "", _Found()
    tail = selectors.newest_pk()  # before the rows: what is stored meanwhile is told twice rather than never
    if not asked.errors:
        try:
            found = _find(asked)
        except InvalidValue as error:
            problem = error.message
    windows, wanted = present_chips(asked)
    time_column, *sortable = present_columns(asked)
    before_label, after_label = _LABELS.get(asked.sort, ("First page", "Next page"))
    query = asked.query()
    return RequestsPage(
        typed=asked.typed,
        errors={**asked.errors, **({"page": problem} if problem else {})},
        problem=problem,
        options=present_options(asked, selectors.filter_choices()),
        windows=windows,
        wanted=wanted,
        num_folded=asked.num_beyond_the_usual,
        time_column=time_column,
        sortable=tuple(sortable),
        rows=present_rows(found.rows, base_url=list_url(), query=query),
        is_filtered=asked.asks_for_less,
        is_all_time=asked.window == "all",
        all_time_url=asked.query(last="all"),
        clear_url=list_url(),
        before_url=_page_url(query, "before", found.before),
        after_url=_page_url(query, "after", found.after),
        before_label=before_label,
        after_label=after_label,
        csv_url=query,
        tail=str(tail) if _grows(asked) else "",
        running=read_section(redis, may_abort=may_abort(user)),
    )


def _page_url(query: str, name: str, place: str | None) -> str | None:
    if not place:
        return None if place is None else query
    return f"{query}{'&' if query else '?'}{name}={place}"


def _grows(asked: Asked) -> bool:
    is_first = asked.after is None and asked.before is None
    return not asked.errors and is_first and asked.sort == "newest" and asked.filter.until is None


def _find(asked: Asked) -> _Found:
    """Raises `InvalidValue` for a place that no page gave."""
    if asked.before is not None and asked.sort in ("newest", "oldest"):
        return _find_before(asked, asked.before)
    page = selectors.list_requests(asked.filter, sort=asked.sort, after=asked.after, limit=PAGE_SIZE)
    is_first = asked.after is None or not page.rows
    return _Found(page.rows, None if is_first else _place_before(asked, page.rows), page.next_cursor)


def _find_before(asked: Asked, place: str) -> _Found:
    """The page in front of a place: read the other way round, and turned."""
    other: RequestSort = "oldest" if asked.sort == "newest" else "newest"
    turned = write_cursor(other, read_cursor(place, asked.sort))
    page = selectors.list_requests(asked.filter, sort=other, after=turned, limit=PAGE_SIZE)
    rows = page.rows[::-1]
    if page.next_cursor is None:  # the first page, filled up
        return _find(dataclasses.replace(asked, before=None, after=None))
    return _Found(rows, _place_before(asked, rows), write_cursor(asked.sort, (rows[-1].arrived_at, rows[-1].pk)))


def _place_before(asked: Asked, rows: Sequence[RequestRow]) -> str | None:
    """Of a list that is sorted by an interval, there is no way back but to its beginning."""
    if asked.sort not in ("newest", "oldest"):
        return ""
    return write_cursor(asked.sort, (rows[0].arrived_at, rows[0].pk))


def _read_tail(asked: Asked, tail: str) -> TailPage:
    if asked.errors or not (tail.isascii() and tail.isdigit() and len(tail) <= _LONGEST_NUMBER):
        return TailPage()
    newest = selectors.newest_pk()  # before the rows, as for a whole page
    rows = _newest_after(int(tail), asked.filter)
    return TailPage(rows=present_rows(rows, base_url=list_url(), query=asked.query()), tail=str(newest))


def _newest_after(pk: int, wanted: RequestFilter) -> list[RequestRow]:
    """What was stored since, the newest first; where that is more than a page shows, the newest of it."""
    rows = selectors.newer_than(pk, wanted, limit=TAIL_ROWS + 1)
    if len(rows) > TAIL_ROWS:
        rows = list(selectors.list_requests(wanted, limit=TAIL_ROWS).rows)
    return sorted(rows, key=lambda row: (row.arrived_at, row.pk), reverse=True)
