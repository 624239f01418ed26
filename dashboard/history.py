"""A pool's past, for charts that reach further back than the live points do."""

from __future__ import annotations

import datetime
import math
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard.commands import describe_version
from dashboard.protocol import VersionInfo
from dashboard.sessions import read_watcher
from dashboard.threads import in_thread
from serving.contracts.errors import DomainError, InvalidValue
from serving.telemetry.events import PoolEventInfo
from serving.telemetry.history_selectors import MOST_POINTS, Series, events_between, read_series
from serving.telemetry.rollups import STRETCH_SECONDS
from serving.tuning.selectors import find_pool, versions_between

_DEFAULT_POINTS = 720
_STATUS = {"invalid_value": 400, "signed_out": 401, "permission_denied": 403, "pool_not_found": 404}
_LATEST = datetime.datetime(9000, 1, 1, tzinfo=datetime.UTC).timestamp()


class Past(Series, frozen=True, kw_only=True):
    """A `Series`, and what happened meanwhile, newest first: versions of tunables, the last of them the one that was
    the newest as the range began, and events."""

    versions: list[VersionInfo]
    events: list[PoolEventInfo]


@require_safe
async def history(request: HttpRequest, pool: str) -> HttpResponseBase:
    """The pool's past from `?since=` to `?until=` (unix seconds), in at most `?max_points=` rows and two, as JSON; with
    `?least_seconds=`, in stretches of at least so many, so that they go on with those that were read before.

    What is refused has its HTTP status and `{"error": {code, message, param}}`.
    """
    try:
        past = await in_thread(_read, request.COOKIES.get(settings.SESSION_COOKIE_NAME), pool, request.GET)
    except DomainError as error:
        description = {"code": error.code, "message": error.message, "param": error.param}
        return _json({"error": description}, status=_STATUS.get(error.code, 400))
    return _json(past)


def _read(session_key: str | None, name: str, query: Any) -> Past:
    read_watcher(session_key)
    pool = find_pool(name)
    since, until = _time(query, "since"), _time(query, "until")
    series = read_series(
        name,
        since,
        until,
        max_points=_count(query, "max_points", usual=_DEFAULT_POINTS, bounds=f"an integer from 1 to {MOST_POINTS}"),
        least_seconds=_count(query, "least_seconds", usual=STRETCH_SECONDS, bounds="the length of a kind of stretch"),
    )
    return Past(
        **msgspec.structs.asdict(series),
        versions=[describe_version(version) for version in versions_between(pool, since, until)],
        events=events_between(name, since, until),
    )


def _time(query: Any, name: str) -> datetime.datetime:
    text = query.get(name)
    try:
        seconds = float(text or "")
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _LATEST:
        raise InvalidValue(name, text, "a time in unix seconds")
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)


def _count(query: Any, name: str, *, usual: int, bounds: str) -> int:
    text = query.get(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) <= 6):
        raise InvalidValue(name, text, bounds)
    return int(text)


def _json(value: Any, *, status: int = 200) -> HttpResponse:
    return HttpResponse(
        msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
