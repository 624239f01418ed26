"""Sees to it that every engine of a pool runs the tunables that are stored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import AnnouncedTunables, EngineSnapshot, Retune, encode
from serving.telemetry.announced import read_announced

logger = logging.getLogger(__name__)

_TELL_AGAIN_SECONDS = 2.0
_FORCE_AFTER_SECONDS = 6.0


class Trial(msgspec.Struct, frozen=True):
    """What one engine of a pool runs instead of what is in force. `since` is in unix seconds."""

    engine_id: EngineId
    tunables: AnnouncedTunables
    since: float


class StoredForPool(msgspec.Struct, frozen=True):
    """What a pool's engines should run: all of them `in_force`, but for the one of the `trial`."""

    in_force: AnnouncedTunables
    trial: Trial | None = None

    def for_engine(self, engine_id: EngineId) -> AnnouncedTunables:
        """What that engine should run."""
        return self.trial.tunables if self.trial is not None and self.trial.engine_id == engine_id else self.in_force


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

    async def reconcile(self, pool: PoolName, wanted: StoredForPool, engines: Iterable[EngineSnapshot]) -> None:
        """Announce what is in force where another one is announced, and send each engine that runs another version
        than it should the one that it should.

        An engine is told again after two seconds if it still reports another one. Errors of Redis pass through.
        """
        running = list(engines)
        stored = wanted.in_force
        announced = await read_announced(self._redis, pool)
        is_ahead = announced is not None and announced.version > stored.version
        is_ahead |= any(engine.tunables_version > wanted.for_engine(engine.engine_id).version for engine in running)
        force = self._must_force(pool, is_ahead=is_ahead)
        if announced is None or announced.version < stored.version or (force and announced != stored):
            # Should a newer version be announced just now, this one overwrites it; the next round puts it right.
            await self._redis.set(keys.announced_tunables(pool), encode(stored))
            logger.info("pool %s: version %d of the tunables announced again", pool, stored.version)
        for engine in running:
            own = wanted.for_engine(engine.engine_id)
            if engine.tunables_version == own.version:
                self._told_at.pop(engine.engine_id, None)
            else:
                await self._retune(engine, own, force=force)

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
