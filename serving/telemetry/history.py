"""The points of the last quarter of an hour, so that a console has its charts full as it opens."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.telemetry.frames import Point

KEPT_SECONDS = 900
_LIFE_SECONDS = 3600
"""The history of a pool that nobody monitors any more goes."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Point).decode


def add_point(pipe: Any, pool: PoolName, point: Point) -> None:
    """Queue the writing of a pool's next point, one a second, in a Redis pipeline."""
    pipe.xadd(keys.history(pool), {keys.FIELD: _encode(point)}, maxlen=KEPT_SECONDS, approximate=False)
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
    entries = cast(
        "list[tuple[bytes, dict[bytes, bytes]]]",
        await redis.xrange(keys.history(pool), min=first_id),
    )
    rows = [fields.get(keys.FIELD, b"") for _, fields in entries]
    return [row for row in rows if _is_newer(row, than=earliest)]


def _is_newer(row: bytes, *, than: float) -> bool:
    try:
        return _decode(row).unix_seconds > than
    except msgspec.MsgspecError:
        return False
