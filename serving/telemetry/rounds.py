"""The monitor's rounds: which pools there are, whether their engines run what is stored, whose owner is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts.ids import PoolName
from serving.telemetry.books import LostOwners
from serving.telemetry.engines import live_engines
from serving.telemetry.known_pools import read_known_pools, write_known_pools
from serving.telemetry.reconciler import Reconciler, StoredForPool, Trial

logger = logging.getLogger(__name__)

StoredTunables = Mapping[PoolName, StoredForPool | None]
"""What every pool should run; None where what is stored for one cannot be used."""
TunablesSource = Callable[[], Awaitable[StoredTunables]]

_ROUNDS_SECONDS = 2.0
_DATABASE_SECONDS = 2.0
"""A database that is silent for longer has no answer."""


class Rounds:
    """Owns which pools are known, what is tried in them and whose owners are silent, and the task that makes a round;
    on the monitor's loop.

    There is one round at a time, every two seconds. It may have to wait for the database, and nothing else waits for
    it. Without an answer it goes on with the pools that were known last.
    """

    def __init__(self, redis: Redis, *, stored_tunables: TunablesSource, clock: Callable[[], float]) -> None:
        self._redis = redis
        self._stored_tunables = stored_tunables
        self._clock = clock
        self._reconciler = Reconciler(redis, clock=clock)
        self._lost_owners: dict[PoolName, LostOwners] = {}
        self._round: asyncio.Task[None] | None = None
        self._trials: dict[PoolName, Trial] = {}
        self._began_at: float | None = None
        self._database_works = True
        self._unusable: frozenset[PoolName] = frozenset()

    @property
    def pools(self) -> tuple[PoolName, ...]:
        """The pools there are, as far as is known."""
        return tuple(self._lost_owners)

    def trial_of(self, pool: PoolName) -> Trial | None:
        """What one of the pool's engines tries, as the database said last."""
        return self._trials.get(pool)

    async def recall(self) -> None:
        """Begin with the pools that the last active monitor knew. Errors of Redis pass through."""
        self._know(await read_known_pools(self._redis))

    def start_if_due(self) -> None:
        """Begin a round in the background where two seconds have passed since the last one began, and it has ended."""
        now = self._clock()
        if self._round is not None and not self._round.done():
            return
        if self._began_at is not None and now - self._began_at < _ROUNDS_SECONDS:
            return
        self._began_at = now
        self._round = asyncio.create_task(self.make_round())

    async def end(self) -> None:
        """Break off the round that is being made, if one is."""
        # On Python 3.11 the Redis client may lose a cancellation; so it is repeated until it is heard.
        while self._round is not None and not self._round.done():
            self._round.cancel()
            await asyncio.wait({self._round}, timeout=0.5)

    def forget_silences(self) -> None:
        """Redis could not be reached: nobody's silence until now means anything."""
        for lost_owners in self._lost_owners.values():
            lost_owners.forget()

    async def make_round(self) -> None:
        """Make one round to its end. What goes wrong is logged: the next round tries again."""
        try:
            await self._go_round()
        except (RedisError, OSError) as error:
            logger.warning("Redis is out of reach (%s): a round was not finished", error)
            self.forget_silences()
        except Exception:
            logger.exception("the monitor tripped on its rounds")

    async def _go_round(self) -> None:
        stored = await self._ask_database()
        if stored is not None:
            self._know(stored)
            self._trials = {
                pool: own.trial for pool, own in stored.items() if own is not None and own.trial is not None
            }
        if stored is not None or self._lost_owners:
            await write_known_pools(self._redis, self.pools)
        for pool, lost_owners in self._lost_owners.items():
            tunables = None if stored is None else stored[pool]
            if tunables is not None:
                await self._reconciler.reconcile(pool, tunables, await live_engines(self._redis, pool))
            await lost_owners.settle(now=self._clock())

    def _know(self, pools: Iterable[PoolName]) -> None:
        self._lost_owners = {pool: self._lost_owners.get(pool) or LostOwners(self._redis, pool) for pool in pools}

    async def _ask_database(self) -> StoredTunables | None:
        """The answer, or None while the database gives none."""
        try:
            async with asyncio.timeout(_DATABASE_SECONDS):
                stored = await self._stored_tunables()
        except Exception as error:  # Whatever a database driver raises.
            if self._database_works:
                logger.warning("the database does not answer (%r): tunables are not reconciled meanwhile", error)
            self._database_works = False
            return None
        self._database_works = True
        self._complain_of_unusable(stored)
        return stored

    def _complain_of_unusable(self, stored: StoredTunables) -> None:
        unusable = frozenset(pool for pool, tunables in stored.items() if tunables is None)
        if unusable - self._unusable:
            logger.warning("what is stored for these pools cannot be used: %s", ", ".join(sorted(unusable)))
        self._unusable = unusable
