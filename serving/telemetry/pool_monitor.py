"""One pool's part of the monitor: what owners measured and engines say, merged into frames."""

from __future__ import annotations

import logging
from typing import cast

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import OwnerId, PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.books import read_books
from serving.telemetry.engines import TokenRates, live_engines
from serving.telemetry.frames import WINDOW_SECONDS, Frame, decode_frame, encode_frame, summarise_intervals
from serving.telemetry.intervals import decode_batch
from serving.telemetry.ring import KEPT_SECONDS, IntervalRing

logger = logging.getLogger(__name__)

_FRAME_LIFE_SECONDS = 300
_READ_COUNT = 500


class PoolMonitor:
    """Owns a pool's ring of intervals and the place in its stream; on the monitor's event loop.

    It begins a quarter of an hour back, so that a restarted monitor knows what the one before knew.
    """

    def __init__(self, redis: Redis, pool: PoolName) -> None:
        self.pool = pool
        self._redis = redis
        self._ring = IntervalRing()
        self._rates = TokenRates()
        self._last_id: bytes | None = None
        self._last_sequences: dict[OwnerId, int] = {}
        self._frame_sequence: int | None = None

    async def publish_frame(self) -> list[EngineSnapshot]:
        """Read what is new, write the next frame; returns the engines that live. Errors of Redis pass through."""
        seconds, microseconds = await self._redis.time()
        now = int(seconds)
        await self._read_batches(now)
        self._ring.expire(now=now)
        engines = await live_engines(self._redis, self.pool)
        self._rates.add(engines)
        frame = Frame(
            sequence=await self._next_sequence(),
            unix_seconds=now + microseconds / 1e6,
            pool=self.pool,
            intervals=summarise_intervals(self._ring.total(since=now + 1 - WINDOW_SECONDS, until=now + 1)),
            prompt_tokens_per_second=self._rates.prompt_tokens_per_second,
            generated_tokens_per_second=self._rates.generated_tokens_per_second,
            engines=engines,
            books=await read_books(self._redis, self.pool),
        )
        await self._redis.set(keys.frame(self.pool), encode_frame(frame), ex=_FRAME_LIFE_SECONDS)
        self._frame_sequence = frame.sequence
        return engines

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
