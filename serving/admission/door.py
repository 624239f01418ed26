"""The waiting room's bounds: permits to wait, leased in Redis, so that all processes share one count.

Each permit weighs its sequences and the prompt tokens that they wait with. A lease ends by itself when nobody renews
it, so that the permits of a process that died come back. All times are Redis's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import uuid
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.admission import door_scripts as scripts
from serving.contracts import keys
from serving.contracts.errors import QueueFull, Unavailable
from serving.contracts.ids import PoolName
from serving.contracts.tunables import Tunables

LEASE_SECONDS = 15.0
"""How long a permit lives without being renewed."""

_FALLBACK_RETRY_SECONDS = 5
_LONGEST_RETRY_SECONDS = 60


@dataclasses.dataclass(frozen=True, slots=True)
class Weight:
    """What a request takes up in the waiting room: sequences, and prompt tokens over all of them."""

    sequences: int
    tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class Permit:
    """Leave to wait in a pool's waiting room."""

    permit_id: str
    pool: PoolName
    weight: Weight


class Door:
    """Owns no state of its own: the permits live in Redis. Used from the event loop of `redis`.

    `enter` is all or nothing. What alone exceeds a bound is refused like what exceeds it together with others: the
    bound is what the operator allowed to wait, and no request is so special that it may wait beyond it.
    """

    def __init__(self, redis: Redis, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self._enter = redis.register_script(scripts.ENTER)
        self._settle = redis.register_script(scripts.SETTLE)
        self._renew = redis.register_script(scripts.RENEW)
        self._release = redis.register_script(scripts.RELEASE)
        self._lease_ms = round(lease_seconds * 1000)

    async def enter(self, pool: PoolName, weights: Sequence[Weight], *, tunables: Tunables) -> tuple[Permit, ...]:
        """One permit for each of `weights`, or none at all.

        Raises `QueueFull` where they exceed `max_queue_requests` or `max_queue_tokens` together with all who wait, and
        `Unavailable` where Redis is out of reach.
        """
        permits = tuple(Permit(uuid.uuid4().hex, pool, weight) for weight in weights)
        arguments: list[Any] = [self._lease_ms, tunables.max_queue_requests, tunables.max_queue_tokens]
        for permit in permits:
            arguments += [permit.permit_id, permit.weight.sequences, permit.weight.tokens]
        try:
            await self._ask(self._enter, pool, arguments, tunables=tunables)
        except asyncio.CancelledError:
            # Redis may have taken them already; whoever was to hold them is gone.
            await self._give_back(permits)
            raise
        return permits

    async def settle(self, permit: Permit, tokens: int, *, tunables: Tunables) -> Permit:
        """Put the prompt's true number of tokens in place of what was estimated at `enter`.

        Raises `QueueFull` where the difference does not fit: the permit then still holds what it held before, and the
        caller releases it. A permit whose lease ended meanwhile is not brought back.
        """
        arguments = [permit.permit_id, permit.weight.sequences, tokens, tunables.max_queue_tokens]
        await self._ask(self._settle, permit.pool, arguments, tunables=tunables)
        return dataclasses.replace(permit, weight=Weight(permit.weight.sequences, tokens))

    async def renew(self, permits: Sequence[Permit]) -> None:
        """Extend the leases of permits that are still held; also takes away those whose lease ended."""
        for pool in {permit.pool for permit in permits}:
            ids = [permit.permit_id for permit in permits if permit.pool == pool]
            await self._renew(keys=_keys(pool), args=[self._lease_ms, *ids])

    async def release(self, permit: Permit) -> None:
        """Give a permit back. Idempotent."""
        await self._release(keys=_keys(permit.pool), args=[permit.permit_id])

    async def _give_back(self, permits: Sequence[Permit]) -> None:
        with contextlib.suppress(RedisError, OSError):
            for permit in permits:
                await self.release(permit)

    async def _ask(self, script: Any, pool: PoolName, arguments: list[Any], *, tunables: Tunables) -> None:
        try:
            answer = await script(keys=_keys(pool), args=arguments)
        except (RedisError, OSError) as error:
            raise Unavailable("the queue cannot be reached") from error
        _honour_cancellation()
        admitted, sequences, tokens, excess, drained_per_1000_seconds = (int(part) for part in answer)
        if not admitted:
            raise QueueFull(
                f"the queue is full: {sequences} of {tunables.max_queue_requests} sequences and "
                f"{tokens} of {tunables.max_queue_tokens} prompt tokens wait already",
                retry_after_seconds=estimate_retry_seconds(excess, drained_per_second=drained_per_1000_seconds / 1000),
            )


def estimate_retry_seconds(excess: int, *, drained_per_second: float) -> int:
    """Seconds until `excess` has left a waiting room that drains at that rate: from 1 to 60, and 5 where nothing is
    known of the rate."""
    if drained_per_second <= 0:
        return _FALLBACK_RETRY_SECONDS
    return max(1, math.ceil(min(_LONGEST_RETRY_SECONDS, excess / drained_per_second)))


def _honour_cancellation() -> None:
    """Raise the cancellation of this task that the Redis client has swallowed.

    The client sends with `asyncio.wait_for`, which in Python 3.11 returns a result where result and cancellation come
    together.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _keys(pool: PoolName) -> list[str]:
    return [keys.permits(pool), keys.permit_weights(pool)]
