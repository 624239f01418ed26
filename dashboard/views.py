"""The console's pages: read, present, render."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboard.permissions import may_prompt, may_steer, may_watch
from dashboard.presenters import VersionRow, present_levers, present_versions, present_windows
from dashboard.routing import live_path
from dashboard.services import services_of
from dashboard.threads import in_thread
from serving.contracts.errors import DomainError, InvalidValue, PoolNotFound, StaleVersion
from serving.contracts.tunables import describe
from serving.telemetry.frames import WINDOWS_SECONDS
from serving.tuning import selectors, services

PAGE_SIZE = 50
_LARGEST_NUMBER = 2**31 - 1
View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]


def _for_watchers(view: View) -> View:
    """Only for those who may watch; who is not signed in is sent to sign in."""

    @login_required
    @wraps(view)
    async def checked(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if not may_watch(await request.auser()):
            raise PermissionDenied
        try:
            return await view(request, **kwargs)
        except PoolNotFound as error:
            raise Http404(error.message) from None

    return checked


@require_safe
@_for_watchers
async def live(request: HttpRequest, pool: str | None = None) -> HttpResponseBase:
    """A pool's Live page; the first pool's where none is named."""
    return await _render(request, "dashboard/live.html", await in_thread(_read_live, pool, await request.auser()))


@require_safe
@_for_watchers
async def versions(request: HttpRequest, pool: str) -> HttpResponseBase:
    """Every change of a pool's tunables, newest first, in pages: `?before=` is the number that a page ends below."""
    context = await in_thread(_read_versions, pool, await request.auser(), _number(request.GET.get("before")))
    return await _render(request, "dashboard/versions.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@_for_watchers
async def roll_back(request: HttpRequest, pool: str, number: int) -> HttpResponseBase:
    """Make a new version equal to an older one, unless another than the one that the operator saw is in force.

    Who comes by a link, as after signing in again, is led back to the versions: nothing is done but by the button.
    """
    if request.method != "POST":
        return redirect("dashboard:versions", pool=pool)
    user = await request.auser()
    if not await in_thread(may_steer, user):
        raise PermissionDenied
    based_on = _number(request.POST.get("based_on"))
    try:
        if based_on is None:
            raise InvalidValue("based_on", request.POST.get("based_on"), "the number of the version in force")
        version = await in_thread(
            services.roll_back,
            pool,
            min(number, _LARGEST_NUMBER),
            reason=request.POST.get("reason", ""),
            author=user.get_username(),
            redis=services_of(request).blocking_redis,
            based_on=based_on,
        )
    except PoolNotFound:
        raise
    except DomainError as error:
        return await _show_refusal(request, pool, error, based_on=based_on)
    messages.success(request, f"Rolled back to version {number}: version {version.number} is stored.")
    return redirect("dashboard:versions", pool=pool)


async def _show_refusal(
    request: HttpRequest, pool: str, error: DomainError, *, based_on: int | None
) -> HttpResponseBase:
    """The versions again, with what was refused and, where another change was faster, that change."""
    context = await in_thread(_read_versions, pool, await request.auser(), None)
    refused = dataclasses.replace(context, problem=error.message)
    if isinstance(error, StaleVersion) and based_on is not None:
        newer = await in_thread(_read_newer, pool, based_on)
        return await _render(request, "dashboard/versions.html", dataclasses.replace(refused, newer=newer), status=409)
    return await _render(request, "dashboard/versions.html", refused, status=400)


@dataclasses.dataclass(frozen=True, slots=True)
class PoolHeading:
    """Which pool a page is about."""

    name: str
    model: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LivePage:
    """What `live.html` shows. `pool` is None where there is none yet; `socket_path` is then empty."""

    page: str = "live"
    pool: PoolHeading | None
    pools: tuple[str, ...]
    socket_path: str
    windows: tuple[str, ...]
    lever_groups: tuple[Any, ...]
    may_steer: bool
    may_prompt: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VersionsPage:
    """What `versions.html` shows. `problem` is a refusal, and `newer` the changes that it is about; `newer_url` and
    `older_url` lead to the neighbouring pages where there are any."""

    page: str = "versions"
    pool: PoolHeading
    rows: tuple[VersionRow, ...]
    in_force: int
    may_steer: bool
    newer_url: str | None
    older_url: str | None
    problem: str | None = None
    newer: tuple[VersionRow, ...] = ()


def _read_live(name: str | None, user: Any) -> LivePage:
    pools = {str(pool.name): pool for pool in selectors.pools()}
    if name is not None and name not in pools:
        raise PoolNotFound(f"there is no pool named {name[:100]!r}")
    pool = pools[name] if name is not None else next(iter(pools.values()), None)
    return LivePage(
        pool=None if pool is None else PoolHeading(pool.name, pool.model),
        pools=tuple(pools),
        socket_path="" if pool is None else live_path(pool.name),
        windows=present_windows(WINDOWS_SECONDS),
        lever_groups=present_levers(describe(), pools=() if pool is None else selectors.others_of_its_model(pool)),
        may_steer=may_steer(user),
        may_prompt=may_prompt(user),
    )


def _read_versions(name: str, user: Any, before: int | None) -> VersionsPage:
    pool = selectors.find_pool(name)
    in_force = selectors.newest_version_of(pool).number
    # One more than is shown tells whether there is an older page.
    found = selectors.versions_of(pool, before=before, limit=PAGE_SIZE + 1)
    shown = found[:PAGE_SIZE]
    url = reverse("dashboard:versions", kwargs={"pool": name})
    return VersionsPage(
        pool=PoolHeading(pool.name, pool.model),
        rows=present_versions(shown, in_force=in_force),
        in_force=in_force,
        may_steer=may_steer(user),
        newer_url=_newer_url(url, before, in_force=in_force),
        older_url=f"{url}?before={shown[-1].number}" if len(found) > PAGE_SIZE else None,
    )


def _newer_url(url: str, before: int | None, *, in_force: int) -> str | None:
    if before is None or before > in_force:
        return None
    return f"{url}?before={before + PAGE_SIZE}" if before + PAGE_SIZE <= in_force else url


def _read_newer(name: str, number: int) -> tuple[VersionRow, ...]:
    newer = selectors.versions_after(name, number)
    return present_versions(newer, in_force=newer[0].number if newer else 0)


def _number(text: str | None) -> int | None:
    """A version's number from a form or a query; None for what is none."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 10:
        return None
    return min(int(text), _LARGEST_NUMBER)


async def _render(request: HttpRequest, template: str, page: Any, *, status: int = 200) -> HttpResponse:
    context: Mapping[str, Any] = {field.name: getattr(page, field.name) for field in dataclasses.fields(page)}
    response: HttpResponse = await in_thread(render, request, template, context, status=status)
    return response
