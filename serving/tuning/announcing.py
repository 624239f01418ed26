"""Telling a pool's engines which tunables to run."""

from __future__ import annotations

import logging
from typing import cast

from redis import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import AnnouncedTunables, Retune, encode

logger = logging.getLogger(__name__)


# Two changes may be announced in the other order than they were stored in: the older one then comes too late.
_SET_UNLESS_OLDER = """
local stored = redis.call('GET', KEYS[1])
if stored and cmsgpack.unpack(stored).version > tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1
"""


def announce(redis: Redis, pool: PoolName, announced: AnnouncedTunables) -> bool:
    """Write what the pool should run to Redis and to the control stream of each of its living engines.

    False where Redis is out of reach: what is stored stays stored, and the monitor announces it again.
    """
    try:
        _announce(redis, pool, announced)
    except (RedisError, OSError) as error:
        logger.warning("version %d of pool %s is stored but not announced yet: %s", announced.version, pool, error)
        return False
    return True


def announce_to(redis: Redis, engine_id: EngineId, tunables: AnnouncedTunables) -> bool:
    """Tell one engine alone. False where Redis is out of reach: the monitor tells it again."""
    try:
        _send(redis, engine_id, encode(Retune(tunables.version, tunables.tunables)))
    except (RedisError, OSError) as error:
        logger.warning("version %d is stored but engine %s not told yet: %s", tunables.version, engine_id, error)
        return False
    return True


def _announce(redis: Redis, pool: PoolName, announced: AnnouncedTunables) -> None:
    redis.eval(_SET_UNLESS_OLDER, 1, keys.announced_tunables(pool), encode(announced), announced.version)
    message = encode(Retune(announced.version, announced.tunables))
    for raw in cast("list[bytes | str]", redis.zrange(keys.engines(pool), 0, -1)):
        engine_id = EngineId(raw.decode() if isinstance(raw, bytes) else raw)
        # The streams of engines that are gone would be read by nobody.
        if redis.exists(keys.heartbeat(engine_id)):
            _send(redis, engine_id, message)


def _send(redis: Redis, engine_id: EngineId, message: bytes) -> None:
    redis.xadd(keys.control(engine_id), {keys.FIELD: message}, maxlen=keys.MAX_CONTROL_ENTRIES, approximate=True)
