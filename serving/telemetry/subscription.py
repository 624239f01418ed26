"""A process's place in groups of the channel layer, kept through everything that happens to Redis."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

logger = logging.getLogger(__name__)

Message = dict[str, Any]

_PROBE_MESSAGE: Message = {"type": "feed.probe"}
_TICK_SECONDS = 1.0
_PROBE_SECONDS = 2.0
"""After so long a silence the subscription is tried with a message to itself: perhaps there is nothing to hear."""
_LOST_SECONDS = 6.0
"""After so long a silence, in spite of those, it is lost."""
_PATIENCE_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 2.0


class SubscriptionLost(Exception):
    """Not even our own messages arrive."""


class Subscription:
    """Owns one channel of the layer, the groups that it is in, and the task that keeps both; on one event loop.

    Nothing needs Redis to be there: the task tries until it is, and begins anew within seconds where messages stopped
    arriving, which it finds out by messages to itself. No connection is opened before a group is wanted.
    """

    def __init__(
        self, layer: Any, *, deliver: Callable[[Message], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._layer = layer
        self._deliver = deliver
        self._clock = clock
        self._wanted: frozenset[str] = frozenset()
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._heard_at = 0.0
        self._probed_at = 0.0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._works = True
        self._delivers = True

    def start(self) -> None:
        """Begin to listen."""
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Leave every group and close the connections."""
        self._stopping.set()
        self._changed.set()
        if self._keeper is not None:
            await _finish(self._keeper)

    def want(self, groups: Iterable[str]) -> None:
        """Be in these groups, and in no other, as soon as can be."""
        self._wanted = frozenset(groups)
        self._changed.set()

    async def _keep(self) -> None:
        while not self._stopping.is_set():
            if not self._wanted:
                await self._until_changed(seconds=None)
                continue
            try:
                await self._listen()
            except Exception as error:  # Whatever a channel layer raises.
                self._complain(error)
                await self._pause()

    async def _listen(self) -> None:
        """Receive until told to stop. Raises where the subscription is lost; leaves nothing of it either way."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                channel = await self._layer.new_channel("feed.")
            receiver = asyncio.create_task(self._receive(channel))
        except BaseException:
            await _flush(self._layer)
            raise
        try:
            await self._stay(channel, receiver)
        finally:
            # In this order: a receiver that is cancelled while it has a channel says so to Redis.
            await _flush(self._layer)
            receiver.cancel()
            await asyncio.wait({receiver})

    async def _stay(self, channel: str, receiver: asyncio.Task[None]) -> None:
        joined: frozenset[str] = frozenset()
        while not self._stopping.is_set():
            wanted = self._wanted
            async with asyncio.timeout(_PATIENCE_SECONDS):
                for group in wanted - joined:
                    await self._layer.group_add(group, channel)
                for group in joined - wanted:
                    await self._layer.group_discard(group, channel)
                if not joined:
                    self._heard_at = self._clock()  # before that there was nothing to hear
                await self._probe(channel)
            joined = wanted
            if receiver.done():
                receiver.result()
            await self._until_changed(seconds=_TICK_SECONDS)

    async def _probe(self, channel: str) -> None:
        now = self._clock()
        silence = now - self._heard_at
        if silence >= _LOST_SECONDS:
            raise SubscriptionLost(f"nothing has arrived for {silence:.0f} s")
        if silence >= _PROBE_SECONDS and now - self._probed_at >= _PROBE_SECONDS:
            self._probed_at = now
            await self._layer.send(channel, dict(_PROBE_MESSAGE))

    async def _receive(self, channel: str) -> None:
        while True:
            message = await self._layer.receive(channel)
            self._heard_at = self._clock()
            self._pause_seconds = _FIRST_PAUSE_SECONDS
            if not self._works:
                logger.info("live frames can be received again")
            self._works = True
            if message != _PROBE_MESSAGE:
                self._hand_over(message)

    def _hand_over(self, message: Message) -> None:
        try:
            self._deliver(message)
        except Exception:  # One message that cannot be delivered must not cost the subscription.
            if self._delivers:
                logger.exception("a message to the consoles cannot be delivered; of more such nothing is said")
            self._delivers = False

    def _complain(self, error: Exception) -> None:
        if self._works:
            logger.warning("live frames cannot be received (%r); trying again until they can", error)
        self._works = False

    async def _until_changed(self, *, seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)
        self._changed.clear()

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), self._pause_seconds)
        self._pause_seconds = min(self._pause_seconds * 2, _LONGEST_PAUSE_SECONDS)


async def _flush(layer: Any) -> None:
    """Take the layer back to its beginning, its connections closed."""
    for _ in range(3):
        flushing = asyncio.ensure_future(layer.flush())
        await _finish(flushing)
        if not flushing.cancelled() and flushing.exception() is None:
            return


async def _finish(work: asyncio.Future[None]) -> None:
    """Wait for its end, and bring it about where that takes long.

    The layer cancels its own reader once and waits for it; but on Python 3.11 the Redis client may lose a cancellation.
    One from here reaches the reader as well, and so does the next.
    """
    while not (await asyncio.wait({work}, timeout=2.0))[0]:
        work.cancel()
