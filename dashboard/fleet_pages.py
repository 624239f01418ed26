"""What the Fleet pages share: who may open them, how they are refreshed, and what they do without Redis."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from redis.exceptions import RedisError

from dashboard.permissions import User, may_steer, may_watch
from dashboard.services import services_of
from dashboard.tenant_pages import View
from dashboard.threads import in_thread
from serving.contracts.errors import Unavailable
from serving.contracts.ids import PoolName
from serving.telemetry.fleet import Fleet, read_fleet
from serving.tuning.selectors import pools

logger = logging.getLogger(__name__)


def for_watchers(view: View) -> View:
    """Only for those who may watch; who is not signed in is sent to sign in."""
    return _guarded(view, may_watch)


def for_steerers(view: View) -> View:
    """Only for those who may steer."""
    return _guarded(view, may_steer)


def is_part(request: HttpRequest) -> bool:
    """Whether only the part of the page that changes is asked for, by a page that refreshes itself."""
    return request.GET.get("part") == "1"


async def read_all(request: HttpRequest) -> tuple[Fleet, dict[PoolName, str]]:
    """The fleet as it is now, and the models by pool. Raises `Unavailable` where Redis does not answer."""
    models = await in_thread(_read_models)
    try:
        fleet = await read_fleet(services_of(request).redis, [*models])
    except (RedisError, OSError) as error:
        raise silent(error) from None
    return fleet, models


def silent(error: Exception) -> Unavailable:
    """What a page says where Redis does not answer."""
    logger.warning("the fleet cannot be read: %s", error)
    return Unavailable("Redis does not answer, and so nothing is known of engines and processes")


def _read_models() -> dict[PoolName, str]:
    return {PoolName(pool.name): pool.model for pool in pools()}


def _guarded(view: View, rule: Callable[[User], bool]) -> View:
    @login_required
    @wraps(view)
    async def checked(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if not await in_thread(rule, await request.auser()):
            raise PermissionDenied
        return await view(request, **kwargs)

    return checked
