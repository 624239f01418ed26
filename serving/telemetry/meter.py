"""What the gateway tells of its requests, taken down and published."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping

from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts.ids import EngineId, OwnerId, PoolName
from serving.gateway.observer import Ended
from serving.telemetry.intervals import IntervalRecorder
from serving.telemetry.publisher import publish
from serving.telemetry.rejections import Rejections
from serving.telemetry.request_log import RequestLog

logger = logging.getLogger(__name__)

_PUBLISH_SECONDS = 0.5


class RequestMeter:
    """Owns one recorder a pool, what was refused before any pool had it, the requests that ended and are to be logged,
    and the task that publishes it all twice a second; on the gateway's event loop. `models` are the models' names."""

    def __init__(
        self,
        redis: Redis,
        *,
        owner_id: OwnerId,
        pools: Iterable[PoolName],
        models: Mapping[PoolName, str] | None = None,
    ) -> None:
        self._redis = redis
        self._recorders = {pool: IntervalRecorder(owner_id=owner_id, pool=pool) for pool in pools}
        self._rejections = Rejections()
        self._log = RequestLog(models=models or {})
        self._publishing: asyncio.Task[None] | None = None
        self._is_heard = True
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

    def scheduled(self, pool: PoolName, *, queue_seconds: float, engine_id: EngineId | None = None) -> None:
        """A request was first scheduled."""
        self._recorders[pool].count_scheduled()
        self._recorders[pool].record_queue(queue_seconds, engine_id=engine_id)

    def first_token(self, pool: PoolName, *, ttft_seconds: float, engine_id: EngineId | None = None) -> None:
        """A request's first token is on its way."""
        self._recorders[pool].record_ttft(ttft_seconds, engine_id=engine_id)

    def token_gap(self, pool: PoolName, *, itl_seconds: float, engine_id: EngineId | None = None) -> None:
        """A later token is on its way."""
        self._recorders[pool].record_itl(itl_seconds, engine_id=engine_id)

    def ended(self, ended: Ended) -> None:
        """A request ended; its whole time counts where it came to its own end."""
        recorder = self._recorders[ended.pool]
        recorder.count_ended(ended.outcome, was_running=ended.was_scheduled, engine_id=ended.engine_id)
        recorder.count_tokens(prompt=ended.prompt_tokens, completion=ended.completion_tokens)
        if ended.has_finished:
            recorder.record_e2e(ended.e2e_seconds, engine_id=ended.sole_engine_id)
            if ended.meets_ttft and ended.meets_itl:
                recorder.count_slo_met()
        self._log.note(ended)

    async def _publish_until_stopped(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _PUBLISH_SECONDS)
            try:
                await self._publish_once()
                self._is_heard = True
            except (RedisError, OSError):
                # The books are totals: the next publication makes up for this one. Intervals of the time are lost.
                if self._is_heard:
                    logger.warning("measurements cannot be published: Redis is out of reach")
                self._is_heard = False

    async def _publish_once(self) -> None:
        for recorder in self._recorders.values():
            batch = recorder.flush()
            if batch is not None:
                await publish(self._redis, batch)
        await self._rejections.publish(self._redis)
        await self._log.publish(self._redis)
