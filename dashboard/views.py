"""The console's pages: read, present, render."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.permissions import may_prompt, may_steer, may_watch
from dashboard.presenters import present_levers, present_windows
from dashboard.routing import live_path
from dashboard.threads import in_thread
from serving.contracts.errors import PoolNotFound
from serving.contracts.tunables import describe
from serving.telemetry.frames import WINDOWS_SECONDS
from serving.tuning import selectors

View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]


def for_watchers(view: View) -> View:
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
@for_watchers
async def live(request: HttpRequest, pool: str | None = None) -> HttpResponseBase:
    """A pool's Live page; the first pool's where none is named."""
    return await _render(request, "dashboard/live.html", await in_thread(_read_live, pool, await request.auser()))


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


async def _render(request: HttpRequest, template: str, page: Any, *, status: int = 200) -> HttpResponse:
    context: Mapping[str, Any] = {field.name: getattr(page, field.name) for field in dataclasses.fields(page)}
    response: HttpResponse = await in_thread(render, request, template, context, status=status)
    return response
