"""What the server says of a run that was played: its log, what its pool still holds, its engines' last steps.

Blocking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, cast

import msgspec
from django.utils import timezone
from redis import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import PoolName
from serving.contracts.steps import KEPT_STEPS, SCHEMA_VERSION, StepBatch, decode_steps
from serving.lab.experiments.evidence import AtRest, Evidence
from serving.lab.experiments.others import read_others
from serving.lab.models import Run
from serving.lab.runs.own_keys import own_prefixes
from serving.lab.runs.selectors import outcomes_of
from serving.telemetry.request_selectors import count_by_outcome
from serving.tuning.living import living_engines

PATIENCE_SECONDS: Final = 20.0
"""How long a pool may take to come to rest, and the log to hold the last requests: it is written every two seconds."""
_LOOK_SECONDS: Final = 0.5


def gather_evidence(
    run: Run,
    *,
    redis: Redis,
    pause: Callable[[float], None],
    now: Callable[[], float] = time.monotonic,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Evidence:
    """What is known of a run that has ended, once its pool has come to rest and the log has it whole, or patience is
    over. `pause` waits; errors of Redis pass through as `Unavailable`."""
    outcomes = tuple(outcomes_of(run.pk))
    steps = tuple(_steps_of(run, redis))
    until = now() + patience_seconds
    while True:
        rest, logged = _look_at_rest(run, redis), _count_logged(run)
        if (rest.is_empty and sum(logged.values()) >= len(outcomes)) or now() >= until:
            return Evidence(outcomes=outcomes, logged=logged, rest=rest, steps=steps)
        pause(_LOOK_SECONDS)


def _look_at_rest(run: Run, redis: Redis) -> AtRest:
    engines = living_engines(redis, PoolName(run.pool))
    weights = cast(
        "list[bytes | None]", redis.hmget(keys.permit_weights(PoolName(run.pool)), ["total:requests", "total:tokens"])
    )
    requests, tokens = (int(each or 0) for each in weights)
    return AtRest(
        num_running=sum(engine.num_running for engine in engines),
        num_waiting=sum(engine.num_waiting for engine in engines),
        permits_requests=requests,
        permits_tokens=tokens,
        has_others=_has_others(run),
    )


def _has_others(run: Run) -> bool:
    return bool(read_others(run.pool, own_key_prefixes=own_prefixes(run.pk), now=timezone.now()))


def _count_logged(run: Run) -> dict[str, int]:
    assert run.started_at is not None, "a run that has ended began"
    return count_by_outcome(own_prefixes(run.pk), since=run.started_at)


def _steps_of(run: Run, redis: Redis) -> Iterator[StepBatch]:
    """The steps of the pool's engines since the run began, as far as they are kept: one engine after the other, the
    oldest first."""
    assert run.started_at is not None, "a run that has ended began"
    since = run.started_at.timestamp()
    for engine in living_engines(redis, PoolName(run.pool)):
        entries = cast(
            "list[tuple[bytes, dict[bytes, bytes]]]",
            redis.xrevrange(keys.steps(engine.engine_id), count=KEPT_STEPS),
        )
        for _, fields in reversed(entries):
            batch = decode_or_none(decode_steps, fields.get(keys.FIELD))
            if batch is None or batch.schema_version != SCHEMA_VERSION:
                continue
            rows = [row for row in batch.rows if row.unix_seconds >= since]
            if rows:
                yield msgspec.structs.replace(batch, rows=rows)
