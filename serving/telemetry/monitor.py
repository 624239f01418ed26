"""The monitor: merges what all publish into live frames, and keeps tunables and books true."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.telemetry.lease import Lease
from serving.telemetry.pool_monitor import Broadcast, FrameObserver, PoolMonitor
from serving.telemetry.rounds import Rounds, TunablesSource

logger = logging.getLogger(__name__)

FRAME_SECONDS = 0.5
_LEASE_SECONDS = 5.0
_STANDBY_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 5.0


class Monitor:
    """Owns the monitoring of all pools, on one event loop. Of several processes one works and the others wait.

    Twice a second it writes each pool's frame and tells the consoles; beside that it makes its `Rounds`. Redis and the
    database may go and come back; a frame needs the first alone, and waits for the second never.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        stored_tunables: TunablesSource,
        broadcast: Broadcast,
        observers: Sequence[FrameObserver] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._stored_tunables = stored_tunables
        self._broadcast = broadcast
        self._observers = tuple(observers)
        self._clock = clock
        self._lease = Lease(
            redis, keys.monitor_lease(), holder=f"monitor-{uuid.uuid4().hex}", life_seconds=_LEASE_SECONDS
        )
        self._monitors: dict[PoolName, PoolMonitor] = {}
        self._rounds = self._new_rounds()
        self._active = False

    @property
    def is_active(self) -> bool:
        """Whether this monitor works; another does otherwise, or none can."""
        return self._active

    async def run(self, stopping: asyncio.Event) -> None:
        """Work, or wait for the lease, until `stopping` is set; then give the lease up."""
        backoff = FRAME_SECONDS
        while not stopping.is_set():
            try:
                pause = await self._take_turn()
                backoff = FRAME_SECONDS
            except (RedisError, OSError) as error:
                logger.warning("Redis is out of reach (%s); trying again in %.1f s", error, backoff)
                await self._rounds.end()
                self._rounds.forget_silences()
                pause, backoff = backoff, min(backoff * 2, _LONGEST_BACKOFF_SECONDS)
            except Exception:
                logger.exception("the monitor tripped; trying again in %.1f s", backoff)
                pause, backoff = backoff, min(backoff * 2, _LONGEST_BACKOFF_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), pause)
        await self._rounds.end()
        with contextlib.suppress(RedisError, OSError):
            await self._lease.release()

    async def _take_turn(self) -> float:
        """One turn; returns how many seconds to pause."""
        if not await self._lease.hold():
            await self._stand_by()
            return _STANDBY_SECONDS
        if not self._active:
            await self._take_over()
        self._rounds.start_if_due()
        self._monitors = {pool: self._monitors.get(pool) or self._new_monitor(pool) for pool in self._rounds.pools}
        for pool, monitor in self._monitors.items():
            await monitor.publish_frame(trial=self._rounds.trial_of(pool))
        return FRAME_SECONDS

    async def _take_over(self) -> None:
        await self._rounds.recall()
        logger.info("this monitor is the active one")
        self._active = True

    async def _stand_by(self) -> None:
        if not self._active:
            return
        logger.warning("another monitor is active now: this one waits")
        self._active = False
        await self._rounds.end()
        # What they know is out of date by the time that this process takes over.
        self._rounds, self._monitors = self._new_rounds(), {}

    def _new_rounds(self) -> Rounds:
        return Rounds(self._redis, stored_tunables=self._stored_tunables, clock=self._clock)

    def _new_monitor(self, pool: PoolName) -> PoolMonitor:
        return PoolMonitor(self._redis, pool, broadcast=self._broadcast, observers=self._observers)
