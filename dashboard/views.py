"""The console's pages: read, present, render."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard.pages import PoolHeading, for_watchers, heading_of, read_pools
from dashboard.permissions import may_prompt, may_steer
from dashboard.pool_gone import render_pool_page
from dashboard.presenters import present_levers, present_windows
from dashboard.routing import live_path
from dashboard.threads import in_thread
from serving.contracts.tunables import describe
from serving.telemetry.frames import WINDOWS_SECONDS
from serving.tuning import selectors


@require_safe
@for_watchers
async def live(request: HttpRequest, pool: str | None = None) -> HttpResponseBase:
    """A pool's Live page; the first pool's where none is named."""
    page = await in_thread(_read_live, pool, await request.auser())
    return await render_pool_page(request, "dashboard/live.html", page)


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
    pools, pool = read_pools(name)
    return LivePage(
        pool=None if pool is None else heading_of(pool),
        pools=pools,
        socket_path="" if pool is None else live_path(pool.name),
        windows=present_windows(WINDOWS_SECONDS),
        lever_groups=present_levers(describe(), pools=() if pool is None else selectors.others_of_its_model(pool)),
        may_steer=may_steer(user),
        may_prompt=may_prompt(user),
    )
