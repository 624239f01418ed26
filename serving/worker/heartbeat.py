"""The engine's sign of life, from a thread of its own, and its watch over the owners'."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import cast

import msgspec
from redis import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.ids import EngineId, OwnerId, PoolName
from serving.contracts.messages import EngineSnapshot, decode_snapshot, encode
from serving.worker.gauge import SampledGauge
from serving.worker.mailbox import Mailbox, OthersJoined, OwnerLost

logger = logging.getLogger(__name__)

BEAT_SECONDS = 0.25
LIFE_SECONDS = 3.0
"""An engine that has not beaten for so long is dead."""
OWNER_GRACE_SECONDS = 6.0
"""Longer than an owner's life: nobody is judged dead before Redis has been reachable for so long."""
_OWNERS_EVERY_BEATS = 4


class Heartbeat:
    """Owns the thread that publishes the engine's snapshot, and what it last saw of owners and of other engines."""

    def __init__(
        self,
        redis: Redis,
        *,
        engine_id: EngineId,
        pool: PoolName,
        mailbox: Mailbox,
        snapshot: Callable[[], EngineSnapshot],
        owners: Callable[[], frozenset[OwnerId]],
        gauge: SampledGauge | None = None,
    ) -> None:
        self._redis = redis
        self._engine_id = engine_id
        self._pool = pool
        self._mailbox = mailbox
        self._snapshot = snapshot
        self._owners = owners
        self._gauge = gauge
        self._missing_since: dict[OwnerId, float] = {}
        self._reachable_since: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._beat_all, name="heartbeat", daemon=True)
        self.num_other_engines = 0
        """Engines of the pool beside this one that live and take work."""
        self.has_beaten = False

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self, *, timeout_seconds: float) -> None:
        """End the thread and take the sign of life away; gives up after `timeout_seconds`."""
        self._stopping.set()
        self._thread.join(timeout_seconds)
        try:
            pipe = self._redis.pipeline(transaction=False)
            pipe.delete(keys.heartbeat(self._engine_id), keys.control(self._engine_id))
            pipe.zrem(keys.engines(self._pool), self._engine_id)
            pipe.execute()
        except (RedisError, OSError):
            logger.warning("cannot take the heartbeat away: it ends by itself in %.0f s", LIFE_SECONDS)

    def _beat_all(self) -> None:
        beats = 0
        while not self._stopping.is_set():
            try:
                self._beat()
                if beats % _OWNERS_EVERY_BEATS == 0:
                    self._watch_owners()
            except (RedisError, OSError) as error:
                if self._reachable_since is not None:
                    logger.warning("cannot beat: %s", error)
                self._reachable_since = None
                self._missing_since.clear()
            except Exception:
                logger.exception("cannot beat")
            beats += 1
            self._stopping.wait(BEAT_SECONDS)

    def _beat(self) -> None:
        pipe = self._redis.pipeline(transaction=False)
        pipe.set(keys.heartbeat(self._engine_id), encode(self._look()), px=int(LIFE_SECONDS * 1000))
        pipe.time()
        pipe.zrange(keys.engines(self._pool), 0, -1)
        _, (seconds, microseconds), ids = pipe.execute()
        self._redis.zadd(keys.engines(self._pool), {self._engine_id: seconds + microseconds / 1e6})
        others = [EngineId(raw.decode()) for raw in ids if raw.decode() != self._engine_id]
        beats = cast("list[bytes | None]", self._redis.mget([*map(keys.heartbeat, others)])) if others else []
        num_others = sum(beat is not None and _takes_work(beat) for beat in beats)
        was_alone, self.num_other_engines = self.num_other_engines == 0, num_others
        self.has_beaten = True
        if was_alone and self.num_other_engines > 0:
            self._mailbox.put(OthersJoined())
        if self._reachable_since is None:
            self._reachable_since = time.monotonic()

    def _look(self) -> EngineSnapshot:
        snapshot = self._snapshot()
        return snapshot if self._gauge is None else self._gauge.complete(snapshot)

    def _watch_owners(self) -> None:
        now = time.monotonic()
        owners = sorted(self._owners())
        if not owners:
            self._missing_since.clear()
            return
        alive = self._redis.mget([keys.owner_alive(owner) for owner in owners])
        missing = {owner for owner, value in zip(owners, alive, strict=True) if value is None}
        self._missing_since = {owner: self._missing_since.get(owner, now) for owner in missing}
        if self._reachable_since is None or now - self._reachable_since < OWNER_GRACE_SECONDS:
            return
        for owner, since in self._missing_since.items():
            if now - since >= 1.0:
                logger.warning("owner %s is gone: its requests are aborted", owner)
                self._mailbox.put(OwnerLost(owner))


def _takes_work(beat: bytes) -> bool:
    """Whether an engine is ready, as it says itself; one of another version, which this one does not understand, may
    be."""
    try:
        return decode_snapshot(beat).state == "ready"
    except msgspec.MsgspecError:
        return True
