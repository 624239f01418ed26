"""Which of several monitors works: the one that holds a lease."""

from __future__ import annotations

from redis.asyncio import Redis

_RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 0
"""


class Lease:
    """Owns this process's claim to a key with a short life; on one event loop. Errors of Redis pass through."""

    def __init__(self, redis: Redis, key: str, *, holder: str, life_seconds: float) -> None:
        self._redis = redis
        self._key = key
        self._holder = holder
        self._life_ms = int(life_seconds * 1000)

    async def hold(self) -> bool:
        """Renew the lease, or take it where nobody holds it. False: another holds it."""
        if await self._redis.eval(_RENEW, 1, self._key, self._holder, self._life_ms):
            return True
        return bool(await self._redis.set(self._key, self._holder, px=self._life_ms, nx=True))

    async def release(self) -> None:
        """Give the lease up at once, if it is held."""
        await self._redis.eval(_RELEASE, 1, self._key, self._holder)
