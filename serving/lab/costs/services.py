"""Fitting the cost of a pool's steps to what its engines recorded. Blocking."""

from __future__ import annotations

import logging
from typing import cast

import msgspec
import numpy as np
from redis import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.errors import InvalidValue, Unavailable
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot
from serving.contracts.steps import SCHEMA_VERSION, StepRow, decode_steps
from serving.lab.costs.default import DEFAULT_COST
from serving.lab.costs.envelope import Envelope
from serving.lab.costs.fitting import fit_cost, samples_of
from serving.lab.costs.model import CostModel
from serving.lab.costs.store import keep_cost, newest_fit
from serving.lab.fingerprints import decode_fingerprint, differences, read_fingerprint
from serving.telemetry.request_rows import RequestFilter
from serving.telemetry.request_selectors import iterate_requests
from serving.tuning.living import living_engines
from serving.tuning.selectors import configured_pool_names

logger = logging.getLogger(__name__)

_NUM_REQUESTS = 500
_SHORT_WAITS = 0.1


def fit_pool(pool: str, *, redis: Redis) -> tuple[CostModel, Envelope]:
    """Fit what a pool's engines recorded of their latest steps, and keep it: it is the pool's from now on.

    Raises `InvalidValue`, which says what is missing, and `Unavailable` where Redis is out of reach or no engine lives.
    """
    engines = living_engines(redis, PoolName(pool))
    if not engines:
        raise Unavailable(f"no engine of pool {pool} lives, whose steps could be looked at")
    samples = [sample for engine in engines for sample in samples_of(read_rows(redis, engine.engine_id))]
    cost = fit_cost(samples, request_seconds=_request_seconds(pool))
    envelope = envelope_of(engines)
    fingerprint = msgspec.to_builtins(read_fingerprint(redis, pool))
    keep_cost(pool, cost, envelope, fingerprint=fingerprint)
    return cost, envelope


def refresh_costs(redis: Redis) -> None:
    """Fit every pool of which nothing was fitted yet, or on something else; one that cannot be waits for more steps."""
    for pool in configured_pool_names():
        try:
            if _is_due(pool, redis):
                fit_pool(pool, redis=redis)
        except (InvalidValue, Unavailable) as error:
            logger.info("the steps of %s are not fitted yet: %s", pool, error.message)


def read_rows(redis: Redis, engine_id: EngineId) -> list[StepRow]:
    """The latest steps that an engine has published, in their order. Raises `Unavailable`."""
    try:
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", redis.xrange(keys.steps(engine_id)))
    except (RedisError, OSError) as error:
        raise Unavailable(f"Redis is out of reach: {error}") from None
    batches = [decode_or_none(decode_steps, fields.get(keys.FIELD)) for _, fields in entries]
    return [
        row for batch in batches if batch is not None and batch.schema_version == SCHEMA_VERSION for row in batch.rows
    ]


def envelope_of(engines: list[EngineSnapshot]) -> Envelope:
    """What the engines of a pool have room for: the smallest of them."""
    bounds = [engine.max_step_tokens for engine in engines if engine.max_step_tokens is not None]
    return Envelope(
        num_blocks=min(engine.kv_blocks_total for engine in engines),
        block_size=engines[0].block_size,
        max_model_len=min(engine.max_model_len for engine in engines),
        max_step_tokens=min(bounds) if bounds else None,
        num_engines=len(engines),
    )


def _request_seconds(pool: str) -> float:
    """What a request takes on its way to the engine: the queue times of those that waited for nobody."""
    rows = iterate_requests(RequestFilter(pool=pool), limit=_NUM_REQUESTS)
    waits = [row.queue_seconds for row in rows if row.queue_seconds is not None]
    return float(np.quantile(waits, _SHORT_WAITS)) if waits else DEFAULT_COST.request_seconds


def _is_due(pool: str, redis: Redis) -> bool:
    known = newest_fit(pool)
    return known is None or bool(differences(decode_fingerprint(known), read_fingerprint(redis, pool)))
