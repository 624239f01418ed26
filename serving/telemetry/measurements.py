"""What the owners of a pool's requests measured in the last quarter of an hour."""

from __future__ import annotations

from redis.asyncio import Redis

from serving.contracts.ids import PoolName
from serving.telemetry.frames import WINDOWS_SECONDS, IntervalSummaries, summarise_intervals
from serving.telemetry.interval_stream import IntervalStream
from serving.telemetry.ring import KEPT_SECONDS, IntervalRing
from serving.telemetry.tallies import OutcomeTally


class Measurements:
    """Owns a pool's ring of intervals, the tally of its outcomes, and the place in its stream; on the monitor's event
    loop. It begins a quarter of an hour back."""

    def __init__(self, redis: Redis, pool: PoolName) -> None:
        self._stream = IntervalStream(redis, pool)
        self.ring = IntervalRing()
        self.tally = OutcomeTally()

    async def read(self, *, now: int) -> None:
        """Take in what is new, and drop what is too old. Errors of Redis pass through."""
        async for batch, at in self._stream.read(begins_at=now - KEPT_SECONDS, now=now):
            self.ring.add(batch.intervals, at=at)
            self.tally.take_batch(batch, at=at)
        self.ring.expire(now=now)
        self.tally.expire(now=now)

    def summarise_windows(self, *, now: int) -> list[IntervalSummaries]:
        """Over each of `WINDOWS_SECONDS`, second `now` included."""
        totals = [self.ring.total(since=now + 1 - seconds, until=now + 1) for seconds in WINDOWS_SECONDS]
        return [summarise_intervals(total) for total in totals]
