"""The stream into which the owners of a pool's requests write what they measured."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import NamedTuple, cast

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import OwnerId, PoolName
from serving.telemetry.intervals import IntervalBatch, decode_batch
from serving.telemetry.ring import KEPT_SECONDS

logger = logging.getLogger(__name__)

_READ_COUNT = 500


class _LastBatch(NamedTuple):
    """The latest batch of an owner, and the second in which it was written."""

    sequence: int
    at: int


class IntervalStream:
    """Owns a reader's place in a pool's stream, and what it has had of each owner; on the monitor's event loop.

    What this version does not understand is passed over, and told in the log unless `is_quiet`.
    """

    def __init__(self, redis: Redis, pool: PoolName, *, is_quiet: bool = False) -> None:
        self._redis = redis
        self._pool = pool
        self._is_quiet = is_quiet
        self._last_id: bytes | None = None
        self._last_batches: dict[OwnerId, _LastBatch] = {}

    async def read(self, *, begins_at: int, now: int) -> AsyncIterator[tuple[IntervalBatch, int]]:
        """Each batch that is new, once, with the second in which it was written; the first time, those from second
        `begins_at` on. Errors of Redis pass through."""
        since = self._last_id or b"%d-0" % (1000 * begins_at)
        while True:
            entries = cast(
                "list[tuple[bytes, dict[bytes, bytes]]]",
                await self._redis.xrange(keys.intervals(self._pool), min=b"(" + since, count=_READ_COUNT),
            )
            for entry_id, fields in entries:
                at = int(entry_id.partition(b"-")[0]) // 1000
                batch = self._decode(fields.get(keys.FIELD, b""))
                if batch is not None and self._is_new(batch, at=at):
                    yield batch, at
            if entries:
                self._last_id = since = entries[-1][0]
            if len(entries) < _READ_COUNT:
                break
        self._forget_silent_owners(now=now)

    def _decode(self, content: bytes) -> IntervalBatch | None:
        try:
            return decode_batch(content)
        except msgspec.MsgspecError as error:
            if not self._is_quiet:
                logger.warning("pool %s: an owner says what this version does not understand: %s", self._pool, error)
            return None

    def _is_new(self, batch: IntervalBatch, *, at: int) -> bool:
        # Written twice where an owner did not hear that it was written.
        last = self._last_batches.get(batch.owner_id)
        if last is not None and batch.sequence <= last.sequence:
            return False
        self._last_batches[batch.owner_id] = _LastBatch(batch.sequence, at)
        return True

    def _forget_silent_owners(self, *, now: int) -> None:
        """Those that have said nothing for as long as anything is kept: they are gone, and every process is a new
        owner."""
        oldest = now - KEPT_SECONDS
        self._last_batches = {owner: last for owner, last in self._last_batches.items() if last.at >= oldest}
