"""Requests in flight: the part of the list that is read anew every two seconds, and the page that ends one."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_safe
from redis import Redis
from redis.exceptions import RedisError

from dashboard.pages import render_page
from dashboard.permissions import may_abort as may_end_requests
from dashboard.requests_pages import for_aborters, for_log_readers
from dashboard.requests_presenters import RunningRow, present_running
from dashboard.requests_words import running_in_words
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.tenant_forms import reason_errors
from dashboard.threads import in_thread
from serving.audit.services import record
from serving.contracts.actors import Author
from serving.contracts.texts import without_secrets
from serving.telemetry.running import AbortAnswer, RunningRequest, find_running, order_abort, read_running

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningSection:
    """What `_running.html` shows; `summary` says how many there are, or that it is not known."""

    summary: str
    rows: tuple[RunningRow, ...]
    may_abort: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningFragment:
    """What the fragment shows."""

    running: RunningSection


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AbortPage:
    """What `request_abort.html` shows. `row` is None where the request is in flight no more."""

    page: str = "requests"
    request_id: str
    row: RunningRow | None
    reason: str = ""
    problem: str = ""


def read_section(redis: Redis, *, may_abort: bool) -> RunningSection:
    """What is in flight now. Blocking."""
    try:
        running = read_running(redis)
    except (RedisError, OSError) as error:
        logger.warning("what is in flight cannot be read: %s", error)
        summary = "Redis does not answer: what is in flight is not known."
        return RunningSection(summary=summary, rows=(), may_abort=may_abort)
    return RunningSection(
        summary=running_in_words(running), rows=present_running(running.requests), may_abort=may_abort
    )


@require_safe
@for_log_readers
async def running(request: HttpRequest) -> HttpResponseBase:
    """The part of the list about requests in flight, alone."""
    user = await request.auser()
    section = await in_thread(_read_section, services_of(request).blocking_redis, user)
    return await render_page(request, "dashboard/_running.html", RunningFragment(running=section))


@require_http_methods(["GET", "HEAD", "POST"])
@for_aborters
async def abort(request: HttpRequest, request_id: str) -> HttpResponseBase:
    """Ask whether a request is to be ended; then have it ended by the process that owns it, and write that down."""
    redis = services_of(request).blocking_redis
    reason = request.POST.get("reason", "")
    problem = reason_errors(reason).get("reason", "")
    if request.method != "POST" or problem:
        page = await in_thread(_read_abort_page, redis, request_id, reason=reason, problem=problem)
        return await render_page(request, "dashboard/request_abort.html", page, status=400 if problem else 200)
    author = acting(request, (await request.auser()).get_username())
    answer = await in_thread(_abort, redis, request_id, author=author, reason=reason)
    tell, words = _ANSWERS[answer]
    tell(request, words.format(request_id))
    return redirect("dashboard:requests")


_ANSWERS: dict[AbortAnswer | None, tuple[Any, str]] = {
    "aborted": (messages.success, "{} is aborted: its client was told so. It is in the log within seconds."),
    "gone": (messages.warning, "{} had ended already: nothing was left to abort."),
    "unanswered": (messages.error, "Not every process answered about {}: look whether it still runs, and try again."),
    None: (messages.error, "Redis does not answer: {} was not aborted."),
}


def _read_section(redis: Redis, user: Any) -> RunningSection:
    return read_section(redis, may_abort=may_end_requests(user))


def _read_abort_page(redis: Redis, request_id: str, *, reason: str, problem: str) -> AbortPage:
    found = _find(redis, request_id)
    return AbortPage(
        request_id=request_id,
        row=None if found is None else present_running([found])[0],
        reason=without_secrets(reason),
        problem=problem,
    )


def _find(redis: Redis, request_id: str) -> RunningRequest | None:
    try:
        return find_running(redis, request_id)
    except (RedisError, OSError) as error:
        logger.warning("what is in flight cannot be read: %s", error)
        return None


def _abort(redis: Redis, request_id: str, *, author: Author, reason: str) -> AbortAnswer | None:
    """What the owners say; None where Redis does not answer."""
    found = _find(redis, request_id)
    try:
        answer = order_abort(redis, request_id)
    except (RedisError, OSError) as error:
        logger.warning("%s cannot be aborted: %s", request_id, error)
        return None
    if answer != "gone":
        record(
            "request aborted",
            actor=author,
            subject_kind="request",
            subject=request_id,
            pool="" if found is None else found.pool,
            tenant="" if found is None else found.tenant,
            reason=reason,
            request_id=request_id,
        )
    return answer
