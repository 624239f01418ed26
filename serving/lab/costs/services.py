"""Fitting the cost of a pool's steps to what its engines recorded. Blocking."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import msgspec
from django.db import transaction
from redis import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.errors import InvalidValue, Unavailable
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot
from serving.contracts.steps import SCHEMA_VERSION, StepRow, decode_steps
from serving.lab.costs.envelope import Envelope
from serving.lab.costs.fitting import LEAST_STEPS, Sample, fit_cost, samples_of, work_of_sample
from serving.lab.costs.model import CostModel, Fit
from serving.lab.costs.stock import Stock, add_samples, pack_stock, unpack_stock
from serving.lab.costs.store import keep_cost, latest_cost, newest_fit
from serving.lab.costs.ways import read_way
from serving.lab.fingerprints import decode_fingerprint, differences, read_fingerprint
from serving.lab.models import StepStock
from serving.tuning.living import living_engines
from serving.tuning.selectors import configured_pool_names

logger = logging.getLogger(__name__)

_MOST_OFF = 0.1
"""By which part of all their time steps may differ from what was fitted, before it is fitted anew."""


def fit_pool(pool: str, *, redis: Redis) -> tuple[CostModel, Envelope]:
    """Fit what a pool's engines recorded of their steps, and keep it: it is the pool's from now on. Beside the latest
    steps it goes by those that are kept of each kind, so that what was seen long ago still counts.

    Raises `InvalidValue`, which says what is missing, and `Unavailable` where Redis is out of reach or no engine lives.
    """
    engines = living_engines(redis, PoolName(pool))
    if not engines:
        raise Unavailable(f"no engine of pool {pool} lives, whose steps could be looked at")
    stock, _ = take_in_steps(pool, engines, redis=redis)
    way = read_way(pool)
    cost = fit_cost(_with_latest(stock, engines, redis=redis), request_seconds=way.seconds)
    assert cost.fit is not None, "what was just fitted says how well"
    fit = msgspec.structs.replace(cost.fit, num_kinds=stock.num_kinds, num_ways=way.num_requests)
    cost = msgspec.structs.replace(cost, fit=fit)
    envelope = envelope_of(engines)
    fingerprint = msgspec.to_builtins(read_fingerprint(redis, pool))
    keep_cost(pool, cost, envelope, fingerprint=fingerprint)
    return cost, envelope


def refresh_costs(redis: Redis) -> None:
    """Take in the latest steps of every pool, and fit those of which nothing was fitted yet, or on something else, or
    before steps of further kinds were seen, or that steps no longer take as long as fitted; one that cannot be fitted
    waits for more steps."""
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


def take_in_steps(pool: str, engines: Sequence[EngineSnapshot], *, redis: Redis) -> tuple[Stock, list[Sample]]:
    """Add to the pool's stock what its engines published since it was looked at last; the stock now, and what is new in
    it. On other engines than before it begins anew. Raises `Unavailable`."""
    fingerprint = read_fingerprint(redis, pool)
    rows = {engine.engine_id: read_rows(redis, engine.engine_id) for engine in engines}
    with transaction.atomic():
        StepStock.objects.get_or_create(pool=pool)
        kept = StepStock.objects.select_for_update().get(pool=pool)
        before, read_up_to = Stock(), {}
        if kept.content is not None and not differences(decode_fingerprint(kept.fingerprint), fingerprint):
            before, read_up_to = unpack_stock(bytes(kept.content)), kept.read_up_to
        new = [
            sample
            for engine_id, of_engine in rows.items()
            for sample in samples_of([row for row in of_engine if row.step > read_up_to.get(engine_id, -1)])
        ]
        stock = add_samples(before, new)
        kept.content, kept.fingerprint = pack_stock(stock), msgspec.to_builtins(fingerprint)
        kept.read_up_to = {engine_id: of_engine[-1].step for engine_id, of_engine in rows.items() if of_engine}
        kept.save()
    return stock, new


def _with_latest(stock: Stock, engines: Sequence[EngineSnapshot], *, redis: Redis) -> list[Sample]:
    """The latest steps as often as they came, so that what an engine mostly does counts most, and what else is kept."""
    latest = [sample for engine in engines for sample in samples_of(read_rows(redis, engine.engine_id))]
    known = set(latest)
    return [*latest, *(sample for sample in stock.samples if sample not in known)]


def _is_due(pool: str, redis: Redis) -> bool:
    engines = living_engines(redis, PoolName(pool))
    if not engines:
        return False
    stock, new = take_in_steps(pool, engines, redis=redis)
    known = newest_fit(pool)
    if known is None or differences(decode_fingerprint(known), read_fingerprint(redis, pool)):
        return True
    cost, _ = latest_cost(pool)
    return cost.fit is None or stock.num_kinds > cost.fit.num_kinds or _is_outdated(cost, cost.fit, new)


def _is_outdated(cost: CostModel, fit: Fit, new: Sequence[Sample]) -> bool:
    """Whether steps take so much longer or shorter than fitted that it is no chance."""
    if len(new) < LEAST_STEPS:
        return False
    taken = sum(sample.seconds for sample in new)
    predicted = sum(cost.seconds(work_of_sample(sample)) for sample in new)
    return abs(predicted / taken - 1) > max(_MOST_OFF, 2 * abs(fit.total_error))
