"""The monitor: merges what all publish into live frames, and keeps tunables and books true."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.contracts.messages import AnnouncedTunables, EngineSnapshot
from serving.telemetry.books import LostOwners
from serving.telemetry.lease import Lease
from serving.telemetry.pool_monitor import Broadcast, PoolMonitor
from serving.telemetry.reconciler import Reconciler

T = TypeVar("T")

logger = logging.getLogger(__name__)

FRAME_SECONDS = 0.5
_LEASE_SECONDS = 5.0
_DATABASE_SECONDS = 2.0
"""Shorter than the lease: a database that is silent for longer has no answer."""
_STANDBY_SECONDS = 1.0
_ROUNDS_SECONDS = 2.0
_LONGEST_BACKOFF_SECONDS = 5.0

PoolsSource = Callable[[], Awaitable[Sequence[PoolName]]]
"""The pools there are."""
TunablesSource = Callable[[PoolName], Awaitable[AnnouncedTunables | None]]
"""What a pool should run; None where there is no such pool any more."""


class Monitor:
    """Owns the monitoring of all pools, on one event loop. Of several processes one works and the others wait.

    Twice a second it writes each pool's frame and tells the consoles; every two seconds it makes its rounds: which
    pools there are, whether their engines run what is stored, whose owner is gone. Redis and the database may go and
    come back; a frame needs the first alone.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        pools: PoolsSource,
        stored_tunables: TunablesSource,
        broadcast: Broadcast,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._pools = pools
        self._stored_tunables = stored_tunables
        self._broadcast = broadcast
        self._clock = clock
        self._lease = Lease(
            redis, keys.monitor_lease(), holder=f"monitor-{uuid.uuid4().hex}", life_seconds=_LEASE_SECONDS
        )
        self._reconciler = Reconciler(redis, clock=clock)
        self._monitors: dict[PoolName, PoolMonitor] = {}
        self._lost_owners: dict[PoolName, LostOwners] = {}
        self._made_rounds_at: float | None = None
        self._active = False
        self._database_works = True

    async def run(self, stopping: asyncio.Event) -> None:
        """Work, or wait for the lease, until `stopping` is set; then give the lease up."""
        backoff = FRAME_SECONDS
        while not stopping.is_set():
            try:
                pause = await self._take_turn()
                backoff = FRAME_SECONDS
            except (RedisError, OSError) as error:
                logger.warning("Redis is out of reach (%s); trying again in %.1f s", error, backoff)
                self._forget_silences()
                pause, backoff = backoff, min(backoff * 2, _LONGEST_BACKOFF_SECONDS)
            except Exception:
                logger.exception("the monitor tripped; trying again in %.1f s", backoff)
                pause, backoff = backoff, min(backoff * 2, _LONGEST_BACKOFF_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), pause)
        with contextlib.suppress(RedisError, OSError):
            await self._lease.release()

    async def _take_turn(self) -> float:
        """One turn; returns how many seconds to pause."""
        if not await self._lease.hold():
            self._stand_by()
            return _STANDBY_SECONDS
        if not self._active:
            logger.info("this monitor is the active one")
        self._active = True
        makes_rounds = self._rounds_are_due()
        if makes_rounds:
            await self._refresh_pools()
        for pool, monitor in self._monitors.items():
            engines = await monitor.publish_frame()
            if makes_rounds:
                await self._make_rounds(pool, engines)
        return FRAME_SECONDS

    def _stand_by(self) -> None:
        if self._active:
            logger.warning("another monitor is active now: this one waits")
        self._active = False
        # What they know is out of date by the time that this process takes over.
        self._monitors.clear()
        self._lost_owners.clear()
        self._made_rounds_at = None

    def _rounds_are_due(self) -> bool:
        now = self._clock()
        if self._made_rounds_at is not None and now - self._made_rounds_at < _ROUNDS_SECONDS:
            return False
        self._made_rounds_at = now
        return True

    async def _make_rounds(self, pool: PoolName, engines: list[EngineSnapshot]) -> None:
        stored = await self._ask_database(lambda: self._stored_tunables(pool))
        if stored is not None:
            await self._reconciler.reconcile(pool, stored, engines)
        await self._lost_owners[pool].settle(now=self._clock())

    async def _refresh_pools(self) -> None:
        names = await self._ask_database(self._pools)
        if names is None:
            return
        self._monitors = {
            name: self._monitors.get(name) or PoolMonitor(self._redis, name, broadcast=self._broadcast)
            for name in names
        }
        self._lost_owners = {name: self._lost_owners.get(name) or LostOwners(self._redis, name) for name in names}

    async def _ask_database(self, question: Callable[[], Awaitable[T]]) -> T | None:
        """The answer, or None while the database gives none: frames go on without it."""
        try:
            async with asyncio.timeout(_DATABASE_SECONDS):
                answer = await question()
        except Exception as error:  # Whatever a database driver raises.
            if self._database_works:
                logger.warning("the database does not answer (%s): tunables are not reconciled meanwhile", error)
            self._database_works = False
            return None
        self._database_works = True
        return answer

    def _forget_silences(self) -> None:
        for lost_owners in self._lost_owners.values():
            lost_owners.forget()
