"""The points of the last quarter of an hour, so that a console has its charts full as it opens."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import PoolName
from serving.telemetry.frames import Point

KEPT_SECONDS = 900
_LIFE_SECONDS = 3600
"""The history of a pool that nobody monitors any more goes."""

_WRITTEN_SECONDS = 2
"""A point is written so long after its time at the most, but for one that is late anyway."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Point).decode

_LAYOUT_FIELD = b"l"
_LAYOUT = hashlib.sha256(msgspec.json.encode(msgspec.json.schema(Point))).hexdigest()[:8].encode()
"""Stands beside every point that is written in this version's layout: such a one needs no decoding to be understood."""

_Fields = dict[bytes, bytes]


def add_point(pipe: Any, pool: PoolName, point: Point) -> None:
    """Queue the writing of a pool's next point, one a second, in a Redis pipeline."""
    fields = {keys.FIELD: _encode(point), _LAYOUT_FIELD: _LAYOUT}
    pipe.xadd(keys.history(pool), fields, maxlen=KEPT_SECONDS, approximate=False)
    pipe.expire(keys.history(pool), _LIFE_SECONDS)


async def read_history(redis: Redis, pool: PoolName, *, since: float | None) -> list[bytes]:
    """The points of the last 15 minutes, oldest first, each as the JSON of a `Point`.

    With `since` (Redis's time, seconds), only those that are newer. What another version wrote and this one does not
    understand is left out. Errors of Redis pass through.
    """
    seconds, _ = await redis.time()
    earliest = max(float(seconds) - KEPT_SECONDS, since or 0.0)
    # An entry's id is never older than its point; a `since` from the future fits in no id.
    first_id = b"%d-0" % int(min(earliest, float(seconds)) * 1000)
    entries = cast("list[tuple[bytes, _Fields]]", await redis.xrange(keys.history(pool), min=first_id))
    # Points are written in the order of their time: behind the first that is newer, all are.
    newer = itertools.dropwhile(lambda fields: not _is_newer(fields, than=earliest), (fields for _, fields in entries))
    return [fields[keys.FIELD] for fields in newer if _is_understood(fields)]


async def read_points(redis: Redis, pool: PoolName, *, since: int, until: int) -> list[Point]:
    """The points of the seconds `since … until - 1`, oldest first. Errors of Redis pass through."""
    first_id, last_id = b"%d-0" % (since * 1000), b"%d-0" % ((until + _WRITTEN_SECONDS) * 1000)
    entries = cast("list[tuple[bytes, _Fields]]", await redis.xrange(keys.history(pool), min=first_id, max=last_id))
    points = (decode_or_none(_decode, fields.get(keys.FIELD)) for _, fields in entries)
    return [point for point in points if point is not None and since <= point.unix_seconds < until]


def _is_understood(fields: _Fields) -> bool:
    if fields.get(_LAYOUT_FIELD) == _LAYOUT:
        return keys.FIELD in fields
    return _time_of(fields) is not None


def _is_newer(fields: _Fields, *, than: float) -> bool:
    unix_seconds = _time_of(fields)
    return unix_seconds is not None and unix_seconds > than


def _time_of(fields: _Fields) -> float | None:
    point = decode_or_none(_decode, fields.get(keys.FIELD))
    return None if point is None else point.unix_seconds
