"""The Steps page: the batch as it ran, a row a sequence, a column a step."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_safe
from redis.exceptions import RedisError

from dashboard.pages import PoolHeading, for_watchers, heading_of, read_pools
from dashboard.permissions import may_view_requests
from dashboard.pool_gone import render_pool_page
from dashboard.routing import steps_path
from dashboard.services import services_of
from dashboard.threads import in_thread
from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.selectors import live_engines

logger = logging.getLogger(__name__)

_LONGEST_ENGINE_ID = 200


@require_safe
@for_watchers
async def steps(request: HttpRequest, pool: str | None = None) -> HttpResponseBase:
    """A pool's Steps page, of the engine whose id or name `?engine=` is or the first that lives; the first pool's where
    none is named."""
    page = await in_thread(_read_page, pool, await request.auser())
    if page.pool is not None:
        engines = await _read_engines(request, PoolName(page.pool.name))
        chosen = id_of(request.GET.get("engine", "")[:_LONGEST_ENGINE_ID], engines)
        page = dataclasses.replace(page, engines=present_engines(page.pool.name, engines, chosen=chosen), chosen=chosen)
    return await render_pool_page(request, "dashboard/steps.html", page)


@dataclasses.dataclass(frozen=True, slots=True)
class EngineLink:
    """An engine whose steps can be looked at, and where."""

    name: str
    url: str
    is_chosen: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepsPage:
    """What `steps.html` shows. `pool` is None where there is none yet. `chosen` is the engine that the address names,
    `requests_url` where a request's page is below, empty for whoever may not see requests."""

    page: str = "steps"
    pool: PoolHeading | None
    pools: tuple[str, ...]
    socket_path: str
    requests_url: str
    engines: tuple[EngineLink, ...] = ()
    chosen: str = ""


def id_of(text: str, engines: list[EngineSnapshot]) -> str:
    """The id of the one engine that lives and has this name; otherwise the text itself, as an id."""
    named = [engine.engine_id for engine in engines if engine.name == text]
    return named[0] if len(named) == 1 else text


def present_engines(pool: str, engines: list[EngineSnapshot], *, chosen: str) -> tuple[EngineLink, ...]:
    """The engines that live as links, and the one that is shown: the chosen one, or else the first."""
    shown = chosen or (engines[0].engine_id if engines else "")
    url = reverse("dashboard:pool_steps", kwargs={"pool": pool})
    return tuple(
        EngineLink(
            name=engine.name if len({e.name for e in engines}) == len(engines) else engine.engine_id,
            url=f"{url}?{urlencode({'engine': engine.engine_id})}",
            is_chosen=engine.engine_id == shown,
        )
        for engine in engines
    )


def _read_page(name: str | None, user: Any) -> StepsPage:
    pools, pool = read_pools(name)
    return StepsPage(
        pool=None if pool is None else heading_of(pool),
        pools=pools,
        socket_path="" if pool is None else steps_path(pool.name),
        requests_url=reverse("dashboard:requests") if may_view_requests(user) else "",
    )


async def _read_engines(request: HttpRequest, pool: PoolName) -> list[EngineSnapshot]:
    try:
        return await live_engines(services_of(request).redis, pool)
    except (RedisError, OSError) as error:
        logger.warning("The engines of pool %s are not known for a page: %s", pool, error)
        return []
