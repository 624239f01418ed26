"""Sees to it that every engine of a pool runs the tunables that are stored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import AnnouncedTunables, EngineSnapshot, Retune, encode
from serving.telemetry.announced import read_announced

logger = logging.getLogger(__name__)

_TELL_AGAIN_SECONDS = 2.0
_FORCE_AFTER_SECONDS = 6.0


class Reconciler:
    """Owns when each engine was last told; on the monitor's event loop.

    What is announced in Redis may be lost, and a `Retune` may be sent to an engine that was just starting. The stored
    version is the truth; whoever runs another one is sent it whole. An engine that runs a newer one than is stored may
    have heard of a change after the database was asked; if it still does a while later, the database is another one,
    and its version is forced.
    """

    def __init__(self, redis: Redis, *, clock: Callable[[], float]) -> None:
        self._redis = redis
        self._clock = clock
        self._told_at: dict[EngineId, float] = {}
        self._ahead_since: dict[PoolName, float] = {}

    async def reconcile(self, pool: PoolName, stored: AnnouncedTunables, engines: Iterable[EngineSnapshot]) -> None:
        """Announce `stored` where another one is announced, and send it to the engines that run another version.

        An engine is told again after two seconds if it still reports another one. Errors of Redis pass through.
        """
        running = list(engines)
        announced = await read_announced(self._redis, pool)
        known = [engine.tunables_version for engine in running] + ([announced.version] if announced else [])
        force = self._must_force(pool, is_ahead=any(version > stored.version for version in known))
        if announced is None or announced.version < stored.version or (force and announced != stored):
            # Should a newer version be announced just now, this one overwrites it; the next round puts it right.
            await self._redis.set(keys.announced_tunables(pool), encode(stored))
            logger.info("pool %s: version %d of the tunables announced again", pool, stored.version)
        for engine in running:
            if engine.tunables_version == stored.version:
                self._told_at.pop(engine.engine_id, None)
            else:
                await self._retune(engine, stored, force=force)

    def _must_force(self, pool: PoolName, *, is_ahead: bool) -> bool:
        if not is_ahead:
            self._ahead_since.pop(pool, None)
            return False
        since = self._ahead_since.setdefault(pool, self._clock())
        return self._clock() - since >= _FORCE_AFTER_SECONDS

    async def _retune(self, engine: EngineSnapshot, stored: AnnouncedTunables, *, force: bool) -> None:
        now = self._clock()
        told_at = self._told_at.get(engine.engine_id)
        if told_at is not None and now - told_at < _TELL_AGAIN_SECONDS:
            return
        self._told_at[engine.engine_id] = now
        message = encode(Retune(stored.version, stored.tunables, force))
        await self._redis.xadd(
            keys.control(engine.engine_id), {keys.FIELD: message}, maxlen=keys.MAX_CONTROL_ENTRIES, approximate=True
        )
        logger.info(
            "engine %s runs version %d of the tunables: sent version %d",
            engine.engine_id,
            engine.tunables_version,
            stored.version,
        )
