"""What the gateway knows of pools and their engines: a view refreshed from Redis."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot, decode_announced, decode_snapshot
from serving.contracts.tunables import Tunables
from serving.gateway.text.tokenizer import TextModel


class PoolLoads(Protocol):
    """Makes something of what the engines say of themselves; on the gateway's event loop."""

    def look(self, pool: PoolName, snapshots: Sequence[EngineSnapshot], *, max_running: int) -> None:
        """Take in the snapshots of the pool's engines that are ready; told a few times a second."""

    def retry_after_seconds(self, pool: PoolName) -> float:
        """When somebody whom the pool has kept waiting for too long may try again."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """A pool as last seen. `max_model_len` bounds prompt and answer together: the engines' own limit, by model and KV
    pool; the model's while no engine was ever seen."""

    name: PoolName
    text_model: TextModel
    tunables: Tunables
    max_model_len: int
    num_engines: int
    tunables_version: int | None = None
    """That of `tunables`; None while none were announced."""

    @property
    def model(self) -> str:
        """The name of the model that it serves."""
        return self.text_model.name

    @property
    def has_engines(self) -> bool:
        """Whether anything can run a request now."""
        return self.num_engines > 0


class PoolWatcher:
    """Owns the pools' views and the set of engines that live; on the gateway's event loop.

    `max_model_len` outlives the engines that reported it, so that a request is judged by the same bound while an engine
    restarts.
    """

    def __init__(self, redis: Redis, text_models: Mapping[PoolName, TextModel], *, loads: PoolLoads) -> None:
        self._redis = redis
        self._loads = loads
        self._views = {
            name: PoolView(
                name=name,
                text_model=text_model,
                tunables=Tunables(),
                max_model_len=text_model.max_model_len,
                num_engines=0,
            )
            for name, text_model in text_models.items()
        }
        self._engines: dict[PoolName, dict[EngineId, EngineSnapshot]] = {name: {} for name in text_models}

    def views(self) -> list[PoolView]:
        """All pools."""
        return list(self._views.values())

    def view(self, pool: PoolName) -> PoolView:
        """One pool; KeyError where there is none of this name."""
        return self._views[pool]

    def engine_ids(self, pool: PoolName) -> frozenset[EngineId]:
        """The pool's engines whose heart beats."""
        return frozenset(self._engines[pool])

    def engine_name(self, pool: PoolName, engine_id: EngineId) -> str:
        """What the engine is called, however often it was restarted; its id where it is gone."""
        snapshot = self._engines[pool].get(engine_id)
        return engine_id if snapshot is None else snapshot.name

    def version_run(self, pool: PoolName, engine_id: EngineId | None) -> int | None:
        """The version of the tunables that an engine runs, which may try one before all others do; where it is not
        known, that of the pool."""
        snapshot = None if engine_id is None else self._engines[pool].get(engine_id)
        known = None if snapshot is None else snapshot.tunables_version or None
        return self._views[pool].tunables_version if known is None else known

    async def refresh(self) -> None:
        """Read heartbeats and announced tunables again. Errors of Redis pass through, and leave all as it was."""
        for name in self._views:
            await self._refresh_pool(name)

    async def _refresh_pool(self, pool: PoolName) -> None:
        raw_ids = cast("list[bytes]", await self._redis.zrange(keys.engines(pool), 0, -1))
        ids = [EngineId(raw.decode()) for raw in raw_ids]
        names = [keys.announced_tunables(pool), *map(keys.heartbeat, ids)]
        announced, *beats = cast("list[bytes | None]", await self._redis.mget(names))
        snapshots = [snapshot for beat in beats if (snapshot := decode_or_none(decode_snapshot, beat)) is not None]
        ready = [snapshot for snapshot in snapshots if snapshot.state == "ready"]
        changes: dict[str, Any] = {"num_engines": len(ready)}
        if (known := decode_or_none(decode_announced, announced)) is not None:
            changes["tunables"], changes["tunables_version"] = known.tunables, known.version
        if ready:
            changes["max_model_len"] = min(snapshot.max_model_len for snapshot in ready)
        self._engines[pool] = {snapshot.engine_id: snapshot for snapshot in snapshots}
        self._views[pool] = dataclasses.replace(self._views[pool], **changes)
        self._loads.look(pool, ready, max_running=self._views[pool].tunables.max_running)
