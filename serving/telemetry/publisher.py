"""From an owner's recorder to Redis."""

from __future__ import annotations

from redis.asyncio import Redis

from serving.contracts import keys
from serving.telemetry.books import lost_field, owner_field
from serving.telemetry.intervals import IntervalBatch, encode_batch, encode_totals

_MAX_ENTRIES = 20_000


async def publish(redis: Redis, batch: IntervalBatch) -> None:
    """Write a batch's measurements and the owner's books in one transaction.

    Safe to repeat: the monitor takes each batch once, and the books are totals. Of a batch that is never written, the
    intervals are lost and the counts are not. Errors of Redis pass through.
    """
    pipe = redis.pipeline(transaction=True)
    pipe.xadd(keys.intervals(batch.pool), {keys.FIELD: encode_batch(batch)}, maxlen=_MAX_ENTRIES, approximate=True)
    pipe.hset(keys.outcomes(batch.pool), owner_field(batch.owner_id), encode_totals(batch.totals))
    pipe.hdel(keys.outcomes(batch.pool), lost_field(batch.owner_id))
    await pipe.execute()
