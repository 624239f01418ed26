"""The history of a pool's tunables: every version, what it did, and the way back to it."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.pages import (
    PoolHeading,
    for_watchers,
    heading_of,
    may_steer_pool,
    render_page,
    whole_number,
)
from dashboard.permissions import may_steer
from dashboard.presenters import VersionRow, present_versions
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from dashboard.tuning_presenters import HistoryRow
from dashboard.tuning_reading import read_history, read_version
from serving.contracts.errors import DomainError, InvalidValue, PoolNotFound, StaleVersion
from serving.lab.predictions.selectors import prediction_of
from serving.tuning import selectors, services

PAGE_SIZE = 20
_LARGEST_NUMBER = 2**31 - 1


@require_safe
@for_watchers
async def versions(request: HttpRequest, pool: str) -> HttpResponseBase:
    """Every change of a pool's tunables, newest first, in pages: `?before=` is the number that a page ends below."""
    context = await in_thread(_read_versions, pool, await request.auser(), whole_number(request.GET.get("before")))
    return await render_page(request, "dashboard/versions.html", context)


@require_safe
@for_watchers
async def version(request: HttpRequest, pool: str, number: int) -> HttpResponseBase:
    """One version: what changed, why, and everything that was measured before and after it."""
    page = await in_thread(_read_version, pool, min(number, _LARGEST_NUMBER), await request.auser())
    if page is None:
        raise Http404(f"pool {pool} has no version {number}")
    return await render_page(request, "dashboard/version.html", page)


@require_http_methods(["GET", "HEAD", "POST"])
@for_watchers
async def roll_back(request: HttpRequest, pool: str, number: int) -> HttpResponseBase:
    """Make a new version equal to an older one, unless another than the one that the operator saw is in force.

    Who comes by a link, as after signing in again, is led back to the versions: nothing is done but by the button.
    """
    if request.method != "POST":
        return redirect("dashboard:versions", pool=pool)
    user = await request.auser()
    if not await in_thread(may_steer, user):
        raise PermissionDenied
    based_on = whole_number(request.POST.get("based_on"))
    try:
        if based_on is None:
            raise InvalidValue("based_on", request.POST.get("based_on"), "the number of the version in force")
        stored = await in_thread(
            services.roll_back,
            pool,
            min(number, _LARGEST_NUMBER),
            reason=request.POST.get("reason", ""),
            author=acting(request, user.get_username()),
            redis=services_of(request).blocking_redis,
            based_on=based_on,
        )
    except PoolNotFound:
        raise
    except DomainError as error:
        return await _show_refusal(request, pool, error, based_on=based_on)
    messages.success(request, f"Rolled back to version {number}: version {stored.number} is stored.")
    return redirect("dashboard:versions", pool=pool)


async def _show_refusal(
    request: HttpRequest, pool: str, error: DomainError, *, based_on: int | None
) -> HttpResponseBase:
    """The versions again, with what was refused and, where another change was faster, that change."""
    context = await in_thread(_read_versions, pool, await request.auser(), None)
    refused = dataclasses.replace(context, problem=error.message)
    status = 409 if error.code in ("stale_version", "canary_running") else 400
    if isinstance(error, StaleVersion) and based_on is not None:
        refused = dataclasses.replace(refused, newer=await in_thread(read_newer, pool, based_on))
    return await render_page(request, "dashboard/versions.html", refused, status=status)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VersionsPage:
    """What `versions.html` shows. `problem` is a refusal, and `newer` the changes that it is about; `newer_url` and
    `older_url` lead to the neighbouring pages where there are any. `newest` is the version that a roll-back is on."""

    page: str = "tuning"
    pool: PoolHeading
    rows: tuple[HistoryRow, ...]
    newest: int
    may_steer: bool
    newer_url: str | None
    older_url: str | None
    problem: str | None = None
    newer: tuple[VersionRow, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VersionPage:
    """What `version.html` shows. `newest` is the version that a roll-back is on, `prediction_id` the prediction that
    this one was stored after (None: none was asked for)."""

    page: str = "tuning"
    pool: PoolHeading
    row: HistoryRow
    newest: int
    may_steer: bool
    prediction_id: int | None


def read_newer(name: str, number: int) -> tuple[VersionRow, ...]:
    """The versions that were stored after `number`. Blocking."""
    newer = selectors.versions_after(name, number)
    return present_versions(newer, in_force=newer[0].number if newer else 0)


def _read_versions(name: str, user: Any, before: int | None) -> VersionsPage:
    pool = selectors.find_pool(name)
    history = read_history(pool, before=before, limit=PAGE_SIZE)
    url = reverse("dashboard:versions", kwargs={"pool": name})
    return VersionsPage(
        pool=heading_of(pool),
        rows=history.rows,
        newest=history.newest,
        may_steer=may_steer_pool(user, pool),
        newer_url=_newer_url(url, before, newest=history.newest),
        older_url=f"{url}?before={history.rows[-1].number}" if history.has_older else None,
    )


def _read_version(name: str, number: int, user: Any) -> VersionPage | None:
    pool = selectors.find_pool(name)
    row = read_version(pool, number)
    if row is None:
        return None
    newest = selectors.newest_stored(pool).number
    return VersionPage(
        pool=heading_of(pool),
        row=row,
        newest=newest,
        may_steer=may_steer_pool(user, pool),
        prediction_id=prediction_of(pool.name, number),
    )


def _newer_url(url: str, before: int | None, *, newest: int) -> str | None:
    if before is None or before > newest:
        return None
    return f"{url}?before={before + PAGE_SIZE}" if before + PAGE_SIZE <= newest else url
