"""The books of a pool's requests: every owner's own, those of owners that are gone, and their sum.

They stand in one Redis hash. An owner writes its totals whole, under `owner:<id>`. When it dies, the monitor moves them
to `lost:<id>` and books what it had in flight as `failed:owner_lost`; should it live after all, its next totals replace
that. Much later they are added to the plain counters, and the owner is forgotten. As each step is one atomic call, the
books balance whenever they are read; as totals are written and no differences, a write repeated after a broken
connection counts once, and a Redis that lost everything has the living owners' books again within seconds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import cast

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import OwnerId, PoolName
from serving.telemetry.intervals import OWNER_LOST, OwnerTotals, decode_totals, encode_totals

logger = logging.getLogger(__name__)

_OWNER_PREFIX = b"owner:"
_LOST_PREFIX = b"lost:"

_MISSING_SECONDS = 15.0
"""Longer than an owner's life without a heartbeat, and than it goes without publishing."""
_FOLD_SECONDS = 900.0

# Both act only if the owner has not written again since its books were read.
_CLOSE = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
return 1
"""
_FOLD = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
for i = 3, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
"""


class Books(msgspec.Struct, frozen=True, kw_only=True):
    """A pool's books, added up over all owners: `counts` by name, and the requests in flight as owners know them."""

    counts: dict[str, int]
    num_waiting: int
    num_running: int


def owner_field(owner_id: OwnerId) -> bytes:
    """Where a living owner's totals stand."""
    return _OWNER_PREFIX + owner_id.encode()


def lost_field(owner_id: OwnerId) -> bytes:
    """Where the totals of an owner that is gone stand."""
    return _LOST_PREFIX + owner_id.encode()


async def read_books(redis: Redis, pool: PoolName) -> Books:
    """The pool's books at this moment."""
    fields = await _read_fields(redis, pool)
    counts: Counter[str] = Counter(submitted=0)
    num_waiting = num_running = 0
    for field, value in fields.items():
        if not field.startswith((_OWNER_PREFIX, _LOST_PREFIX)):
            counts[field.decode()] += int(value)
            continue
        totals = decode_totals(value)
        counts.update(totals.counts)
        num_waiting += totals.num_waiting
        num_running += totals.num_running
    return Books(counts=dict(sorted(counts.items())), num_waiting=num_waiting, num_running=num_running)


class LostOwners:
    """Owns since when each owner of a pool has been silent; on the monitor's event loop.

    An owner is gone when for 15 seconds its heartbeat was missing and its books did not change, all that time as seen
    in a Redis that could be reached.
    """

    def __init__(self, redis: Redis, pool: PoolName) -> None:
        self._redis = redis
        self._pool = pool
        self._silent_since: dict[tuple[bytes, bytes], float] = {}

    def forget(self) -> None:
        """Begin anew: Redis could not be reached, so that nobody's silence means anything."""
        self._silent_since = {}  # another one: a `settle` may be going through this one

    async def settle(self, *, now: float) -> None:
        """Close the books of owners that are gone, and forget those closed long ago. `now` in monotonic seconds."""
        fields = await _read_fields(self._redis, self._pool)
        silent = await self._find_silent(fields)
        lost = [entry for entry in fields.items() if entry[0].startswith(_LOST_PREFIX)]
        self._silent_since = {entry: self._silent_since.get(entry, now) for entry in [*silent, *lost]}
        for (field, value), since in self._silent_since.items():
            if field.startswith(_OWNER_PREFIX) and now - since >= _MISSING_SECONDS:
                await self._close(field, value)
            elif field.startswith(_LOST_PREFIX) and now - since >= _FOLD_SECONDS:
                await self._fold(field, value)

    async def _find_silent(self, fields: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        entries = [entry for entry in fields.items() if entry[0].startswith(_OWNER_PREFIX)]
        if not entries:
            return []
        alive = await self._redis.mget([keys.owner_alive(_owner_of(field)) for field, _ in entries])
        return [entry for entry, sign in zip(entries, alive, strict=True) if sign is None]

    async def _close(self, field: bytes, value: bytes) -> None:
        totals = decode_totals(value)
        num_in_flight = totals.num_waiting + totals.num_running
        counts = Counter(totals.counts)
        counts[OWNER_LOST] += num_in_flight
        closed = encode_totals(OwnerTotals(counts={name: count for name, count in counts.items() if count}))
        owner_id = _owner_of(field)
        if await self._call(_CLOSE, field, value, lost_field(owner_id), closed) and num_in_flight:
            logger.warning("owner %s is gone, and %d requests with it", owner_id, num_in_flight)

    async def _fold(self, field: bytes, value: bytes) -> None:
        counts = decode_totals(value).counts
        await self._call(_FOLD, field, value, *(part for item in counts.items() for part in item))

    async def _call(self, script: str, *arguments: bytes | str | int) -> bool:
        done = await self._redis.eval(script, 1, keys.outcomes(self._pool), *arguments)
        return bool(done)


async def _read_fields(redis: Redis, pool: PoolName) -> dict[bytes, bytes]:
    return cast("dict[bytes, bytes]", await redis.hgetall(keys.outcomes(pool)))


def _owner_of(field: bytes) -> OwnerId:
    return OwnerId(field.partition(b":")[2].decode())
