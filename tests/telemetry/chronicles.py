"""What waits to be stored."""

from __future__ import annotations

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.telemetry.events import EventEntry
from serving.telemetry.rollups import StretchEntry

decode_entry = msgspec.msgpack.Decoder(StretchEntry | EventEntry).decode


async def read_chronicle(redis: Redis) -> list[StretchEntry | EventEntry]:
    """All entries, the oldest first."""
    return [decode_entry(fields[keys.FIELD]) for _, fields in await redis.xrange(keys.chronicle())]
