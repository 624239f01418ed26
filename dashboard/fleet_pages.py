"""What the Fleet pages share: who may open them, how they are refreshed, and what they do without Redis."""

from __future__ import annotations

import logging

from django.http import HttpRequest
from redis.exceptions import RedisError

from dashboard.fleet_presenters import StoredPool
from dashboard.services import services_of
from dashboard.threads import in_thread
from serving.contracts.errors import Unavailable
from serving.contracts.ids import PoolName
from serving.telemetry.fleet import Fleet, read_fleet
from serving.tuning.selectors import pools

logger = logging.getLogger(__name__)


def is_part(request: HttpRequest) -> bool:
    """Whether only the part of the page that changes is asked for, by a page that refreshes itself."""
    return request.GET.get("part") == "1"


async def read_all(request: HttpRequest) -> tuple[Fleet, dict[PoolName, StoredPool]]:
    """The fleet as it is now, and what is stored of its pools. Raises `Unavailable` where Redis does not answer."""
    stored = await in_thread(_read_pools)
    try:
        fleet = await read_fleet(services_of(request).redis, [*stored])
    except (RedisError, OSError) as error:
        raise silent(error) from None
    return fleet, stored


def silent(error: Exception) -> Unavailable:
    """What a page says where Redis does not answer."""
    logger.warning("the fleet cannot be read: %s", error)
    return Unavailable("Redis does not answer, and so nothing is known of engines and processes")


def _read_pools() -> dict[PoolName, StoredPool]:
    return {PoolName(pool.name): pool for pool in pools()}
