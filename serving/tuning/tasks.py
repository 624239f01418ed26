"""Periodic work of tuning. Each may run twice, or at once."""

from __future__ import annotations

import logging

from celery import shared_task
from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone
from redis import Redis
from redis.exceptions import RedisError

from serving.tuning.effect_keeping import keep_effects as keep

logger = logging.getLogger(__name__)

_REDIS_SECONDS = 5.0


@shared_task(name="tuning.keep_effects")  # type: ignore[untyped-decorator]
def keep_effects() -> None:
    """Keep what was measured around versions; where Redis or the database is out of reach, the next one does."""
    try:
        with Redis.from_url(
            settings.REDIS_URL, socket_timeout=_REDIS_SECONDS, socket_connect_timeout=_REDIS_SECONDS
        ) as redis:
            keep(redis, now=timezone.now())
    except (RedisError, DatabaseError) as error:
        logger.warning("what versions did cannot be kept now: %s", type(error).__name__)
