"""The epoch: a word in Redis that changes with every change of a tenant, a key or a quota.

What a process remembers of keys, and what the door lets in, is bound to the epoch that it was read under: read the
epoch first, the database afterwards. A change is stored first and the epoch changed afterwards, so that nobody can
have read the old state under the new word.
"""

from __future__ import annotations

import functools
import logging
import secrets
from typing import cast

from django.db import transaction
from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from serving.admission.cancellation import honour_cancellation
from serving.contracts import keys

logger = logging.getLogger(__name__)


def begin_epoch_on_commit(redis: BlockingRedis) -> None:
    """Begin a new epoch once the running transaction is stored; at once where none runs."""
    transaction.on_commit(functools.partial(begin_epoch, redis))


def begin_epoch(redis: BlockingRedis) -> bool:
    """Make stale what every process remembers; False where Redis is out of reach.

    What is stored stays stored, and counts once Redis answers or what is remembered has grown old.
    """
    try:
        redis.set(keys.admission_epoch(), _new_word())
    except (RedisError, OSError) as error:
        logger.warning("a change of tenants or keys is stored, but Redis could not be told: %s", error)
        return False
    return True


async def read_epoch(redis: Redis) -> str | None:
    """The epoch, begun where there is none (as after Redis lost its data); None where Redis is out of reach."""
    try:
        stored = await redis.get(keys.admission_epoch())
        if stored is None:
            await redis.set(keys.admission_epoch(), _new_word(), nx=True)
            stored = await redis.get(keys.admission_epoch())
    except (RedisError, OSError):
        honour_cancellation()
        return None
    honour_cancellation()
    return None if stored is None else cast(bytes, stored).decode()


def _new_word() -> str:
    # Random, so that no epoch comes again when Redis loses its data.
    return secrets.token_hex(8)
