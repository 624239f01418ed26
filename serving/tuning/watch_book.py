"""The database of the monitor's watch over guardrails and canaries, on a thread of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from channels.db import database_sync_to_async
from redis import Redis

from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot
from serving.tuning import canaries, guardrails
from serving.tuning.selectors import configured_pool_names
from serving.tuning.watching import Standing


class DatabaseBook:
    """Asks the database on one thread, so that nothing else waits for an answer that does not come. `redis` is a
    blocking client."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="guardrails")

    async def read(self) -> Standing:
        """What is watched and tried."""
        return cast(Standing, await self._call(read_standing))

    async def note_missed_since(self, watched: guardrails.Watched, since: float | None) -> None:
        """See `guardrails.note_missed_since`."""
        note = functools.partial(guardrails.note_missed_since, starts_at=watched.starts_at)
        await self._call(note, watched.id, since)

    async def let_pass(self, watched: guardrails.Watched) -> bool:
        """See `guardrails.let_pass`."""
        return bool(await self._call(functools.partial(guardrails.let_pass, starts_at=watched.starts_at), watched.id))

    async def take_back(self, watched: guardrails.Watched, value: float) -> object:
        """See `guardrails.take_back`."""
        take_back = functools.partial(guardrails.take_back, value=value, redis=self._redis, starts_at=watched.starts_at)
        return await self._call(take_back, watched.id)

    async def move(self, pool: PoolName, old: EngineId, new: EngineId, *, engines: Sequence[EngineSnapshot]) -> bool:
        """See `canaries.move`."""
        return bool(await self._call(functools.partial(canaries.move, old=old, new=new, engines=engines), pool))

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        on_thread = database_sync_to_async(function, thread_sensitive=False, executor=self._executor)
        return await on_thread(*arguments)


def read_standing() -> Standing:
    """What is watched and tried in configured pools, as the database tells at this moment. Blocking."""
    found = {name: canaries.trial_of(name) for name in configured_pool_names()}
    trials = {name: trial for name, trial in found.items() if trial is not None}
    return Standing(tuple(guardrails.watched()), trials)
