"""The gateway's side of the transport: Redis streams, one inbox a pool, one reply stream an owner."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import Any, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from serving.contracts import keys
from serving.contracts.ids import EngineId, OwnerId, PoolName
from serving.contracts.messages import SCHEMA_VERSION, Abort, Reply, Submit, decode_reply, encode

logger = logging.getLogger(__name__)

OWNER_LIFE_SECONDS = 5.0
"""An owner that has not beaten for so long is dead: engines abort what it owned."""

_READ_BLOCK_MS = 1000
_READ_COUNT = 512


class EngineLink:
    """Owns this owner's reply stream and its place in it; used on the gateway's event loop only.

    `reading_redis` is for reading and beating alone, so that these never wait for a connection behind many requests.

    Errors of Redis pass through: the caller knows what they mean for a request.
    """

    def __init__(self, redis: Redis, *, reading_redis: Redis, owner_id: OwnerId) -> None:
        self._redis = redis
        self._reading_redis = reading_redis
        self._owner_id = owner_id
        self._last_id: bytes = b"0-0"

    async def submit(self, pool: PoolName, submit: Submit) -> bytes:
        """Put one sequence into the pool's inbox; returns the entry's id."""
        return cast("bytes", await self._redis.xadd(keys.inbox(pool), {keys.FIELD: encode(submit)}))

    async def read_up_to(self, pool: PoolName) -> bytes | None:
        """The id of the inbox's last entry that an engine has read; None where no engine ever has."""
        try:
            groups: Any = await self._redis.xinfo_groups(keys.inbox(pool))
        except ResponseError:
            return None
        return next((group["last-delivered-id"] for group in groups), None)

    async def call_off(
        self, entries: Iterable[tuple[PoolName, bytes]], aborts: Iterable[tuple[EngineId, Abort]]
    ) -> None:
        """Delete entries from inboxes (those already read are not there any more), and send aborts to engines."""
        pipe = self._redis.pipeline(transaction=False)
        for pool, entry_id in entries:
            pipe.xdel(keys.inbox(pool), entry_id)
        for engine_id, abort in aborts:
            stream = keys.control(engine_id)
            pipe.xadd(stream, {keys.FIELD: encode(abort)}, maxlen=keys.MAX_CONTROL_ENTRIES, approximate=True)
            # An engine that left meanwhile reads no more: its stream goes by itself.
            pipe.expire(stream, keys.CONTROL_LIFE_SECONDS)
        if len(pipe):
            await pipe.execute()

    async def beat(self) -> bool:
        """Say that this owner lives. False where Redis had forgotten it: then it has lost other things as well."""
        previous = await self._reading_redis.set(
            keys.owner_alive(self._owner_id), b"1", px=int(OWNER_LIFE_SECONDS * 1000), get=True
        )
        return previous is not None

    async def leave(self) -> None:
        """Take this owner's keys away."""
        await self._redis.delete(keys.owner_alive(self._owner_id), keys.replies(self._owner_id))

    def read_again(self) -> None:
        """Read the reply stream from its beginning: Redis has lost data, and its ids may begin anew."""
        self._last_id = b"0-0"

    async def read_replies(self) -> list[Reply]:
        """The next replies in order, as soon as there are any; empty after about a second without."""
        stream = keys.replies(self._owner_id)
        answer: Any = await self._reading_redis.xread({stream: self._last_id}, count=_READ_COUNT, block=_READ_BLOCK_MS)
        if not answer:
            return []
        # A list of pairs or a mapping, as the version of the protocol has it.
        entries = answer[0][1] if isinstance(answer, list) else next(iter(answer.values()))[0]
        self._last_id = entries[-1][0]
        with contextlib.suppress(RedisError):  # what stays is trimmed by the next read
            await self._reading_redis.xtrim(stream, minid=self._last_id, approximate=False)
        return [reply for _, fields in entries if (reply := _decode(fields[keys.FIELD])) is not None]


def _decode(message: bytes) -> Reply | None:
    try:
        reply = decode_reply(message)
    except msgspec.MsgspecError as error:
        logger.error("a reply cannot be read and was dropped: %s", error)
        return None
    if reply.schema_version != SCHEMA_VERSION:
        logger.error("a reply of version %d was dropped: this process reads %d", reply.schema_version, SCHEMA_VERSION)
        return None
    return reply


def is_after(entry_id: bytes, other: bytes | None) -> bool:
    """Whether a stream's entry comes after another one; every entry comes after none."""
    return other is None or _order(entry_id) > _order(other)


def _order(entry_id: bytes) -> tuple[int, ...]:
    return tuple(int(part) for part in entry_id.split(b"-"))
