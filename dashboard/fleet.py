"""The Fleet pages that show: all engines and processes, and one process with the last lines of its log."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

from dashboard.fleet_pages import is_part, read_all, silent
from dashboard.fleet_presenters import (
    LEVELS,
    LevelChoice,
    LogRow,
    PoolCard,
    Processes,
    ProcessRow,
    present_levels,
    present_log,
    present_pools,
    present_process,
    present_processes,
)
from dashboard.pages import for_watchers, render_page
from dashboard.permissions import may_steer
from dashboard.services import services_of
from dashboard.threads import in_thread
from serving.contracts.errors import Unavailable
from serving.telemetry.processes import read_process
from serving.telemetry.recent_logs import read_lines


@require_safe
@for_watchers
async def fleet(request: HttpRequest) -> HttpResponseBase:
    """The engines of every pool, and all processes of the last hour. With `?part=1` only what changes of the page."""
    user = await request.auser()
    steers = await in_thread(may_steer, user)
    try:
        found, stored = await read_all(request)
    except Unavailable as error:
        page = FleetPage(problem=error.message, may_steer=steers)
        return await _render(request, "fleet", page, status=503)
    page = FleetPage(
        pools=present_pools(found, stored),
        processes=present_processes(found.processes, now=timezone.now()),
        may_steer=steers,
    )
    return await _render(request, "fleet", page)


@require_safe
@for_watchers
async def process(request: HttpRequest, process_id: str) -> HttpResponseBase:
    """One process of the last hour and, for those who may steer, its log from `?level=` on. `?part=1` as in `fleet`."""
    steers = await in_thread(may_steer, await request.auser())
    level = request.GET.get("level", "all")
    level = level if level in LEVELS else "all"
    redis = services_of(request).redis
    try:
        found = await read_process(redis, process_id)
        lines = await read_lines(redis, process_id, level=LEVELS[level]) if found is not None and steers else []
    except (RedisError, OSError) as error:
        page = ProcessPage(problem=silent(error).message, may_steer=steers)
        return await _render(request, "fleet_process", page, status=503)
    if found is None:
        raise Http404("there is no such process")
    url = reverse("dashboard:fleet_process", kwargs={"process_id": process_id})
    page = ProcessPage(
        process=present_process(found, now=timezone.now()),
        url=url if level == "all" else f"{url}?level={level}",
        may_steer=steers,
        levels=present_levels(level),
        is_filtered=level != "all",
        lines=present_log(lines),
    )
    return await _render(request, "fleet_process", page)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FleetPage:
    """What `fleet.html` shows. `problem` says why nothing can be shown, `""` where it can."""

    page: str = "fleet"
    problem: str = ""
    pools: tuple[PoolCard, ...] = ()
    processes: Processes = dataclasses.field(default_factory=lambda: Processes(up=(), gone=(), num_more=0))
    may_steer: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPage:
    """What `fleet_process.html` shows. `process` is None where there is a `problem`; `url` is where this page is."""

    page: str = "fleet"
    problem: str = ""
    process: ProcessRow | None = None
    url: str = ""
    may_steer: bool
    levels: tuple[LevelChoice, ...] = ()
    is_filtered: bool = False
    lines: tuple[LogRow, ...] = ()


async def _render(request: HttpRequest, name: str, page: Any, *, status: int = 200) -> HttpResponseBase:
    template = f"dashboard/_{name}.html" if is_part(request) else f"dashboard/{name}.html"
    return await render_page(request, template, page, status=status)
