"""The gateway's side of the transport: Redis streams, one inbox a pool, one reply stream an owner."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId, OwnerId, PoolName
from serving.contracts.messages import Abort, Reply, Submit, decode_reply, encode

OWNER_LIFE_SECONDS = 5.0
"""An owner that has not beaten for so long is dead: engines abort what it owned."""

_READ_BLOCK_MS = 1000
_READ_COUNT = 512


class EngineLink:
    """Owns this owner's reply stream and its place in it; used on the gateway's event loop only.

    Errors of Redis pass through: the caller knows what they mean for a request.
    """

    def __init__(self, redis: Redis, *, owner_id: OwnerId) -> None:
        self._redis = redis
        self._owner_id = owner_id
        self._last_id: bytes = b"0-0"

    async def submit(self, pool: PoolName, submit: Submit) -> bytes:
        """Put one sequence into the pool's inbox; returns the entry's id."""
        return cast("bytes", await self._redis.xadd(keys.inbox(pool), {keys.FIELD: encode(submit)}))

    async def is_unread(self, pool: PoolName, entry_id: bytes) -> bool:
        """Whether the entry still lies in the inbox."""
        return bool(await self._redis.xrange(keys.inbox(pool), entry_id, entry_id, count=1))

    async def withdraw(self, pool: PoolName, entry_ids: Iterable[bytes]) -> None:
        """Delete entries from the inbox; those already read are not there any more."""
        ids = list(entry_ids)
        if ids:
            await self._redis.xdel(keys.inbox(pool), *ids)

    async def abort(self, engine_ids: Iterable[EngineId], abort: Abort) -> None:
        """Tell engines to end a request or one choice of it."""
        message = encode(abort)
        pipe = self._redis.pipeline(transaction=False)
        for engine_id in engine_ids:
            pipe.xadd(keys.control(engine_id), {keys.FIELD: message}, maxlen=100_000, approximate=True)
        await pipe.execute()

    async def beat(self) -> bool:
        """Say that this owner lives. False where Redis had forgotten it: then it has lost other things as well."""
        previous = await self._redis.set(
            keys.owner_alive(self._owner_id), b"1", px=int(OWNER_LIFE_SECONDS * 1000), get=True
        )
        return previous is not None

    async def leave(self) -> None:
        """Take this owner's keys away."""
        await self._redis.delete(keys.owner_alive(self._owner_id), keys.replies(self._owner_id))

    async def read_replies(self) -> list[Reply]:
        """The next replies in order, as soon as there are any; empty after about a second without."""
        stream = keys.replies(self._owner_id)
        answer: Any = await self._redis.xread({stream: self._last_id}, count=_READ_COUNT, block=_READ_BLOCK_MS)
        if not answer:
            return []
        # A list of pairs or a mapping, as the version of the protocol has it.
        entries = answer[0][1] if isinstance(answer, list) else next(iter(answer.values()))[0]
        self._last_id = entries[-1][0]
        await self._redis.xtrim(stream, minid=self._last_id, approximate=False)
        return [decode_reply(fields[keys.FIELD]) for _, fields in entries]
