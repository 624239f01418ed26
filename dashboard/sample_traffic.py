"""First use: traffic to look at for whoever has none yet, and the card of first steps."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from django.contrib import messages
from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST, require_safe

from dashboard.pages import for_watchers, only, read_pools, render_page
from dashboard.permissions import may_prompt
from dashboard.services import PlayingTraffic, services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.audit.services import record
from serving.contracts.errors import Unavailable
from serving.contracts.ids import PoolName
from serving.tuning import selectors

HIDDEN_COOKIE = "footplate_first_steps"
_A_YEAR_SECONDS = 365 * 24 * 3600


@require_POST
@only(may_prompt)
async def sample_traffic(request: HttpRequest, pool: str) -> HttpResponseBase:
    """Send sample traffic to a pool for half a minute, or with `action=stop` end it, and go back to `next`."""
    user = await request.auser()
    name = await _find_pool(pool)
    back = _way_back(request, reverse("dashboard:pool", kwargs={"pool": name}))
    try:
        if request.POST.get("action") == "stop":
            await _stop(request, name, user=user.get_username())
        else:
            await _start(request, name, user=user.get_username())
    except Unavailable as error:
        messages.error(request, f"Nothing was done: {error.message}.")
    return redirect(back)


@require_safe
@for_watchers
async def sample_state(request: HttpRequest, pool: str) -> HttpResponseBase:
    """Whether sample traffic is sent to a pool: `{"author", "seconds_left"}`, or `{}`."""
    try:
        playing = await services_of(request).sample_traffic.state(await _find_pool(pool))
    except Unavailable:
        playing = None
    return JsonResponse({} if playing is None else _described(playing))


@require_safe
@for_watchers
async def first_steps(request: HttpRequest) -> HttpResponseBase:
    """What to do first, for whoever hid it on the Live page."""
    return await render_page(request, "dashboard/first_steps.html", await in_thread(_read_page))


@require_POST
@for_watchers
async def hide_first_steps(request: HttpRequest) -> HttpResponseBase:
    """Show the card of first steps no more in this browser, or with `action=show` again."""
    response = redirect(_way_back(request, reverse("dashboard:live")))
    if request.POST.get("action") == "show":
        response.delete_cookie(HIDDEN_COOKIE, path="/console/")
    else:
        response.set_cookie(
            HIDDEN_COOKIE,
            "hidden",
            max_age=_A_YEAR_SECONDS,
            path="/console/",
            secure=request.is_secure(),
            httponly=True,
            samesite="Lax",
        )
    return response


@dataclasses.dataclass(frozen=True, slots=True)
class PoolHeading:
    """Which pool a page is about."""

    name: str
    model: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FirstStepsPage:
    """What `first_steps.html` shows. `pool` is the first, None where there is none yet."""

    page: str = "first steps"
    pool: PoolHeading | None


def _read_page() -> FirstStepsPage:
    _, first = read_pools(None)
    return FirstStepsPage(pool=None if first is None else PoolHeading(first.name, first.model))


async def _start(request: HttpRequest, pool: PoolName, *, user: str) -> None:
    playing = await services_of(request).sample_traffic.start(pool, author=user)
    if playing is not None:
        messages.warning(
            request,
            f"Sample traffic of {playing.author} runs already, for {playing.seconds_left:.0f} more seconds.",
        )
        return
    await _note(request, "sample traffic sent", pool, user=user)
    messages.success(request, "Sample traffic runs for half a minute: short chats, six at a time.")


async def _stop(request: HttpRequest, pool: PoolName, *, user: str) -> None:
    if not await services_of(request).sample_traffic.stop(pool):
        messages.warning(request, "No sample traffic runs any more.")
        return
    await _note(request, "sample traffic stopped", pool, user=user)
    messages.success(request, "The sample traffic is stopped.")


async def _note(
    request: HttpRequest,
    action: Literal["sample traffic sent", "sample traffic stopped"],
    pool: PoolName,
    *,
    user: str,
) -> None:
    await in_thread(record, action, actor=acting(request, user), subject_kind="pool", subject=pool, pool=pool)


async def _find_pool(pool: str) -> PoolName:
    return PoolName((await in_thread(selectors.find_configured_pool, pool)).name)


def _described(playing: PlayingTraffic) -> dict[str, Any]:
    return {"author": playing.author, "seconds_left": round(playing.seconds_left, 1)}


def _way_back(request: HttpRequest, usual: str) -> str:
    """Where the form says that it stands, if that is a page of the console."""
    path = request.POST.get("next", "")
    is_ours = path.startswith("/console/") and url_has_allowed_host_and_scheme(path, allowed_hosts=None)
    return path if is_ours and len(path) <= 500 else usual
