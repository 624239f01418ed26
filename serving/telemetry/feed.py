"""Live frames on their way from the monitor to the consoles: broadcast once, received once a process, fanned out there.

A console that is slow costs nothing but its own frames: of those that it has not taken there is only ever the newest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from serving.contracts.ids import PoolName
from serving.telemetry.history import read_history
from serving.telemetry.subscription import Message, Subscription

__all__ = ["FeedClosed", "FeedFrame", "LiveFeed", "Watcher", "broadcast", "read_history"]

logger = logging.getLogger(__name__)

_FRAME = "live.frame"


class FeedClosed(Exception):
    """No more frames will come: the watcher or the whole feed was closed."""


@dataclasses.dataclass(frozen=True, slots=True)
class FeedFrame:
    """A `LiveFrame` as it is sent to a page: its number, and its JSON."""

    sequence: int
    text: str


async def broadcast(layer: Any, pool: PoolName, *, sequence: int, frame: bytes) -> None:
    """Send a live frame (its JSON) to every process where someone watches the pool. The layer's errors pass through.

    `layer` is a channel layer. A process that Redis cannot reach at this moment misses the frame: the next one makes
    up for it.
    """
    await layer.group_send(_group(pool), {"type": _FRAME, "pool": pool, "sequence": sequence, "frame": frame})


class Watcher:
    """Owns the newest frame that its reader has not taken; on the feed's event loop. Made by `LiveFeed.watch`."""

    def __init__(self, on_close: Callable[[Watcher], None]) -> None:
        self._on_close = on_close
        self._newest: FeedFrame | None = None
        self._changed = asyncio.Event()
        self._closed = False
        self.num_skipped = 0
        """Frames that a newer one replaced before they were taken."""

    async def next(self) -> FeedFrame:
        """The newest frame not taken yet; waits for one where there is none. For one reader at a time.

        Raises `FeedClosed` once the watcher or its feed is closed.
        """
        while self._newest is None and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if self._closed or self._newest is None:
            raise FeedClosed
        frame, self._newest = self._newest, None
        return frame

    def put(self, frame: FeedFrame) -> None:
        """Called by the feed: here is a newer frame."""
        if self._newest is not None:
            self.num_skipped += 1
        self._newest = frame
        self._changed.set()

    def close(self) -> None:
        """Watch no more; a reader that waits is told. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        self._newest = None
        self._changed.set()
        self._on_close(self)


class LiveFeed:
    """Owns a process's watchers and its one subscription to the channel layer; on one event loop.

    The subscription holds the pools that someone watches, and heals itself within seconds of Redis's return. `layer` is
    a channel layer that nothing else on this loop uses: to heal, it is emptied.
    """

    def __init__(self, layer: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._watchers: defaultdict[PoolName, set[Watcher]] = defaultdict(set)
        self._subscription = Subscription(layer, deliver=self._fan_out, clock=clock)
        self._closed = False
        self._warned = False

    async def start(self) -> None:
        """Begin to receive. Redis need not be there."""
        self._subscription.start()

    async def close(self) -> None:
        """End every watcher, then the subscription."""
        self._closed = True
        for watchers in list(self._watchers.values()):
            for watcher in list(watchers):
                watcher.close()
        await self._subscription.stop()

    def watch(self, pool: PoolName) -> Watcher:
        """A watcher of the pool's frames from now on; to be closed by whoever asked for it."""
        watcher = Watcher(lambda closed: self._forget(pool, closed))
        if self._closed:
            watcher.close()
            return watcher
        self._watchers[pool].add(watcher)
        self._subscription.want(map(_group, self._watchers))
        return watcher

    def _forget(self, pool: PoolName, watcher: Watcher) -> None:
        watchers = self._watchers.get(pool)
        if watchers is None:
            return
        watchers.discard(watcher)
        if not watchers:
            del self._watchers[pool]
            self._subscription.want(map(_group, self._watchers))

    def _fan_out(self, message: Message) -> None:
        match message:
            case {"type": kind, "pool": str(pool), "sequence": int(sequence), "frame": bytes(text)} if kind == _FRAME:
                frame = FeedFrame(sequence, text.decode())
                for watcher in self._watchers.get(PoolName(pool), ()):
                    watcher.put(frame)
            case _:
                self._warn_once()

    def _warn_once(self) -> None:
        # Another version may send such a message for every frame.
        if not self._warned:
            logger.warning("a message to the consoles that this version does not understand was skipped")
        self._warned = True


def _group(pool: PoolName) -> str:
    return f"live.{pool}"
