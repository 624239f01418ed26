"""Telling the charts what happened to a pool's tunables beside its versions."""

from __future__ import annotations

import functools
import logging

from django.db import transaction
from redis import Redis
from redis.exceptions import RedisError

from serving.contracts.ids import PoolName
from serving.telemetry.events import EventKind, event_of, note_event

logger = logging.getLogger(__name__)


def note(redis: Redis, pool: PoolName, kind: EventKind, *, subject: str, text: str) -> None:
    """Mark an event in the pool's charts once the transaction is committed. Where Redis is out of reach, it is in the
    versions and the audit alone."""
    transaction.on_commit(functools.partial(_note, redis, pool, kind, subject=subject, text=text))


def _note(redis: Redis, pool: PoolName, kind: EventKind, *, subject: str, text: str) -> None:
    try:
        seconds, microseconds = redis.time()
        pipe = redis.pipeline(transaction=False)
        note_event(
            pipe, event_of(pool, kind, at=seconds + microseconds / 1e6, subject=subject, text=text, occurrence=text)
        )
        pipe.execute()
    except (RedisError, OSError) as error:
        logger.warning("pool %s: nobody is told that %s: %s", pool, text, error)
