"""From the last quarter of an hour to stretches of ten seconds that are kept."""

from __future__ import annotations

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import PoolName
from serving.telemetry import chronicle
from serving.telemetry.history import KEPT_SECONDS, read_points
from serving.telemetry.measurements import Measurements
from serving.telemetry.rollups import STRETCH_SECONDS, StretchEntry, content_of, encode_entry

_GRACE_SECONDS = 2
"""So long after its end a stretch is summed up: what was written in it has then been read."""
_MOST_AT_ONCE = 10
"""A monitor that takes over may find a quarter of an hour that nobody summed up; its frames go on meanwhile."""
_KNOWN_SECONDS = 86_400

_encode_end = msgspec.msgpack.Encoder().encode
_decode_end = msgspec.msgpack.Decoder(int).decode


class Stretches:
    """Owns up to where a pool's time is summed up; on the monitor's event loop.

    A stretch is made of what stands in Redis, so that two monitors make the same of it: its repetition is harmless.
    Where a monitor takes over, it goes on where the one before ended, as far back as a quarter of an hour. A stretch in
    which nobody looked and nobody measured is none: a gap stays one.
    """

    def __init__(self, redis: Redis, pool: PoolName, *, measured: Measurements) -> None:
        self._redis = redis
        self._pool = pool
        self._measured = measured
        self._ends_at: int | None = None

    async def close_due(self, *, now: int) -> None:
        """Sum up what is over, and write it to the chronicle. `now` is Redis's time; its errors pass through."""
        if self._ends_at is None:
            self._ends_at = decode_or_none(_decode_end, await self._redis.get(keys.rolled_up(self._pool))) or 0
        # Before that the ring reaches in part at most.
        earliest = now - KEPT_SECONDS
        self._ends_at = max(self._ends_at, earliest + -earliest % STRETCH_SECONDS)
        for _ in range(_MOST_AT_ONCE):
            if now < self._ends_at + STRETCH_SECONDS + _GRACE_SECONDS:
                return
            await self._close(self._ends_at)

    async def _close(self, starts_at: int) -> None:
        ends_at = starts_at + STRETCH_SECONDS
        content = content_of(
            self._measured.ring.total(since=starts_at, until=ends_at),
            counts=self._measured.tally.total(since=starts_at, until=ends_at),
            points=await read_points(self._redis, self._pool, since=starts_at, until=ends_at),
        )
        pipe = self._redis.pipeline(transaction=True)
        if content is not None:
            entry = StretchEntry(pool=self._pool, starts_at=starts_at, content=content)
            chronicle.append(pipe, encode_entry(entry))
        pipe.set(keys.rolled_up(self._pool), _encode_end(ends_at), ex=_KNOWN_SECONDS)
        await pipe.execute()
        self._ends_at = ends_at
