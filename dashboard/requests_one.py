"""The page of one request: where its time went, what was asked, and what ran beside it."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe
from redis import Redis
from redis.exceptions import RedisError

from dashboard.pages import render_page
from dashboard.permissions import may_abort, may_audit, may_view_tenants, may_view_texts
from dashboard.requests_filter import Asked, read_asked
from dashboard.requests_pages import for_log_readers, list_url
from dashboard.requests_presenters import (
    BesideRow,
    LogRow,
    RunningRow,
    present_beside,
    present_rows,
    present_running,
)
from dashboard.requests_waterfall import Waterfall, present_waterfall
from dashboard.requests_words import endpoint_in_words, key_in_words, seconds_in_words
from dashboard.services import services_of
from dashboard.threads import in_thread
from serving.audit import selectors as audit
from serving.telemetry import request_selectors as selectors
from serving.telemetry.request_cursors import write_cursor
from serving.telemetry.request_rows import RequestDetail, RequestRow, RequestSort
from serving.telemetry.running import find_running

_MOST_BESIDE = 20
_NOT_KEPT = "Not kept: its tenant does not let texts be kept, or their time is over."
_CLOCKS_DIFFER = datetime.timedelta(minutes=1)
_STEPS_ARE_KEPT = datetime.timedelta(minutes=1)
"""A busy engine's picture reaches about so far back."""


@require_safe
@for_log_readers
async def one(request: HttpRequest, request_id: str) -> HttpResponseBase:
    """A request of the log, or one in flight. The query is that of the list that one came from: its neighbours are
    those there, whenever they came."""
    asked = read_asked(request.GET, now=timezone.now())
    user, redis = await request.auser(), services_of(request).blocking_redis
    page = await in_thread(_read_page, request_id, asked, user=user, redis=redis)
    template = "dashboard/request.html" if isinstance(page, RequestPage) else "dashboard/request_running.html"
    return await render_page(request, template, page)


@dataclasses.dataclass(frozen=True, slots=True)
class Fact:
    """A line about a request. `url` leads to more of it; empty for none. `term` is its word in the glossary."""

    label: str
    text: str
    url: str = ""
    term: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class KeptText:
    """A prompt or an answer: its text, or why it is not shown."""

    label: str
    text: str | None
    why_not: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestPage:
    """What `request.html` shows. `aborted_by` says which operator did, and why; `steps_url` leads to the batch that it
    ran in while that can still be seen. Both are empty where there is none."""

    page: str = "requests"
    row: LogRow
    tenant_id: int | None
    list_query: str
    newer_url: str
    older_url: str
    facts: tuple[Fact, ...]
    intervals: tuple[Fact, ...]
    params: tuple[Fact, ...]
    waterfall: Waterfall
    aborted_by: str
    steps_url: str
    texts: tuple[KeptText, ...]
    beside: tuple[BesideRow, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningRequestPage:
    """What `request_running.html` shows."""

    page: str = "requests"
    row: RunningRow
    may_abort: bool
    list_query: str


def _read_page(request_id: str, asked: Asked, *, user: Any, redis: Redis) -> RequestPage | RunningRequestPage:
    """Raises `Http404` where neither the log nor any process knows the request."""
    found = selectors.find_request(request_id)
    if found is None:
        return _read_running(request_id, asked, user=user, redis=redis)
    row, query = found.row, asked.query()
    return RequestPage(
        row=present_rows([row], base_url=list_url(), query=query)[0],
        tenant_id=row.tenant_id_then if may_view_tenants(user) else None,
        list_query=query,
        newer_url=_neighbour_url(row, asked, "oldest"),
        older_url=_neighbour_url(row, asked, "newest"),
        facts=tuple(_facts(row)),
        intervals=tuple(_intervals(row)),
        params=tuple(Fact(str(name), _param(value)) for name, value in sorted(found.params.items())),
        waterfall=present_waterfall(row, found.spans),
        aborted_by=_aborted_by(row, may_see_who=may_audit(user)),
        steps_url=_steps_url(row),
        texts=tuple(_texts(found, may_read=may_view_texts(user))),
        beside=present_beside(selectors.ran_beside(row, limit=_MOST_BESIDE), row, base_url=list_url()),
    )


def _read_running(request_id: str, asked: Asked, *, user: Any, redis: Redis) -> RunningRequestPage:
    try:
        running = find_running(redis, request_id)
    except (RedisError, OSError):
        running = None
    if running is None:
        raise Http404("no request has this id")
    return RunningRequestPage(row=present_running([running])[0], may_abort=may_abort(user), list_query=asked.query())


def _neighbour_url(row: RequestRow, asked: Asked, direction: RequestSort) -> str:
    """The next request in that direction among those of the list, whenever they came; empty where there is none."""
    wanted = dataclasses.replace(asked.filter, since=None, until=None)
    place = write_cursor(direction, (row.arrived_at, row.pk))
    found = selectors.list_requests(wanted, sort=direction, after=place, limit=1).rows
    return f"{list_url()}{found[0].request_id}/{asked.query()}" if found else ""


def _aborted_by(row: RequestRow, *, may_see_who: bool) -> str:
    if row.outcome != "aborted":
        return ""
    found = audit.events(
        audit.Filter(
            since=row.arrived_at - _CLOCKS_DIFFER,
            until=row.ended_at + _CLOCKS_DIFFER,
            action="request aborted",
            request_id=row.request_id,
        ),
        limit=1,
    )
    if not found:
        return ""
    who = found[0].actor if may_see_who else "an operator"
    reason = found[0].reason.rstrip(".") if may_see_who else ""
    return f"{who}: {reason}" if reason else who


def _steps_url(row: RequestRow) -> str:
    is_recent = timezone.now() - row.ended_at < _STEPS_ARE_KEPT
    has_run = row.queue_seconds is not None
    if not is_recent or not has_run:
        return ""
    engine = f"?{urlencode({'engine': row.engine})}" if row.engine else ""
    return f"{reverse('dashboard:pool_steps', kwargs={'pool': row.pool})}{engine}#request={row.request_id}"


def _facts(row: RequestRow) -> Iterator[Fact]:
    yield Fact("Arrived", f"{row.arrived_at:%Y-%m-%d %H:%M:%S}.{row.arrived_at.microsecond // 1000:03} UTC")
    yield Fact("Pool, model", f"{row.pool}, {row.model}")
    yield Fact("Asked for", endpoint_in_words(row.endpoint, is_streamed=row.is_streamed))
    if row.num_choices > 1:
        yield Fact("Choices", f"{row.num_choices:,}")
    yield Fact("Prompt tokens", f"{row.prompt_tokens:,} ({row.cached_tokens:,} found cached)")
    yield Fact("Completion tokens", f"{row.completion_tokens:,}")
    yield Fact("Key", key_in_words(row.key_prefix) or "none")
    yield Fact("Engine", row.engine or "none")
    if row.num_attempts > 1:
        yield Fact("Attempts", f"{row.num_attempts:,}: an engine was lost, or handed it back")
    yield Fact("Preemptions", f"{row.num_preemptions:,}", term="preemption")
    if row.tunables_version is not None:
        yield Fact("Tunables", f"version {row.tunables_version}")


def _intervals(row: RequestRow) -> Iterator[Fact]:
    yield Fact("Queue", seconds_in_words(row.queue_seconds), term="queue_time")
    yield Fact("TTFT", seconds_in_words(row.ttft_seconds), term="ttft")
    yield Fact("Mean ITL", seconds_in_words(row.itl_seconds), term="itl")
    yield Fact("E2E", seconds_in_words(row.e2e_seconds), term="e2e")
    if row.ttft_seconds is not None and row.completion_tokens > 1 and row.e2e_seconds > row.ttft_seconds:
        rate = (row.completion_tokens - 1) / (row.e2e_seconds - row.ttft_seconds)
        yield Fact("Tokens a second", f"{rate:,.1f}")


def _texts(found: RequestDetail, *, may_read: bool) -> Iterator[KeptText]:
    if found.prompt_text is None and found.output_text is None:
        yield KeptText("Prompt and answer", None, _NOT_KEPT)
        return
    for label, text in (("Prompt", found.prompt_text), ("Answer", found.output_text)):
        if text is None:
            yield KeptText(label, None, _NOT_KEPT)
        elif not may_read:
            yield KeptText(label, None, "Kept, but not for your account to read.")
        else:
            yield KeptText(label, text, "" if text else "Empty.")


def _param(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
