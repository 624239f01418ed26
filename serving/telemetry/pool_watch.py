"""What happens to a pool without anyone saying so: engines that come and go, monitors and Redis that begin anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.events import MOST_SHOWN, PoolEventInfo, event_of, note_event
from serving.telemetry.frames import Frame

_GONE_SECONDS = 4.0
"""Longer than an engine's heartbeat lives: nobody is judged dead before Redis has been reachable for so long."""
_NEW_SECONDS = 60.0
"""An engine that is older when the first monitor sees it did not join just now."""
_SERVER_SECONDS = 5.0
_REMEMBERED_SECONDS = 3600.0


class PoolWatch:
    """Owns which of a pool's engines were there, which Redis it was, and what that has yet to be told of; on the
    monitor's event loop."""

    def __init__(self, redis: Redis, pool: PoolName) -> None:
        self._redis = redis
        self._pool = pool
        self._engines = EngineWatch(pool)
        self._run_id: str | None = None
        self._asked_at: float | None = None
        self._takes_over: Frame | None = None
        self._has_begun = False
        self._untold: list[PoolEventInfo] = []

    def begin(self, earlier: Frame | None) -> None:
        """Go on from the last frame of the monitor before, if there was one. Once; safe to repeat."""
        if self._has_begun:
            return
        self._has_begun = True
        self._takes_over = earlier
        if earlier is not None:
            self._engines.know(earlier.engines)

    def forget_silences(self) -> None:
        """Redis could not be reached: nobody's silence until now means anything, and it may be another one."""
        self._engines.forget_silences()
        self._asked_at = None

    async def look(self, engines: Sequence[EngineSnapshot], *, now: float) -> None:
        """Note what has happened since the last look. `now` is Redis's time; its errors pass through."""
        self._untold += self._take_over(now)
        self._untold += self._engines.look(engines, now=now)
        self._untold += await self._look_at_server(now)
        for engine in self._engines.take_gone(now=now):
            self._untold.append(await self._tell_gone(engine, now))
        if not self._untold:
            return
        # Each is noticed once: what Redis does not take now, it is told with the next look.
        del self._untold[:-MOST_SHOWN]
        pipe = self._redis.pipeline(transaction=True)
        for event in self._untold:
            note_event(pipe, event)
        await pipe.execute()
        self._untold.clear()

    def _take_over(self, now: float) -> list[PoolEventInfo]:
        if self._takes_over is None:
            return []
        earlier, self._takes_over = self._takes_over, None
        seconds = max(0.0, now - earlier.unix_seconds)
        text = f"another monitor is at work; the last figures were {seconds:.0f} s old"
        occurrence = str(earlier.sequence)
        return [event_of(self._pool, "monitor_took_over", at=now, text=text, occurrence=occurrence)]

    async def _look_at_server(self, now: float) -> list[PoolEventInfo]:
        if self._asked_at is not None and now - self._asked_at < _SERVER_SECONDS:
            return []
        run_id = str((await self._redis.info("server"))["run_id"])
        earlier, self._run_id, self._asked_at = self._run_id, run_id, now
        if earlier is None or run_id == earlier:
            return []
        return [event_of(self._pool, "redis_restarted", at=now, text="Redis was started anew", occurrence=run_id)]

    async def _tell_gone(self, engine: EngineSnapshot, now: float) -> PoolEventInfo:
        # Who leaves in order takes its name off the list; who dies is struck off much later.
        left = engine.leaves or not await self._is_listed(engine.engine_id)
        text = f"{engine.name} left the pool" if left else f"{engine.name} is silent: its heartbeat ended"
        return event_of(
            self._pool,
            "engine_left" if left else "engine_lost",
            at=now,
            subject=engine.engine_id,
            text=text,
            occurrence=f"{engine.uptime_seconds:.0f}",
        )

    async def _is_listed(self, engine_id: EngineId) -> bool:
        return await self._redis.zscore(keys.engines(self._pool), engine_id) is not None


class EngineWatch:
    """Owns the last words of a pool's engines, and since when each has been silent; used by one thread."""

    def __init__(self, pool: PoolName) -> None:
        self._pool = pool
        self._known: dict[EngineId, EngineSnapshot] = {}
        self._silent_since: dict[EngineId, float] = {}
        self._gone_at: dict[EngineId, float] = {}
        self._is_first = True

    def know(self, engines: Iterable[EngineSnapshot]) -> None:
        """These were there already."""
        self._known.update({engine.engine_id: engine for engine in engines})
        self._is_first = False

    def forget_silences(self) -> None:
        """Nobody has been silent until now."""
        self._silent_since = {}

    def look(self, engines: Iterable[EngineSnapshot], *, now: float) -> list[PoolEventInfo]:
        """Take in who lives; the events of those that joined, or came back after they were taken for gone."""
        alive = {engine.engine_id: engine for engine in engines}
        joined = [engine for id_, engine in alive.items() if id_ not in self._known and self._is_news(engine)]
        events = [self._tell_joined(engine, now) for engine in joined]
        self._is_first = False
        self._known.update(alive)
        silent = self._known.keys() - alive.keys()
        self._silent_since = {id_: self._silent_since.get(id_, now) for id_ in silent}
        self._gone_at = {id_: at for id_, at in self._gone_at.items() if now - at < _REMEMBERED_SECONDS}
        return events

    def take_gone(self, *, now: float) -> list[EngineSnapshot]:
        """The last words of those that have by now been silent for too long; each once."""
        gone = [id_ for id_, since in self._silent_since.items() if now - since >= _GONE_SECONDS]
        for id_ in gone:
            del self._silent_since[id_]
            self._gone_at[id_] = now
        return [self._known.pop(id_) for id_ in gone]

    def _is_news(self, engine: EngineSnapshot) -> bool:
        return not self._is_first or engine.uptime_seconds < _NEW_SECONDS

    def _tell_joined(self, engine: EngineSnapshot, now: float) -> PoolEventInfo:
        gone_at = self._gone_at.pop(engine.engine_id, None)
        text = f"{engine.name} serves on {engine.device}" if gone_at is None else f"{engine.name} is back"
        occurrence = "" if gone_at is None else f"back:{engine.uptime_seconds:.0f}"
        subject = engine.engine_id
        return event_of(self._pool, "engine_joined", at=now, subject=subject, text=text, occurrence=occurrence)
