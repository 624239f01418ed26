"""What the gateway tells of its requests, taken down and published."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts.ids import OwnerId, PoolName
from serving.telemetry.intervals import IntervalRecorder
from serving.telemetry.publisher import publish
from serving.telemetry.rejections import Rejections

logger = logging.getLogger(__name__)

_PUBLISH_SECONDS = 0.5


class RequestMeter:
    """Owns one recorder a pool, what was refused before any pool had it, and the task that publishes both twice a
    second; on the gateway's event loop."""

    def __init__(self, redis: Redis, *, owner_id: OwnerId, pools: Iterable[PoolName]) -> None:
        self._redis = redis
        self._recorders = {pool: IntervalRecorder(owner_id=owner_id, pool=pool) for pool in pools}
        self._rejections = Rejections()
        self._publishing: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Begin to publish."""
        self._publishing = asyncio.create_task(self._publish_until_stopped())

    async def stop(self) -> None:
        """Publish what is left, and no more after that."""
        self._stopping.set()
        if self._publishing is not None:
            await self._publishing
        with contextlib.suppress(RedisError, OSError):
            await self._publish_once()

    def rejected(self, code: str) -> None:
        """A request was refused with one of the API's codes before any pool had it."""
        self._rejections.count(code)

    def submitted(self, pool: PoolName) -> None:
        """A request was let in and now waits."""
        self._recorders[pool].count_submitted()

    def scheduled(self, pool: PoolName, *, queue_seconds: float) -> None:
        """A request was first scheduled."""
        self._recorders[pool].count_scheduled()
        self._recorders[pool].record_queue(queue_seconds)

    def first_token(self, pool: PoolName, *, ttft_seconds: float) -> None:
        """A request's first token is on its way."""
        self._recorders[pool].record_ttft(ttft_seconds)

    def token_gap(self, pool: PoolName, *, itl_seconds: float) -> None:
        """A later token is on its way."""
        self._recorders[pool].record_itl(itl_seconds)

    def ended(
        self,
        pool: PoolName,
        *,
        outcome: str,
        was_scheduled: bool,
        e2e_seconds: float,
        prompt_tokens: int,
        completion_tokens: int,
    ) -> None:
        """A request ended; its whole time counts where it came to its own end."""
        recorder = self._recorders[pool]
        recorder.count_ended(outcome, was_running=was_scheduled)
        recorder.count_tokens(prompt=prompt_tokens, completion=completion_tokens)
        if outcome.startswith("finished:"):
            recorder.record_e2e(e2e_seconds)

    async def _publish_until_stopped(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _PUBLISH_SECONDS)
            try:
                await self._publish_once()
            except (RedisError, OSError):
                # The books are totals: the next publication makes up for this one. Intervals of the time are lost.
                logger.warning("measurements cannot be published: Redis is out of reach")

    async def _publish_once(self) -> None:
        for recorder in self._recorders.values():
            batch = recorder.flush()
            if batch is not None:
                await publish(self._redis, batch)
        await self._rejections.publish(self._redis)
