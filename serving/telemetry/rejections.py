"""Requests that were refused before any pool had them: a wrong key, a body that cannot be read, a path that is none.

They are in no pool's books, which begin at the door. All processes add to one hash in Redis, twice a second: a refusal
costs no call of its own. What is told again after a broken connection may count twice.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

from redis.asyncio import Redis

from serving.contracts import keys


class Rejections:
    """Owns how many were refused, by code, and are not told to Redis yet; on one event loop."""

    def __init__(self) -> None:
        self._untold: Counter[str] = Counter()

    def count(self, code: str) -> None:
        """One was refused. `code` is one of the API's own, of which there are few, and no word of a client's."""
        self._untold[code] += 1

    async def publish(self, redis: Redis) -> None:
        """Tell Redis. Its errors pass through; what it was not told is kept."""
        if not self._untold:
            return
        taken, self._untold = self._untold, Counter()
        pipe = redis.pipeline(transaction=True)
        for code, count in taken.items():
            pipe.hincrby(keys.rejections(), code, count)
        try:
            await pipe.execute()
        except BaseException:
            self._untold.update(taken)
            raise


async def read_rejections(redis: Redis) -> dict[str, int]:
    """By code, over all processes, since Redis began to count. Errors of Redis pass through."""
    stored = cast("dict[bytes, bytes]", await redis.hgetall(keys.rejections()))
    return {code.decode(): int(count) for code, count in sorted(stored.items())}
