"""All that a web process tells Prometheus at one moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.metrics_core import Metric
from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.contracts.ids import PoolName
from serving.telemetry.pool_metrics import pool_metrics, up_gauges
from serving.telemetry.pool_states import Surroundings, read_surroundings
from serving.telemetry.request_metrics import RequestMetrics
from serving.telemetry.vllm_names import pools_under_vllm_names, requests_under_vllm_names

logger = logging.getLogger(__name__)

_REDIS_SECONDS = 2.0
"""A Redis that is silent for longer is away: the scrape's own patience is ten seconds."""


class Exposition:
    """Owns nothing: puts together what this process counted and what Redis knows; on the gateway's event loop.

    `models` are the models' names by pool.
    """

    def __init__(self, redis: Redis, *, requests: RequestMetrics, models: Mapping[PoolName, str]) -> None:
        self._redis = redis
        self._requests = requests
        self._models = models

    async def collect(self, *, vllm_names: bool) -> list[Metric]:
        """Every metric, with `vllm_names` once more under vLLM's where it has one.

        Without Redis, what this process counted itself, and `footplate_redis_up` 0.
        """
        surroundings = await self._look_around()
        # In one piece, so that the books balance. The rest is made of values, beside the loop.
        requests = self._requests.collect()
        return await asyncio.to_thread(self._put_together, requests, surroundings, vllm_names=vllm_names)

    def _put_together(
        self, requests: Sequence[Metric], surroundings: Surroundings | None, *, vllm_names: bool
    ) -> list[Metric]:
        pools = [] if surroundings is None else surroundings.pools
        families = [*requests, *up_gauges(surroundings), *pool_metrics(pools, self._models)]
        if vllm_names:
            families += [*requests_under_vllm_names(requests), *pools_under_vllm_names(pools, self._models)]
        return list(_without_creation_times(families))

    async def _look_around(self) -> Surroundings | None:
        try:
            async with asyncio.timeout(_REDIS_SECONDS):
                return await read_surroundings(self._redis, list(self._models))
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("metrics are told without the pools: Redis is out of reach (%s)", error)
            return None


def _without_creation_times(families: Iterable[Metric]) -> Iterable[Metric]:
    """The library adds to each counter when it was made: as many series again, and Prometheus sees resets itself."""
    for family in families:
        kept = [sample for sample in family.samples if sample.name != f"{family.name}_created"]
        told = Metric(family.name, family.documentation, family.type)
        told.samples = kept
        yield told
