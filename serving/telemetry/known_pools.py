"""The pools that the active monitor knew last: what a monitor begins with while the database is away."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import PoolName

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[PoolName]).decode


async def write_known_pools(redis: Redis, pools: Sequence[PoolName]) -> None:
    """Replace what is known. Errors of Redis pass through."""
    await redis.set(keys.known_pools(), _encode(list(pools)))


async def read_known_pools(redis: Redis) -> list[PoolName]:
    """The names; none where none were written, or none that this version understands. Errors of Redis pass through."""
    return decode_or_none(_decode, await redis.get(keys.known_pools())) or []
