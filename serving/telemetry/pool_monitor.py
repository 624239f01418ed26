"""One pool's part of the monitor: what owners measured and engines say, merged into frames."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import OwnerId, PoolName
from serving.telemetry.announced import announced_version
from serving.telemetry.books import read_books
from serving.telemetry.engines import TokenRates, live_engines
from serving.telemetry.frames import (
    WINDOWS_SECONDS,
    Frame,
    IntervalSummaries,
    decode_frame,
    encode_frame,
    encode_live,
    summarise_intervals,
)
from serving.telemetry.history import add_point
from serving.telemetry.inbox import count_inbox
from serving.telemetry.intervals import decode_batch
from serving.telemetry.points import live_frame_of
from serving.telemetry.ring import KEPT_SECONDS, IntervalRing

logger = logging.getLogger(__name__)

_FRAME_LIFE_SECONDS = 300
_READ_COUNT = 500
_BROADCAST_SECONDS = 1.0
"""The longest that consoles may hold up the frames."""


class Broadcast(Protocol):
    """Sends a pool's live frame (the JSON of a `LiveFrame`) to whoever watches it."""

    async def __call__(self, pool: PoolName, *, sequence: int, frame: bytes) -> None: ...


class PoolMonitor:
    """Owns a pool's ring of intervals and the place in its stream; on the monitor's event loop.

    It begins a quarter of an hour back, so that a restarted monitor knows what the one before knew.
    """

    def __init__(self, redis: Redis, pool: PoolName, *, broadcast: Broadcast) -> None:
        self.pool = pool
        self._redis = redis
        self._broadcast = broadcast
        self._broadcast_works = True
        self._ring = IntervalRing()
        self._rates = TokenRates()
        self._last_id: bytes | None = None
        self._last_sequences: dict[OwnerId, int] = {}
        self._frame_sequence: int | None = None
        self._last_point_at: int | None = None

    async def publish_frame(self) -> None:
        """Read what is new, write the next frame and tell the consoles.

        Errors of Redis pass through, but for those of the telling: whoever asks for a frame gets it without.
        """
        seconds, microseconds = await self._redis.time()
        now = int(seconds)
        await self._read_batches(now)
        self._ring.expire(now=now)
        engines = await live_engines(self._redis, self.pool)
        self._rates.add(engines)
        num_unread, num_unread_tokens = await count_inbox(self._redis, self.pool)
        frame = Frame(
            sequence=await self._next_sequence(),
            unix_seconds=now + microseconds / 1e6,
            pool=self.pool,
            windows=self._summarise_windows(now),
            prompt_tokens_per_second=self._rates.prompt_tokens_per_second,
            generated_tokens_per_second=self._rates.generated_tokens_per_second,
            num_unread=num_unread,
            num_unread_tokens=num_unread_tokens,
            announced_version=await announced_version(self._redis, self.pool),
            engines=engines,
            books=await read_books(self._redis, self.pool),
            prefix_hit_ratio=self._rates.prefix_hit_ratio,
        )
        await self._write(frame)

    def _summarise_windows(self, now: int) -> list[IntervalSummaries]:
        totals = [self._ring.total(since=now + 1 - seconds, until=now + 1) for seconds in WINDOWS_SECONDS]
        return [summarise_intervals(total) for total in totals]

    async def _write(self, frame: Frame) -> None:
        live = live_frame_of(frame)
        pipe = self._redis.pipeline(transaction=False)
        pipe.set(keys.frame(self.pool), encode_frame(frame), ex=_FRAME_LIFE_SECONDS)
        second = int(frame.unix_seconds)
        if second != self._last_point_at:
            add_point(pipe, self.pool, live.point)
        await pipe.execute()
        self._frame_sequence, self._last_point_at = frame.sequence, second
        await self._tell_consoles(frame.sequence, encode_live(live))

    async def _tell_consoles(self, sequence: int, frame: bytes) -> None:
        try:
            async with asyncio.timeout(_BROADCAST_SECONDS):
                await self._broadcast(self.pool, sequence=sequence, frame=frame)
        except Exception as error:  # Whatever a channel layer raises.
            if self._broadcast_works:
                logger.warning("pool %s: consoles cannot be told of frames: %r", self.pool, error)
            self._broadcast_works = False
        else:
            self._broadcast_works = True

    async def _read_batches(self, now: int) -> None:
        stream = keys.intervals(self.pool)
        since: bytes = self._last_id or b"%d-0" % ((now - KEPT_SECONDS) * 1000)
        while True:
            entries = cast(
                "list[tuple[bytes, dict[bytes, bytes]]]",
                await self._redis.xrange(stream, min=b"(" + since, count=_READ_COUNT),
            )
            for entry_id, fields in entries:
                self._take(entry_id, fields.get(keys.FIELD, b""))
            if not entries:
                return
            self._last_id = since = entries[-1][0]

    def _take(self, entry_id: bytes, content: bytes) -> None:
        try:
            batch = decode_batch(content)
        except msgspec.MsgspecError as error:
            logger.warning("pool %s: an owner says what this version does not understand: %s", self.pool, error)
            return
        # Written twice where an owner did not hear that it was written.
        if batch.sequence <= self._last_sequences.get(batch.owner_id, 0):
            return
        self._last_sequences[batch.owner_id] = batch.sequence
        self._ring.add(batch.intervals, at=int(entry_id.partition(b"-")[0]) // 1000)

    async def _next_sequence(self) -> int:
        if self._frame_sequence is not None:
            return self._frame_sequence + 1
        earlier = decode_or_none(decode_frame, await self._redis.get(keys.frame(self.pool)))
        return 1 if earlier is None else earlier.sequence + 1
