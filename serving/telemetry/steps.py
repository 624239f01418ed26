"""Engines' steps on their way from Redis to the consoles: read once a process and engine, fanned out there.

A console that is slow costs nothing but its own steps: those that it has not taken are few, and the oldest go first.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import deque
from collections.abc import Callable
from typing import cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import EngineId
from serving.contracts.steps import SCHEMA_VERSION, SHOWN_STEPS, StepBatch, decode_steps
from serving.telemetry.feed import FeedClosed

logger = logging.getLogger(__name__)

READ_SECONDS = 0.2
PAUSE_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0
_MAX_WAITING_BATCHES = 32
_MAX_READ_ENTRIES = 2000

_encode = msgspec.json.Encoder().encode
_Entries = list[tuple[bytes, dict[bytes, bytes]]]
_OnEmpty = Callable[["_Source"], None]


@dataclasses.dataclass(frozen=True, slots=True)
class StepsText:
    """A `StepBatch` as it is sent to a page: the numbers of its first and last step, and its JSON."""

    first: int
    last: int
    json: bytes


class StepsWatcher:
    """Owns the batches that its reader has not taken; on the feed's event loop. Made by `StepsFeed.watch`."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._waiting: deque[StepsText] = deque(maxlen=_MAX_WAITING_BATCHES)
        self._changed = asyncio.Event()
        self._closed = False
        self.num_skipped = 0
        """Batches that newer ones pushed out before they were taken."""

    async def history(self) -> list[StepsText]:
        """The latest steps, `SHOWN_STEPS` of them or a little more, oldest first; what follows them comes by `next`.

        Waits until they were read, or could not be. To be asked for once, before `next`. Raises `FeedClosed`.
        """
        await self._source.loaded.wait()
        if self._closed:
            raise FeedClosed
        self._waiting.clear()
        return list(self._source.kept)

    async def next(self) -> StepsText:
        """The oldest batch not taken yet; waits where there is none. For one reader at a time. Raises `FeedClosed`."""
        while not self._waiting and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if self._closed:
            raise FeedClosed
        return self._waiting.popleft()

    def put(self, text: StepsText) -> None:
        """Called by the source: here are newer steps."""
        if len(self._waiting) == _MAX_WAITING_BATCHES:
            self.num_skipped += 1
        self._waiting.append(text)
        self._changed.set()

    def close(self) -> None:
        """Watch no more; a reader that waits is told. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        self._changed.set()
        self._source.forget(self)


class StepsFeed:
    """Owns a process's watchers of steps, and a reader for each engine that someone watches; on one event loop.

    Nothing is read of an engine that nobody watches. Readers survive whatever happens to Redis. They ask it now and
    then rather than wait in it, which would keep a connection each.
    """

    def __init__(
        self, redis: Redis, *, read_seconds: float = READ_SECONDS, pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        self._redis = redis
        self._pauses = (read_seconds, pause_seconds)
        self._sources: dict[EngineId, _Source] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def num_sources(self) -> int:
        """Engines that are read."""
        return len(self._sources)

    def watch(self, engine_id: EngineId) -> StepsWatcher:
        """A watcher of the engine's steps; to be closed by whoever asked for it. The engine need not exist."""
        source = self._sources.get(engine_id)
        if source is None:
            source = _Source(self._redis, engine_id, pauses=self._pauses, on_empty=self._end)
            if not self._closed:
                self._sources[engine_id] = source
                source.start()
        watcher = StepsWatcher(source)
        source.watchers.add(watcher)
        if self._closed:
            source.loaded.set()
            watcher.close()
        return watcher

    async def close(self) -> None:
        """End every watcher, then the readers."""
        self._closed = True
        for source in list(self._sources.values()):
            source.close()
        while self._ending:
            await asyncio.wait(set(self._ending))

    def _end(self, source: _Source) -> None:
        if self._sources.get(source.engine_id) is source:
            del self._sources[source.engine_id]
        if source.task is not None:
            self._ending.add(source.task)
            source.task.add_done_callback(self._ending.discard)


class _Source:
    """Owns the latest steps of one engine and the task that reads them, until its last watcher has gone."""

    def __init__(self, redis: Redis, engine_id: EngineId, *, pauses: tuple[float, float], on_empty: _OnEmpty) -> None:
        self.engine_id = engine_id
        self.kept: deque[StepsText] = deque()
        self.loaded = asyncio.Event()
        self.watchers: set[StepsWatcher] = set()
        self.task: asyncio.Task[None] | None = None
        self._redis = redis
        self._read_seconds, self._pause_seconds = pauses
        self._on_empty = on_empty
        self._position = b"0-0"
        self._ended = asyncio.Event()
        self._works = True

    def start(self) -> None:
        """Begin to read."""
        self.task = asyncio.create_task(self._read_on())

    def forget(self, watcher: StepsWatcher) -> None:
        """Called by a watcher that closes; the last one ends the reading."""
        self.watchers.discard(watcher)
        if not self.watchers and not self._ended.is_set():
            self._ended.set()
            self.loaded.set()
            self._on_empty(self)

    def close(self) -> None:
        """End every watcher, and so the reading."""
        for watcher in list(self.watchers):
            watcher.close()

    async def _read_on(self) -> None:
        while not self._ended.is_set():
            pause = self._read_seconds
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    entries = await self._read()
                self._take_in(entries)
                self._works = True
            except (RedisError, OSError, TimeoutError) as error:
                if self._works:
                    logger.warning("the steps of engine %s cannot be read: %s", self.engine_id, error)
                self._works = False
                pause = self._pause_seconds
            except Exception:
                logger.exception("the steps of engine %s cannot be read", self.engine_id)
                pause = self._pause_seconds
            self.loaded.set()
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return

    async def _read(self) -> _Entries:
        # From the next id on: a batch's id is the number of its last step, and there are none in between.
        number = int(self._position.split(b"-")[0])
        found = await self._redis.xrange(keys.steps(self.engine_id), min=f"{number + 1}-0", count=_MAX_READ_ENTRIES)
        return cast("_Entries", found)

    def _take_in(self, entries: _Entries) -> None:
        for entry_id, fields in entries:
            self._position = entry_id
            batch = decode_or_none(decode_steps, fields.get(keys.FIELD))
            if batch is None or not batch.rows or batch.schema_version != SCHEMA_VERSION:
                continue
            text = StepsText(batch.rows[0].step, batch.rows[-1].step, _encode(_shown(batch)))
            self._keep(text)
            for watcher in self.watchers:
                watcher.put(text)

    def _keep(self, text: StepsText) -> None:
        self.kept.append(text)
        while len(self.kept) > 1 and self.kept[1].first <= text.last - SHOWN_STEPS + 1:
            self.kept.popleft()


def _shown(batch: StepBatch) -> dict[str, object]:
    """What a page is sent of it."""
    return {"sequences": batch.sequences, "rows": batch.rows, "num_dropped": batch.num_dropped}
