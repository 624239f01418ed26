"""What the owners of a pool's requests measured in the last quarter of an hour."""

from __future__ import annotations

import logging
from typing import NamedTuple, cast

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import OwnerId, PoolName
from serving.telemetry.frames import WINDOWS_SECONDS, IntervalSummaries, summarise_intervals
from serving.telemetry.intervals import decode_batch
from serving.telemetry.ring import KEPT_SECONDS, IntervalRing
from serving.telemetry.tallies import OutcomeTally

logger = logging.getLogger(__name__)

_READ_COUNT = 500


class _LastBatch(NamedTuple):
    """The latest batch of an owner, and the second in which it was written."""

    sequence: int
    at: int


class Measurements:
    """Owns a pool's ring of intervals, the tally of its outcomes, and the place in its stream; on the monitor's event
    loop. It begins a quarter of an hour back."""

    def __init__(self, redis: Redis, pool: PoolName) -> None:
        self._redis = redis
        self._pool = pool
        self.ring = IntervalRing()
        self.tally = OutcomeTally()
        self._last_id: bytes | None = None
        self._last_batches: dict[OwnerId, _LastBatch] = {}

    async def read(self, *, now: int) -> None:
        """Take in what is new, and drop what is too old. Errors of Redis pass through."""
        stream = keys.intervals(self._pool)
        since: bytes = self._last_id or b"%d-0" % ((now - KEPT_SECONDS) * 1000)
        while True:
            entries = cast(
                "list[tuple[bytes, dict[bytes, bytes]]]",
                await self._redis.xrange(stream, min=b"(" + since, count=_READ_COUNT),
            )
            for entry_id, fields in entries:
                self._take(entry_id, fields.get(keys.FIELD, b""))
            if entries:
                self._last_id = since = entries[-1][0]
            if len(entries) < _READ_COUNT:
                break
        self._forget_silent_owners(now=now)
        self.ring.expire(now=now)
        self.tally.expire(now=now)

    def summarise_windows(self, *, now: int) -> list[IntervalSummaries]:
        """Over each of `WINDOWS_SECONDS`, second `now` included."""
        totals = [self.ring.total(since=now + 1 - seconds, until=now + 1) for seconds in WINDOWS_SECONDS]
        return [summarise_intervals(total) for total in totals]

    def _forget_silent_owners(self, *, now: int) -> None:
        """Those that have said nothing for as long as anything is kept: they are gone, and every process is a new
        owner."""
        oldest = now - KEPT_SECONDS
        self._last_batches = {owner: last for owner, last in self._last_batches.items() if last.at >= oldest}

    def _take(self, entry_id: bytes, content: bytes) -> None:
        try:
            batch = decode_batch(content)
        except msgspec.MsgspecError as error:
            logger.warning("pool %s: an owner says what this version does not understand: %s", self._pool, error)
            return
        # Written twice where an owner did not hear that it was written.
        last = self._last_batches.get(batch.owner_id)
        if last is not None and batch.sequence <= last.sequence:
            return
        at = int(entry_id.partition(b"-")[0]) // 1000
        self._last_batches[batch.owner_id] = _LastBatch(batch.sequence, at)
        self.ring.add(batch.intervals, at=at)
        self.tally.take_batch(batch, at=at)
